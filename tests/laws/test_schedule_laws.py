"""Every registered schedule through every law of schedules, and those with options at unusual values of them."""

from __future__ import annotations

import pytest

from unmask import laws, registry

UNUSUAL = [
    {"name": "polynomial", "power": 0.5},
    {"name": "polynomial", "power": 3.0},
    {"name": "linear-sigma", "sigma_max": 1.0},
    {"name": "linear-sigma", "sigma_max": 25.0},
    {"name": "geometric", "sigma_min": 1e-4, "sigma_max": 12.0},
    {"name": "geometric", "sigma_min": 0.1, "sigma_max": 2.0},
]

CASES = laws.cases("schedule") + [
    case for spec in UNUSUAL for case in laws.cases_of("schedule", registry.build("schedule", spec))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_schedule_keeps_law(case):
    for law in case.run():
        law.require()
