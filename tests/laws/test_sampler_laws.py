"""Every registered sampler through every law of samplers, and those with options at unusual values of them."""

from __future__ import annotations

import pytest

from unmask import laws, registry

UNUSUAL = [
    {"name": "threshold", "above": 0.0},
    {"name": "threshold", "above": 0.6},
    {"name": "threshold", "above": 1.0},
    {"name": "threshold", "above": 0.5, "by": "planner"},
    {"name": "entropy_bounded", "gamma": 0.0},
    {"name": "entropy_bounded", "gamma": 0.6},
    {"name": "entropy_bounded", "gamma": 100.0},
    {"name": "remdm", "steps": 4, "eta": 0.0},
    {"name": "remdm", "steps": 4, "eta": 0.4},
    {"name": "remdm", "steps": 4, "eta": 1.0},
    {"name": "remdm", "steps": 3, "eta": 0.7, "strategy": "rescale"},
    {"name": "remdm", "steps": 4, "eta": 0.4, "strategy": "conf"},
    {"name": "remdm", "steps": 4, "eta": 1.0, "strategy": "conf"},
    {"name": "remdm", "steps": 5, "eta": 0.5, "strategy": "loop", "t_on": 0.8, "t_off": 0.2, "alpha_on": 0.6},
    {"name": "corrector", "steps": 5, "fraction": 0.5},
    {"name": "corrector", "steps": 4, "fraction": 1.0},
]

CASES = laws.cases("sampler") + [
    case for spec in UNUSUAL for case in laws.cases_of("sampler", registry.build("sampler", spec))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sampler_keeps_law(case):
    for law in case.run():
        law.require()
