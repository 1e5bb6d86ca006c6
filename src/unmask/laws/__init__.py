"""The mathematics as callable checks, run by the tests and by `unmask doctor`.

`run()` judges every registered schedule, objective, sampler and network; `cases(axis)` are the same one by one. Here
live `base` (what a law is), `device` (where it is tried), `tables` (denoisers that can be written down), `exact`
(enumeration), `averages` (what objectives are worth without their noise), `statistics`, and one file of laws for every
axis.
"""

from __future__ import annotations

from unmask.laws.base import AXES, Case, Check, LawBroken, LawResult, cases, cases_of, describe, law, members, run

__all__ = [
    "AXES",
    "Case",
    "Check",
    "LawBroken",
    "LawResult",
    "cases",
    "cases_of",
    "describe",
    "law",
    "members",
    "run",
]
