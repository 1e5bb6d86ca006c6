"""Every registered sampler through every law of samplers, and those with options at unusual values of them."""

from __future__ import annotations

import pytest

from unmask import laws, registry

UNUSUAL = [
    {"name": "threshold", "above": 0.0},
    {"name": "threshold", "above": 0.6},
    {"name": "threshold", "above": 1.0},
    {"name": "entropy_bounded", "gamma": 0.0},
    {"name": "entropy_bounded", "gamma": 0.6},
    {"name": "entropy_bounded", "gamma": 100.0},
]

CASES = laws.cases("sampler") + [
    case for spec in UNUSUAL for case in laws.cases_of("sampler", registry.build("sampler", spec))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sampler_keeps_law(case):
    for law in case.judge():
        law.require()
