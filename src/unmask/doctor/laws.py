"""Run the laws on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from unmask import laws
from unmask.doctor import finite
from unmask.laws import LawResult
from unmask.laws.base import on_device


def run_laws(device: torch.device, progress: Callable[[int], None] = lambda cases: None) -> Iterator[dict[str, Any]]:
    """Run every law on every member of every axis; yields one JSON object per axis.

    `closest` is the law that comes closest to its limit, and `share` the part of the limit that it uses. `progress` is
    called with 1 after each of the `count_cases()` cases.
    """
    for axis in laws.AXES:
        start = time.monotonic()
        cases = laws.cases(axis)
        results: list[LawResult] = []
        for case in cases:
            with on_device(device):
                results += case.run_safely()
            progress(1)
        broken = [law for law in results if not law.passed]
        closest = max(results, key=_share)
        yield {
            "axis": axis,
            "members": len({case.subject for case in cases}),
            "checks": len(results),
            "seconds": time.monotonic() - start,
            "passed": not broken,
            "closest": {**_as_dict(closest), "share": finite(_share(closest))},
            "broken": [_as_dict(law) for law in broken],
        }


def count_cases() -> int:
    return sum(len(laws.cases(axis)) for axis in laws.AXES)


def _share(law: LawResult) -> float:
    """Return the fraction of its limit that a law uses: infinite if it is broken, 0 if its limit is 0."""
    if not law.passed:
        return math.inf
    return max(law.value / law.limit, 0.0) if law.limit > 0 else 0.0


def _as_dict(law: LawResult) -> dict[str, Any]:
    return {
        "law": law.name,
        "subject": law.subject,
        "words": law.description,
        "figure": finite(law.value),
        "limit": law.limit,
    }
