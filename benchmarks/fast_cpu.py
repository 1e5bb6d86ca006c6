"""Training and sampling on a CPU against the plain dense implementation, with few tokens and with many.

    python benchmarks/fast_cpu.py

Every pair is measured in one run, in turns, so that the ratios hold on a busy machine too. About three minutes on two
cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.benchmarks import contest, train
from unmask.benchmarks.report import Ratio, Result
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.sweep import Sweep

VOCABULARIES = {257: 16, 50_258: 8}
"""Tokens, and the rows of a training batch, of which there are fewer where each costs more."""
LENGTH = 128
TEXTS = 4


@dataclass(frozen=True)
class Line:
    """One comparison."""

    work: str
    vocabulary: int
    ours: Result
    plain: Result

    def __str__(self) -> str:
        ratio = Ratio.of(self.ours, self.plain)
        speed = f"{ratio.speed.median:.2f} ({ratio.speed.low:.2f}-{ratio.speed.high:.2f})"
        rates = f"{self.ours.tokens_per_second:>10,.0f}{self.plain.tokens_per_second:>10,.0f}{speed:>20}"
        memory = f"{self.ours.peak_gib:>10.2f}{self.plain.peak_gib:>10.2f}{ratio.memory:>10.2f}"
        return f"{self.work:<10}{self.vocabulary:>8,}{rates}{memory}"


def setup_of(vocabulary: int, batch: int) -> Setup:
    """The nano DiT with so many tokens."""
    return Setup(vocab_size=vocabulary, mask_token_id=vocabulary - 1, length=LENGTH, batch=batch)


def training(vocabulary: int, batch: int) -> Line:
    """A few steps a round, so that rows and noise are made ahead of all but the first."""
    report = contest.measure(train.Training(setup_of(vocabulary, batch), steps=4), train.CONTENDERS, repeats=7)
    return Line("training", vocabulary, report.results["unmask"], report.results["plain"])


def sampling(vocabulary: int) -> Line:
    """As many steps as a text has tokens; long walks are timed over an excerpt."""
    setup = setup_of(vocabulary, TEXTS)
    sweep = Sweep(setup, [LENGTH], [TEXTS], [LENGTH], repeats=5, limit=10.0, rivals=("plain",))
    results = sweep.measure().cells[0].results
    return Line("sampling", vocabulary, results[f"mdlm T={LENGTH}"], results[f"plain T={LENGTH}"])


def main() -> None:
    """Print the table, line by line."""
    print(f"{'':<10}{'tokens':>8}{'ours/s':>10}{'plain/s':>10}{'times as fast':>20}", end="")
    print(f"{'ours GiB':>10}{'plain':>10}{'share':>10}", flush=True)
    for vocabulary, batch in VOCABULARIES.items():
        print(training(vocabulary, batch), flush=True)
    for vocabulary in VOCABULARIES:
        print(sampling(vocabulary), flush=True)


if __name__ == "__main__":
    main()
