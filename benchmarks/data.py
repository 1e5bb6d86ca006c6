"""Speed and peak memory of tokenization and of data loading, each measured in a new process.

    python benchmarks/data.py --megabytes 200 --json data.json

The corpus is synthetic: lines of random words with Zipf's distribution. `rows` reads shuffled rows from the memory map,
as training does; `feed` prepares the batches of the training loop, noise included, with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 5.0
BATCH = 64
WORDS = 60_000
TOKENIZERS: dict[str, dict[str, Any]] = {
    "byte": {"name": "byte"},
    "bpe 4096": {"name": "bpe", "vocab_size": 4096, "sample_characters": 20_000_000},
    "GPT-2-like": {"name": "bpe", "vocab_size": 50_258, "sample_characters": 20_000_000},
}


def write_corpus(path: Path, megabytes: float) -> None:
    """Write lines of twelve words; the k-th most frequent word has a probability proportional to 1/k."""
    import numpy as np

    random = np.random.default_rng(0)
    letters = random.choice(list("etaoinshrdlcumwfgypbvk"), (WORDS, 12))
    words = np.array(["".join(row[:size]) for row, size in zip(letters, random.integers(2, 12, WORDS), strict=True)])
    shares = np.cumsum(1 / np.arange(1, WORDS + 1))
    with path.open("w") as file:
        while file.tell() < megabytes * 1e6:
            drawn = words[np.searchsorted(shares, random.random(600_000) * shares[-1])]
            file.writelines(" ".join(line) + "\n" for line in drawn.reshape(-1, 12))


def peak_megabytes() -> float:
    """Return the peak memory of this process, mapped files included."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def corpus_of(path: str, tokenizer: dict[str, Any]) -> Any:
    """Prepare the corpus; only a trained tokenizer is cached between processes."""
    from unmask import registry
    from unmask.data.split import prepare

    source = registry.build("source", {"name": "text", "paths": path, "separator": "line"})
    return prepare(source, registry.build("tokenizer", tokenizer))


def measure_preparation(path: str, tokenizer: dict[str, Any]) -> dict[str, float]:
    """Measure reading, splitting and encoding, without training the tokenizer."""
    import shutil

    from unmask.io import cache_dir

    corpus_of(path, tokenizer)
    shutil.rmtree(cache_dir() / "tokens")
    start = time.perf_counter()
    corpus = corpus_of(path, tokenizer)
    seconds = time.perf_counter() - start
    tokens = len(corpus.train.ids) + len(corpus.validation.ids)
    return {
        "tokens_per_second": tokens / seconds,
        "megabytes_per_second": os.path.getsize(path) / 1e6 / seconds,
        "peak_megabytes": peak_megabytes(),
    }


def tokens_per_second(read: Callable[[int], int]) -> float:
    """Return the tokens per second of calls with 0, 1, 2, ..."""
    tokens, number, start = 0, 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        tokens += read(number)
        number += 1
    return tokens / (time.perf_counter() - start)


def measure_loading(path: str, length: int, noise: bool) -> dict[str, float]:
    """Measure batches of shuffled byte rows, with or without the noise of a training step."""
    import numpy as np
    import torch

    from unmask import registry
    from unmask.training.data_feed import DataFeed, split_batch

    torch.set_num_threads(1)
    rows, _ = corpus_of(path, TOKENIZERS["byte"]).rows(registry.build("policy", "packed"), length)
    feed = DataFeed(rows, BATCH, split_batch(BATCH, 1), seed=0, data_seed=0)

    def read(step: int) -> int:
        if noise:
            return feed.micro_batches(step)[0].batch.input_ids.numel()
        return rows[rows.sample(0, step * BATCH + np.arange(BATCH))].input_ids.size

    speed = tokens_per_second(read)
    return {"tokens_per_second": speed, "rows_per_second": speed / length, "peak_megabytes": peak_megabytes()}


JOBS: dict[str, Callable[..., dict[str, float]]] = {"prepare": measure_preparation, "load": measure_loading}


def run_in_process(job: str, threads: int = 2, **options: Any) -> dict[str, float]:
    """Run a measurement with this number of tokenizer threads."""
    command = [sys.executable, __file__, "--job", json.dumps([job, options])]
    settings = {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def all_figures(path: str) -> Iterator[dict[str, Any]]:
    """Yield the results one by one."""
    for name, tokenizer in TOKENIZERS.items():
        for threads in (1, 2) if name != "byte" else (1,):
            figures = run_in_process("prepare", threads, path=path, tokenizer=tokenizer)
            yield {"what": f"prepare, {name}, {threads} thread{'s' * (threads > 1)}", **figures}
    for length in (128, 1024):
        for noise in (False, True):
            figures = run_in_process("load", path=path, length=length, noise=noise)
            yield {"what": f"{'feed' if noise else 'rows'}, length {length}", **figures}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="size of the corpus")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        name, arguments = options.job
        print(json.dumps(JOBS[name](**arguments)))
        return
    print(f"{'':<34}{'tokens/s':>14}{'MB/s':>10}{'rows/s':>12}{'peak MB':>10}")
    results = []
    with tempfile.TemporaryDirectory(prefix="unmask-benchmark-") as folder:
        os.environ["UNMASK_CACHE"] = f"{folder}/cache"
        write_corpus(Path(folder) / "corpus.txt", options.megabytes)
        for figures in all_figures(f"{folder}/corpus.txt"):
            results.append(figures)
            columns = [figures.get(name) for name in ("megabytes_per_second", "rows_per_second")]
            shown = [f"{value:,.1f}" if value is not None else "" for value in columns]
            print(
                f"{figures['what']:<34}{figures['tokens_per_second']:>14,.0f}{shown[0]:>10}{shown[1]:>12}"
                f"{figures['peak_megabytes']:>10,.0f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
