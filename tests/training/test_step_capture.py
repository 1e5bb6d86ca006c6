"""Recorded training passes, with a stand-in for CUDA graphs."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from unmask.objectives.base import Corruption, LossTerms, Noise
from unmask.process import Batch
from unmask.training import step
from unmask.training.data_feed import MicroBatch
from unmask.training.step import MOST_SHAPES, CapturedPasses

V, L = 11, 12
ONE = torch.tensor(1.0)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs captured; a stand-in runs the function at every replay."""
    made: list[Any] = []

    class Graph:
        def __init__(self, function: Any, warm_up: int = 2, pool_of: Any = None) -> None:
            self.function = function
            made.append(self)

        def __call__(self) -> Any:
            return self.function()

    monkeypatch.setattr(step, "CudaGraph", Graph)
    return made


def micro_batch(rows: int, count: int) -> MicroBatch:
    predicted = torch.arange(rows * L).view(rows, L) < count
    made = Corruption.of(predicted, torch.rand(rows), torch.rand(rows))
    return MicroBatch(Batch.of(torch.randint(V, (rows, L))), Noise(torch.rand(rows), torch.rand(rows, L)), made)


def run(one: MicroBatch, scale: torch.Tensor) -> LossTerms:
    """A loss that depends on all inputs."""
    value = one.batch.input_ids.sum() * scale + one.corruption.rows.sum() + one.corruption.mask_rate.sum()
    return LossTerms(*[value] * 6)


def test_repeated_shapes_are_captured_and_results_unchanged(captured):
    passes = CapturedPasses(run)
    for call in range(9):
        one, scale = micro_batch(2 + call % 2, count=5), torch.tensor(float(call))
        assert passes(one, scale).loss == run(one, scale).loss
    assert len(captured) == 2
    other = micro_batch(2, count=6)
    assert passes(other, scale).loss == run(other, scale).loss
    assert len(captured) == 2


def test_the_number_of_graphs_is_limited(captured):
    passes = CapturedPasses(run)
    for count in range(MOST_SHAPES + 3):
        for _ in range(4):
            passes(micro_batch(2, count), ONE)
    assert len(captured) == MOST_SHAPES


def test_clearing_frees_the_graphs_and_starts_over(captured):
    passes = CapturedPasses(run)
    for _ in range(4):
        passes(micro_batch(2, 5), ONE)
    held = weakref.ref(captured.pop())
    passes.clear()
    gc.collect()
    assert held() is None
    for made in (0, 0, 1, 1):
        passes(micro_batch(2, 5), ONE)
        assert len(captured) == made


def test_graphs_are_distinguished_by_padding_and_by_names_and_dtypes_of_inputs(captured):
    """Whether attention uses a mask is decided at capture, not at replay."""

    def signature(one: MicroBatch, scale: torch.Tensor) -> LossTerms:
        weight, before, rate = one.corruption.weight, one.corruption.mask_rate_s, one.corruption.mask_rate
        sums = [0.0 if x is None else float(x.sum()) for x in (weight, before)]
        value = sums[0] - sums[1] + (rate.dtype == torch.float64) + 10.0 * one.batch.has_pads
        return LossTerms(*[torch.tensor(value)] * 6)

    passes, plain = CapturedPasses(signature), micro_batch(2, 5)
    corruption = replace(plain.corruption, weight=None, mask_rate_s=None, mask_rate=torch.full((2,), 0.5))
    kinds = [
        replace(plain, corruption=replace(corruption, weight=torch.ones(2))),
        replace(plain, corruption=replace(corruption, mask_rate_s=torch.ones(2))),
        replace(plain, corruption=replace(corruption, weight=torch.ones(2), mask_rate=torch.full((2,), 0.5).double())),
    ]
    kinds.append(replace(kinds[0], batch=replace(plain.batch, has_pads=True)))
    for one in kinds * 4:
        assert passes(one, ONE).loss == signature(one, ONE).loss
    assert len(captured) == len(kinds)
