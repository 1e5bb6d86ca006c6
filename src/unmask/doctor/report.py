"""The whole of a diagnosis, as one object for machines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from unmask import laws
from unmask.doctor.machine import CheckResult, Extra, Machine
from unmask.laws import LawResult
from unmask.laws.base import on_device


@dataclass(frozen=True)
class Verdict:
    """One axis: how many members and checks there were, which laws are broken, and which came closest to its limit."""

    axis: str
    members: int
    checks: int
    seconds: float
    broken: tuple[LawResult, ...]
    closest: LawResult

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "axis": self.axis,
            "members": self.members,
            "checks": self.checks,
            "seconds": self.seconds,
            "passed": not self.broken,
            "closest": {**_plain(self.closest), "share": _finite(share(self.closest))},
            "broken": [_plain(law) for law in self.broken],
        }


def judge(device: torch.device, progress: Callable[[int], None] = lambda cases: None) -> Iterator[Verdict]:
    """Try every law on every member of every axis; `progress` hears of each member and law that is done."""
    for axis in laws.AXES:
        started = time.monotonic()
        cases = laws.cases(axis)
        made: list[LawResult] = []
        for case in cases:
            with on_device(device):
                made += case.run_safely()
            progress(1)
        broken = tuple(law for law in made if not law.passed)
        members = len({case.subject for case in cases})
        yield Verdict(axis, members, len(made), time.monotonic() - started, broken, max(made, key=share))


def work() -> int:
    """How often `judge` will report progress."""
    return sum(len(laws.cases(axis)) for axis in laws.AXES)


def share(law: LawResult) -> float:
    """How much of its limit a law uses up, above 1 where it is broken; 0 where its limit leaves no room to measure."""
    if not law.passed:
        return math.inf
    return max(law.value / law.limit, 0.0) if law.limit > 0 else 0.0


def _plain(law: LawResult) -> dict[str, Any]:
    return {
        "law": law.name,
        "subject": law.subject,
        "words": law.description,
        "figure": _finite(law.value),
        "limit": law.limit,
    }


def _finite(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None


@dataclass(frozen=True)
class Report:
    """What was found. `laws` is None where they were left out, `about` and `findings` where there is no checkpoint."""

    versions: list[CheckResult]
    machine: Machine
    extras: list[Extra]
    device: str
    laws: list[Verdict] | None = None
    about: dict[str, Any] | None = None
    text: str | None = None
    findings: list[CheckResult] | None = None

    @property
    def failures(self) -> int:
        """How many versions, laws and checks of the checkpoint are not as they should be."""
        broken = sum(len(verdict.broken) for verdict in self.laws or [])
        return broken + sum(finding.failed for finding in [*self.versions, *(self.findings or [])])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        checkpoint = None
        if self.about is not None:
            findings = [finding.as_dict() for finding in self.findings or []]
            checkpoint = {"about": self.about, "text": self.text, "findings": findings}
        return {
            "passed": not self.failures,
            "failures": self.failures,
            "device": self.device,
            "versions": [finding.as_dict() for finding in self.versions],
            "machine": self.machine.as_dict(),
            "extras": [extra.as_dict() for extra in self.extras],
            "laws": None if self.laws is None else [verdict.as_dict() for verdict in self.laws],
            "checkpoint": checkpoint,
        }
