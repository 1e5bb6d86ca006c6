"""Every registered network through every law of networks."""

from __future__ import annotations

import pytest

from unmask import laws


@pytest.mark.parametrize("case", laws.cases("model"), ids=str)
def test_network_keeps_law(case):
    for law in case.run():
        law.require()
