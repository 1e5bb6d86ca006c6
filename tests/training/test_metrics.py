"""The sums behind a log line, and the log itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from unmask.objectives.base import LossTerms
from unmask.training.log import Log, read_log
from unmask.training.metrics import BUCKETS, Meter

CPU = torch.device("cpu")


def terms(mask_rate: list[float] | None, nll: torch.Tensor, masked: torch.Tensor) -> LossTerms:
    counted = torch.ones_like(masked)
    zero = torch.zeros_like(nll)
    if mask_rate is None:
        return LossTerms(zero, nll, zero, counted, nll, nll.sum())
    return LossTerms(2 * nll, zero, zero, counted, nll, nll.sum(), masked, torch.tensor(mask_rate))


def test_cross_entropy_by_mask_rate() -> None:
    masked = torch.tensor([[True, True, False], [True, False, False], [True, True, True], [False, False, True]])
    nll = torch.arange(12.0).reshape(4, 3) * masked
    meter = Meter(CPU)
    meter.add(terms([0.05, 0.59, 1.0, 0.57], nll, masked))
    meter.end_step(1, torch.tensor(1.0), torch.tensor(0.25))
    reading = meter.read()
    assert reading.cross_entropy[0] == pytest.approx((0 + 1) / 2)
    assert reading.cross_entropy[5] == pytest.approx((3 + 11) / 2)
    assert reading.cross_entropy[9] == pytest.approx((6 + 7 + 8) / 3)
    assert reading.cross_entropy[1] is None
    assert reading.nats == pytest.approx(2 * (0 + 1 + 3 + 6 + 7 + 8 + 11))
    assert reading.tokens == 12
    assert reading.as_dict()["bits_per_token"] == pytest.approx(reading.nats / 12 / math.log(2))
    assert reading.as_dict()["grad_norm"] == 0.25
    meter.reset()
    assert meter.read().tokens == 0


def test_without_masks_there_are_no_buckets() -> None:
    meter = Meter(CPU)
    meter.add(terms(None, torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)))
    assert meter.read().cross_entropy == [None] * BUCKETS


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_the_first_step_that_is_not_finite_is_kept(loss: float, norm: float) -> None:
    meter = Meter(CPU)
    fine, ruined = torch.ones(3, 2), torch.tensor([[1.0, 1.0], [1.0, math.inf], [math.nan, 1.0]])
    last = torch.tensor([[math.nan, 1.0], [1.0, 1.0], [1.0, 1.0]])

    def step(number: int, nats: torch.Tensor, loss: float, norm: float) -> None:
        for part in nats.split(2):
            meter.add(terms(None, part, torch.ones_like(part, dtype=torch.bool)))
        meter.end_step(number, torch.tensor(loss), torch.tensor(norm))

    step(1, fine, 1.0, 0.25)
    assert meter.first_bad_step() is None
    assert meter.ruined_places() == []
    step(2, ruined, loss, norm)
    step(3, last, math.nan, math.nan)
    step(4, fine, 1.0, 1.0)
    assert meter.first_bad_step() == 2
    assert meter.ruined_places() == [1, 2]
    assert meter.ruin() == pytest.approx((loss, norm, 0.25), nan_ok=True)


def test_log_is_json_and_can_be_cut_back(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for step in (2, 4, 6):
        log.write({"step": step, "validation": {"bits_per_byte": math.nan, "nats": 1.5}})
    with log.path.open("a") as file:
        file.write('{"step": 7, "lo')
    log.truncate(4)
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert lines == [{"step": step, "validation": {"bits_per_byte": None, "nats": 1.5}} for step in (2, 4)]
    assert read_log(tmp_path) == lines
    assert read_log(tmp_path / "elsewhere") == []
