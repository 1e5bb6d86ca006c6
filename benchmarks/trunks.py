"""Mamba, Caduceus and Hyena beside transformers of as many parameters: training speed, and cost along the length.

    python -m benchmarks.trunks --out trunks.json

Three measurements, on random bases: tokens per second of training as `unmask train` runs it; tokens per second and
peak memory of a forward and backward pass of equal tokens in rows of several lengths, which stay the same where a
network is linear in the length; and of the causal networks, memory of the cache and time of a step after a prefix.
What does not begin within --limit seconds is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unmask.models.inference import select_device
from unmask.optimizers.base import AdamW
from unmask.registry import build
from unmask.training.metrics import GIB

from .measure import stopwatch
from .setup import Setup, Workload, perturb_zeros
from .train import prepare_training

VOCABULARY, MASK = 6, 5
DNA_TRANSFORMER = {"hidden_size": 96, "layers": 4, "heads": 4}
"""A transformer with about the parameters of the size `dna`."""
DENOISERS = ("dit", "bimamba", "caduceus-ps", "hyena")
CAUSAL = ("causal", "mamba", "hyena-causal")

Report = dict[str, dict[str, Any]]


def make_spec(name: str, size: str) -> Any:
    """A trunk of a size, or a transformer of about as many parameters."""
    options: dict[str, Any] = {"name": name.removesuffix("-causal"), "size": size, "dropout": 0.0}
    if name in ("dit", "causal") and size == "dna":
        options = {"name": name, "dropout": 0.0, **DNA_TRANSFORMER}
    return build("model", options | ({"causal": True} if name == "hyena-causal" else {}))


def measure_training(name: str, size: str, length: int, batch: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Tokens per second, the median of three runs of `steps` steps after one that compiles and records."""
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    setup = Setup(make_spec(name, size), VOCABULARY, MASK, length, batch, precision=precision, device=device)
    work = Workload(setup, steps, AdamW())
    start = time.perf_counter()
    run = prepare_training(work)
    run()
    first = time.perf_counter() - start
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(run() for _ in range(3))
    peak = torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else None
    parameters = sum(one.numel() for one in setup.network().parameters())
    return {
        "parameters": parameters,
        "tokens_per_second": work.tokens / seconds,
        "peak_gib": peak,
        "first_run_seconds": first,
    }


def make_network(name: str, size: str, length: int, device: torch.device) -> Any:
    """A network that is not compiled, with random weights."""
    with device:
        return perturb_zeros(make_spec(name, size).build(VOCABULARY, MASK, length))


