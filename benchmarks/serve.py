"""Serving against offline generation: throughput, time to the first canvas, and a test under load.

python -m benchmarks.serve --steps 16                  # 64 clients against the library, on this machine
python -m benchmarks.serve --width 128 --length 64     # the same with a random network of this width
python -m benchmarks.serve --device cuda --out h200.json   # a random DiT of 1,024 tokens; needs no web framework
python -m benchmarks.serve --load 10                   # 200 clients over HTTP for ten minutes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from unmask.checkpoint import CheckpointConfig
from unmask.models.build import DiTSpec
from unmask.models.inference import InferenceEngine, cast_trunk_to_bf16
from unmask.pipeline import MaskedDiffusionLM, load
from unmask.serving.batches import CanvasEvent, Failed, Finished, Job
from unmask.serving.metrics import Metrics
from unmask.serving.scheduler import Scheduler


class Numbers:
    """A tokenizer for random networks: the text of a token is its number."""

    pad_token_id, eos_token_id, bos_token_id = 0, None, None

    def __init__(self, vocab_size: int) -> None:
        self.mask_token_id = vocab_size - 1

    def decode(self, ids: list[int], **options: Any) -> str:
        return " ".join(map(str, ids))


def random_lm(device: torch.device, spec: DiTSpec, vocab_size: int, length: int) -> MaskedDiffusionLM:
    """A DiT with random weights, as fast as a trained one."""
    torch.manual_seed(0)
    with device:
        network = spec.build(vocab_size, vocab_size - 1, length).eval()
    torch.nn.init.normal_(network.output_layer.linear.weight, std=0.02)
    if device.type == "cuda":
        cast_trunk_to_bf16(network)
    engine = InferenceEngine(network) if device.type == "cuda" else None
    return MaskedDiffusionLM(network, Numbers(vocab_size), CheckpointConfig(length=length), engine=engine)


class Calls(Metrics):
    """Counts network calls and their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.batch_size = self

    def observe(self, rows: float) -> None:
        self.rows.append(int(rows))


def serve_jobs(
    lm: MaskedDiffusionLM, options: Sequence[dict[str, Any]], delays: Sequence[float], watched: bool = False
) -> dict[str, Any]:
    """Send one request after each delay; returns the seconds, texts, calls, and calls before the first canvas."""
    calls = Calls()
    scheduler = Scheduler(calls).start()
    shared, events = scheduler.share(lm), queue.Queue[tuple[int, float, int, Any]]()
    sent: list[tuple[float, int]] = []

    def notify(number: int) -> Callable[[Any], None]:
        return lambda event: events.put((number, time.perf_counter(), len(calls.rows), event))

    start = time.perf_counter()
    for number, (one, delay) in enumerate(zip(options, delays, strict=True)):
        if delay:
            time.sleep(delay)
        job = Job.plan(shared, partial(MaskedDiffusionLM.sample, n=1, **one))
        job.notify, job.watched = notify(number), watched
        sent.append((time.perf_counter(), len(calls.rows)))
        scheduler.submit(job)
    texts: dict[int, str] = {}
    latency, first_calls = [0.0] * len(options), [0] * len(options)
    seen: set[int] = set()
    while len(texts) < len(options):
        number, when, made, event = events.get()
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, CanvasEvent) and event.call and number not in seen:
            seen.add(number)
            first_calls[number] = made - sent[number][1]
        if isinstance(event, Finished):
            texts[number] = event.generation.text
            latency[number] = when - sent[number][0]
    seconds = time.perf_counter() - start
    scheduler.stop()
    return {
        "seconds": seconds,
        "texts": [texts[number] for number in sorted(texts)],
        "network_calls": len(calls.rows),
        "mean_rows": statistics.mean(calls.rows),
        "latency_p50": statistics.median(latency),
        "first_canvas_calls": max(first_calls),
    }


def timed(function: Callable[[], Any], device: torch.device) -> tuple[float, float, Any]:
    """Seconds, seconds of the processors of this process, and the result."""
    start, processor = time.perf_counter(), time.process_time()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - processor, result


