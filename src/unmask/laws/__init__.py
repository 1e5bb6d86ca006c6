"""The mathematics as callable checks, used by the tests and by `unmask doctor`.

`run()` checks every registered schedule, objective, sampler and model; `cases(axis)` lists the same checks of one axis.
`base` defines laws and their results, `tables` denoisers that are lookup tables, `exact` likelihoods and bounds by
enumeration, `chains` the enumerated Markov chain of every sampler; the other modules contain the laws of one axis each.
"""

from __future__ import annotations

from unmask.laws.base import AXES, Case, Check, LawBroken, LawResult, cases, cases_of, describe, law, members, run

__all__ = ["AXES", "Case", "Check", "LawBroken", "LawResult", "cases", "cases_of", "describe", "law", "members", "run"]