def measure_pass(name: str, size: str, length: int, tokens: int, device: torch.device) -> dict[str, Any]:
    """Tokens per second and peak memory of a forward and backward pass, on a GPU in bf16."""
    network = make_network(name, size, length, device).train()
    ids = torch.randint(MASK, (max(1, tokens // length), length), device=device)
    on_gpu = device.type == "cuda"

    def work() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            rows = network.hidden(ids)
        rows.float().square().mean().backward()
        network.zero_grad()

    run = stopwatch(work, device)
    run()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(run() for _ in range(3))
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else None
    return {"tokens_per_second": ids.numel() / seconds, "peak_gib": peak}


@torch.no_grad()
def measure_steps(name: str, size: str, length: int, tokens: int, device: torch.device) -> dict[str, Any]:
    """MiB of the cache after a prefix of `length` tokens, and milliseconds of a step of one more token."""
    network = make_network(name, size, length + 32, device).eval()
    cache = network.new_cache()
    network.hidden(torch.randint(MASK, (1, length), device=device), past_key_values=cache)
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    run = stopwatch(lambda: network.hidden(token, past_key_values=cache), device)
    run()
    seconds = statistics.median(run() for _ in range(5))
    states = getattr(cache, "states", None)
    if states is None:
        tensors = [one for layer in cache.layers for one in (layer.keys, layer.values)]
    else:
        tensors = [one for state in states for one in state]
    return {"cache_mib": sum(one.nbytes for one in tensors) / 2**20, "step_ms": 1000 * seconds}


def main() -> None:
    """Measure, write the JSON report, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the JSON report to this file")
    parser.add_argument("--size", default="dna", help="size of the trunks: dna (0.47 million parameters), tiny, small")
    parser.add_argument("--device")
    parser.add_argument("--length", type=int, help="tokens per row in training; 1024, on a CPU 128")
    parser.add_argument("--batch", type=int, help="rows per step; 64, on a CPU 4")
    parser.add_argument("--steps", type=int, help="steps per run; 20, on a CPU 2")
    parser.add_argument("--lengths", type=int, nargs="+", help="1024 8192 32768 131072, on a CPU 256 1024")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which nothing new begins")
    options = parser.parse_args()
    device = select_device(options.device)
    gpu = device.type == "cuda"
    lengths = options.lengths or ([1024, 8192, 32768, 131_072] if gpu else [256, 1024])
    length, batch = options.length or (1024 if gpu else 128), options.batch or (64 if gpu else 4)
    steps, tokens = options.steps or (20 if gpu else 2), max(lengths)
    start = time.perf_counter()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "torch": torch.__version__,
        "size": options.size,
        "training": {"length": length, "batch": batch, "steps": steps},
        "tokens_per_pass": tokens,
        "left_out": [],
    }

    def attempt(where: str, measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """A measurement, its error, or nothing after the limit."""
        if time.perf_counter() - start > options.limit:
            report["left_out"].append(where)
            return {}
        try:
            return measure(*arguments, device)
        except (RuntimeError, AssertionError) as error:
            report["left_out"].append(f"{where}: {str(error).splitlines()[0]}")
            return {}
        finally:
            if gpu:
                torch.cuda.empty_cache()

    size = options.size
    report["train"] = {n: attempt(f"train {n}", measure_training, n, size, length, batch, steps) for n in DENOISERS}
    for key, names, measure in (("pass", DENOISERS, measure_pass), ("step", CAUSAL, measure_steps)):
        report[key] = {
            name: {str(one): attempt(f"{key} {name} {one}", measure, name, size, one, tokens) for one in lengths}
            for name in names
        }
    report["seconds"] = time.perf_counter() - start
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print_tables(report, lengths)


def print_tables(report: dict[str, Any], lengths: list[int]) -> None:
    """Print one line for each network."""

    def cell(values: dict[str, Any], name: str, digits: int = 2, scale: float = 1.0) -> str:
        value = values.get(name)
        return "-" if value is None else f"{value * scale:.{digits}f}"

    dit = report["train"]["dit"].get("tokens_per_second")
    training = report["training"]
    print(f"{report['device']}, size {report['size']}, {report['seconds']:.0f} s")
    print(f"training, length {training['length']}, batch {training['batch']}")
    print(f"{'':14}{'parameters':>12}{'k tokens/s':>12}{'of the DiT':>12}{'GiB':>8}{'first, s':>10}")
    for name, row in report["train"].items():
        share = {"share": row["tokens_per_second"] / dit} if row and dit else {}
        shown = (cell(row, "parameters", 0), cell(row, "tokens_per_second", 1, 1e-3), cell(share, "share"))
        print(f"{name:14}{shown[0]:>12}{shown[1]:>12}{shown[2]:>12}{cell(row, 'peak_gib'):>8}"
              f"{cell(row, 'first_run_seconds', 1):>10}")  # fmt: skip
    passed = report["tokens_per_pass"]
    for key, title, one, scale, other in (
        ("pass", f"forward and backward, {passed} tokens: k tokens/s / GiB", "tokens_per_second", 1e-3, "peak_gib"),
        ("step", "cache after a prefix, MiB / one step, ms", "cache_mib", 1.0, "step_ms"),
    ):  # fmt: skip
        print(f"{title}; ratio of the first figure, longest to shortest")
        print(f"{'':14}" + "".join(f"{length:>18}" for length in lengths) + f"{'ratio':>10}")
        for name, row in report[key].items():
            cells = [f"{cell(row[str(n)], one, scale=scale)} / {cell(row[str(n)], other)}" for n in lengths]
            shortest, longest = (row[str(end(lengths))].get(one) for end in (min, max))
            ratio = f"{longest / shortest:.2f}" if longest and shortest else "-"
            print(f"{name:14}" + "".join(f"{text:>18}" for text in cells) + f"{ratio:>10}")
    for sentence in report["left_out"]:
        print(f"left out: {sentence}")


if __name__ == "__main__":
    main()
