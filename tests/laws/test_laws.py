"""Every registered schedule, objective, sampler and model keeps every law, also with unusual values of its options."""

from __future__ import annotations

import pytest

from unmask import laws, registry

UNUSUAL = {
    "schedule": [
        {"name": "polynomial", "power": 0.5},
        {"name": "polynomial", "power": 3.0},
        {"name": "linear-sigma", "sigma_max": 1.0},
        {"name": "linear-sigma", "sigma_max": 25.0},
        {"name": "geometric", "sigma_min": 1e-4, "sigma_max": 12.0},
        {"name": "geometric", "sigma_min": 0.1, "sigma_max": 2.0},
    ],
    "sampler": [
        {"name": "block", "size": 1},
        {"name": "block", "size": 3, "steps": 2, "order": "entropy"},
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
        {"name": "remdm", "steps": 4, "eta": 0.4, "strategy": "cap_conf"},
        {"name": "remdm", "steps": 4, "eta": 1.0, "strategy": "cap_conf"},
        {"name": "remdm-conf", "steps": 4},
        {"name": "remdm-conf", "steps": 4, "schedule": "cosine"},
        {"name": "remdm", "steps": 5, "eta": 0.5, "strategy": "loop", "t_on": 0.8, "t_off": 0.3, "alpha_on": 0.6},
        {"name": "corrector", "steps": 5, "fraction": 0.5},
        {"name": "corrector", "steps": 4, "fraction": 1.0},
    ],
}

CASES = [case for axis in laws.AXES for case in laws.cases(axis)] + [
    case
    for axis, specs in UNUSUAL.items()
    for spec in specs
    for case in laws.cases_of(axis, registry.build(axis, spec))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_law_holds(case):
    for result in case.run():
        result.require()
