"""Training and sampling on a CPU against the plain dense implementation, with a small and a large vocabulary.

    python benchmarks/fast_cpu.py

Takes about three minutes on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

BATCH_SIZES = {257: 16, 50_258: 8}
"""Vocabulary size and rows of a training batch."""
SIZES = ("--size", "nano", "--length", "128", "--device", "cpu", "--against", "plain", "--memory", "--json")


def bench(verb: str, vocabulary: int, *options: str) -> dict[str, Any]:
    """Run `unmask bench` and return its report."""
    command = [sys.executable, "-m", "unmask", "bench", verb, *SIZES, "--vocab", str(vocabulary), *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def print_row(work: str, vocabulary: int, ours: dict[str, Any], plain: dict[str, Any], ratio: dict[str, Any]) -> None:
    """Print one comparison."""
    speed = "{median:.2f} ({low:.2f}-{high:.2f})".format(**ratio["speed"])
    rates = f"{ours['tokens_per_second']:>10,.0f}{plain['tokens_per_second']:>10,.0f}{speed:>20}"
    memory = f"{ours['peak_gib']:>10.2f}{plain['peak_gib']:>10.2f}{ratio['memory']:>10.2f}"
    print(f"{work:<10}{vocabulary:>8,}{rates}{memory}", flush=True)


def main() -> None:
    """Print the table row by row."""
    print(f"{'':<10}{'tokens':>8}{'ours/s':>10}{'plain/s':>10}{'times as fast':>20}", end="")
    print(f"{'ours GiB':>10}{'plain':>10}{'share':>10}", flush=True)
    for vocabulary, batch in BATCH_SIZES.items():
        report = bench("train", vocabulary, "--batch", str(batch), "--steps", "4", "--repeats", "7")
        results = report["results"]
        print_row("training", vocabulary, results["unmask"], results["plain"], report["against"]["plain"])
    for vocabulary in BATCH_SIZES:
        report = bench("sample", vocabulary, "--batch", "4", "--steps", "128", "--repeats", "5")
        (cell,) = report["cells"]
        results, ratio = cell["results"], cell["against"]["plain T=128"]
        print_row("sampling", vocabulary, results["mdlm T=128"], results["plain T=128"], ratio)


if __name__ == "__main__":
    main()
