"""The package still gives the results of the golden record.

By default floats may differ by rounding (another CPU, another BLAS) and slow cases are left out. With
`UNMASK_GOLDEN=exact` every case runs and every bit counts: for changes that must not change behaviour, on the machine
that wrote the record. `python -m tests.golden.record` writes it anew.
"""

from __future__ import annotations

import os
from itertools import islice

import pytest
import torch

from tests.golden import cases  # noqa: F401  (registers the cases)
from tests.golden.harness import CASES, SLOW, compute, differences, recorded

EXACT = os.environ.get("UNMASK_GOLDEN") == "exact"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the record was written on a CPU")
@pytest.mark.parametrize("name", [name for name in CASES if EXACT or name not in SLOW])
def test_golden(name: str) -> None:
    found = list(islice(differences(recorded(name), compute(name), EXACT), 20))
    assert not found, "\n".join([f"{name} differs from the record:", *found])