def compare(lm: MaskedDiffusionLM, clients: int, length: int, options: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The scheduler with all requests at once and spread over a run, against the library in one batch.

    The ratios are medians over rounds in which both run one after the other. Those of processor time do not depend on
    what else the machine does.
    """
    device, tokens = lm.device, clients * length
    requests = [{"length": length, "seed": seed, **options} for seed in range(clients)]
    warm = {**options, "length": length}
    lm.generate(clients, **warm)  # kernels, graphs
    best, expected = {}, None
    for size in {clients, max(1, clients // 4), max(1, clients // 16)}:
        lm.generate(size, **warm)
        seconds, _, texts = timed(partial(lm.generate, clients, batch_size=size, **warm), device)
        best[size] = seconds
        expected = texts if size == clients else expected
    size, few = min(best, key=best.__getitem__), max(2, clients // 16)
    runs: dict[str, Callable[[], Any]] = {
        "offline": lambda: lm.generate(clients, batch_size=size, **warm),
        "single": lambda: [lm.generate(1, **{**warm, "seed": seed}) for seed in range(few)],
        "together": lambda: serve_jobs(lm, requests, [0.0] * clients),
    }
    runs["together"]()
    rounds = [{name: timed(run, device) for name, run in runs.items()} for _ in range(repeats)]

    def median(name: str, clock: int = 0) -> float:
        return statistics.median(one[name][clock] for one in rounds)

    def ratio(name: str, scale: float, clock: int) -> float:
        return statistics.median(scale * one[name][clock] / one["together"][clock] for one in rounds)

    seconds, first = median("together"), rounds[0]["together"][2]
    half = requests + [{**one, "seed": one["seed"] + clients} for one in requests]
    rng = random.Random(0)
    delays = [0.0] * (clients // 2) + [rng.expovariate(clients / seconds) for _ in half[clients // 2 :]]
    spread = serve_jobs(lm, half, delays)
    watched = serve_jobs(lm, requests, [rng.random() * seconds / clients for _ in requests], watched=True)
    return {
        "offline_batch_size": size,
        "offline_tokens_per_second": tokens / median("offline"),
        "one_after_another_tokens_per_second": few * length / median("single"),
        "together_tokens_per_second": tokens / seconds,
        "together_to_offline": ratio("offline", 1, 0),
        "together_to_offline_by_processor_time": ratio("offline", 1, 1),
        "together_to_one_after_another": ratio("single", clients / few, 0),
        "together_to_one_after_another_by_processor_time": ratio("single", clients / few, 1),
        "spread_mean_rows": spread["mean_rows"],
        "spread_rows_per_second_to_offline": spread["mean_rows"]
        * spread["network_calls"]
        / spread["seconds"]
        / (clients * first["network_calls"] / median("offline")),
        "first_canvas_calls": watched["first_canvas_calls"],
        "equal_texts": sum(a == b for a, b in zip(first["texts"], expected or (), strict=True)),
        "texts": clients,
    }


# ---- load over HTTP -------------------------------------------------------------------------------------------------

NONSENSE: list[Any] = [
    {"n": "many"},
    {"prompt": 5},
    {"max_tokens": 10**15},
    {"constraint": {"match": "((a|b)*c{1,400}){1,400}"}},
    {"sampler": {"name": "no"}},
    {"temperature": -3},
    [],
    "{" * 4000,
]


async def load_test(url: str, model: MaskedDiffusionLM, minutes: float, clients: int, process: int) -> dict[str, Any]:
    """Clients that send requests until the time is over: one in ten leaves, one in ten sends nonsense."""
    import httpx

    statuses: dict[str, int] = {}
    finished: list[tuple[dict[str, Any], str]] = []
    memory: list[tuple[float, int]] = []
    end = time.monotonic() + 60 * minutes
    about = psutil.Process(process)
    (text,) = model.generate(length=16)  # whose characters the model knows

    async def visit(number: int, http: httpx.AsyncClient) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            body = {
                "prompt": rng.choice(["", text[:2], text[:6]]),
                "max_tokens": rng.choice([8, 16, 24]),
                "seed": rng.randrange(4),
                "steps": rng.choice([2, 4, 6]),
                **rng.choice([{}, {"order": "confidence"}, {"sampler": "remdm"}, {"suffix": text[-3:]}]),
            }
            kind = rng.random()
            try:
                if kind < 0.1:
                    bad = rng.choice(NONSENSE)
                    content = bad if isinstance(bad, str) else json.dumps(bad)
                    answer = await http.post(f"{url}/v1/completions", content=content, headers=JSON)
                    status = f"nonsense {answer.status_code}"
                elif kind < 0.2:
                    async with http.stream("POST", f"{url}/v1/completions", json=body | {"diffusing": True}) as stream:
                        async for _ in stream.aiter_lines():
                            break
                    status = "went away"
                else:
                    answer = await http.post(f"{url}/v1/completions", json=body | {"echo": True})
                    status = str(answer.status_code)
                    if answer.status_code == 200:
                        finished.append((body, answer.json()["choices"][0]["text"]))
                    elif answer.status_code == 429:
                        await asyncio.sleep(float(answer.headers["retry-after"]))
            except httpx.HTTPError as error:
                status = type(error).__name__
            statuses[status] = statuses.get(status, 0) + 1

    async def watch_memory() -> None:
        while time.monotonic() < end:
            memory.append((time.monotonic(), about.memory_info().rss >> 20))
            await asyncio.sleep(max(0.5, 0.6 * minutes))

    limits = httpx.Limits(max_connections=clients + 8)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http:
        await asyncio.gather(*(visit(number, http) for number in range(clients)), watch_memory())
        await asyncio.sleep(1)
        metrics = (await http.get(f"{url}/metrics")).text
    left = {
        name: float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        for name in ("unmask_open_requests", "unmask_queued_rows", "unmask_running_rows")
        if line.startswith(f"{name} ")
    }
    expected: dict[str, str] = {}
    differ = 0
    for body, text in finished:
        key = json.dumps(body)
        if key not in expected:
            ids = model.text_processor.encode([body["prompt"], body.get("suffix", "")])
            options = {name: value for name, value in body.items() if name != "max_tokens"}
            (expected[key],) = model.generate(length=sum(map(len, ids)) + body["max_tokens"], **options)
        differ += expected[key] != text
    sizes = [size for _, size in memory]
    third = max(1, len(sizes) // 3)
    return {
        "minutes": minutes,
        "clients": clients,
        "statuses": statuses,
        "server_errors": sum(n for status, n in statuses.items() if status.split()[-1].startswith("5")),
        "left_over": left,
        "texts_checked": len(finished),
        "texts_that_differ": differ,
        "memory_mib": {"after_a_third": max(sizes[:third]), "at_the_end": max(sizes[-third:])},
    }


JSON = {"content-type": "application/json"}


def run_load(lm: MaskedDiffusionLM, name: str, minutes: float, clients: int) -> dict[str, Any]:
    """Start the server in a process of its own and send it load."""
    import subprocess
    import sys

    from unmask.serving.server import bind

    probe = bind("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    command = [sys.executable, "-m", "unmask", "serve", name, "--port", str(port), "--device", "cpu"]
    server = subprocess.Popen(command)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health")
        return asyncio.run(load_test(f"http://127.0.0.1:{port}", lm, minutes, clients, server.pid))
    finally:
        server.terminate()
        server.wait(120)


def wait_until_ready(url: str) -> None:
    import httpx

    for _ in range(1200):
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError(url)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", default="stories", help="on a CPU; a GPU has a random network")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--length", type=int, help="tokens of a text (default 128, on a GPU 1024)")
    parser.add_argument("--steps", type=int, help="network calls of a text (default 16, on a GPU 128)")
    parser.add_argument("--size", default="small", help="of the random network on a GPU")
    parser.add_argument("--width", type=int, help="a random network of this width and four layers, also on a CPU")
    parser.add_argument("--sampler", help="default: ancestral")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--load", type=float, metavar="MINUTES", help="200 clients over HTTP")
    parser.add_argument("--load-clients", type=int, default=200)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    length, steps = options.length or (1024 if gpu else 128), options.steps or (128 if gpu else 16)
    if options.load:
        found = run_load(load(options.checkpoint, device="cpu"), options.checkpoint, options.load, options.load_clients)
    else:
        if options.width:
            spec = DiTSpec(hidden_size=options.width, layers=4, heads=max(1, options.width // 64))
            lm = random_lm(device, spec, 4096, length)
        elif gpu:
            lm = random_lm(device, DiTSpec(size=options.size), 50_258, length)
        else:
            lm = load(options.checkpoint, device=device)
        sampler = {"sampler": options.sampler or "ancestral", "steps": steps}
        found = compare(lm, options.clients, length, sampler, options.repeats)
        found |= {"device": torch.cuda.get_device_name() if gpu else "cpu", "length": length, **sampler}
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name, value in found.items():
        print(f"{name.replace('_', ' '):50} {f'{value:,.3f}' if isinstance(value, float) else value}")
    return found


if __name__ == "__main__":
    main()
