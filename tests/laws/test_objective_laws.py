"""Every registered objective through every law of objectives."""

from __future__ import annotations

import pytest

from unmask import laws


@pytest.mark.parametrize("case", laws.cases("objective"), ids=str)
def test_objective_keeps_law(case):
    for law in case.judge():
        law.require()
