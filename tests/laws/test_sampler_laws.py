"""Every registered sampler through every law of samplers."""

from __future__ import annotations

import pytest

from unmask import laws


@pytest.mark.parametrize("case", laws.cases("sampler"), ids=str)
def test_sampler_keeps_law(case):
    for law in case.judge():
        law.require()
