"""Noise, corruptions and the rows that pad them, and the weights of SUBS."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from unmask import registry
from unmask.laws.tables import random_causal_table, random_table
from unmask.objectives.base import ROW_BUCKETS, Corruption, Noise
from unmask.objectives.d3pm import D3PM
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import Cosine, Geometric, LogLinear, draw_times
from unmask.training.metrics import predicted_share

OBJECTIVES = [
    {"name": "subs"},
    {"name": "subs", "weight": "flat"},
    {"name": "subs", "steps": 4},
    {"name": "mask-count"},
    {"name": "d3pm", "steps": 4},
    {"name": "sedd"},
    {"name": "ar"},
]


def corruption(predicted: torch.Tensor) -> Corruption:
    return Corruption.of(predicted, torch.full((len(predicted),), 0.5), torch.arange(1.0, len(predicted) + 1))


def test_noise_depends_only_on_the_sample():
    noise = Noise.draw(seed=3, step=5, sample=torch.tensor([9, 2]), t=torch.tensor([0.1, 0.2]), length=4)
    for row, sample in enumerate((9, 2)):
        for position in range(4):
            assert noise.u[row, position] == uniform(3, Purpose.MASK, 5, sample, position)
    assert len(noise.u.unique()) == 8


def test_rows_are_the_predicted_positions_in_order():
    made = corruption(torch.tensor([[True, False, True], [False, False, True]]))
    assert made.rows.tolist() == [0, 2, 5]
    assert made.row_weight.tolist() == [1.0, 1.0, 2.0]
    assert made.scatter(torch.tensor([7.0, 8.0, 9.0])).tolist() == [[7.0, 0.0, 8.0], [0.0, 0.0, 9.0]]
    moved = made.map(lambda tensor: tensor + 1)
    assert moved.rows.tolist() == [1, 3, 6]
    assert moved.mask_rate.tolist() == [1.5, 1.5]
    assert moved.mask_rate_s is None
    assert torch.equal(made.pad_rows().rows, made.rows), "a batch smaller than the buckets is not padded"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_padding_rows_round_the_number_of_rows_and_are_distinct(share):
    torch.manual_seed(0)
    predicted = torch.rand(8, 32) < share
    plain, padded = corruption(predicted), corruption(predicted).pad_rows()
    count, unit = int(predicted.sum()), predicted.numel() // ROW_BUCKETS
    assert len(padded.rows) % unit == unit // 2 or len(padded.rows) == predicted.numel()
    assert count <= len(padded.rows) <= min(predicted.numel(), count + unit)
    assert len(padded.rows.unique()) == len(padded.rows)
    assert torch.equal(padded.rows[:count], plain.rows)
    assert padded.row_mask.sum() == count
    assert not padded.row_weight[count:].any()


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("length", [64, 48])
def test_batches_with_low_discrepancy_times_have_the_same_number_of_rows(schedule, length):
    objective, size = Subs(), 128
    batch = Batch.of(torch.zeros(size, length, dtype=torch.long))
    share, counts = predicted_share(objective, schedule), Counter()
    for step in range(24):
        sample = torch.arange(size)
        noise = Noise.draw(1, step, size * step + sample, draw_times(1, step, sample, size), length)
        made = objective.corrupt(batch, schedule, noise, random_table().config)
        counts[len(made.pad_rows(share).rows)] += 1
    assert counts.most_common(1)[0][1] >= 22


@pytest.mark.parametrize("spec", OBJECTIVES, ids=str)
@pytest.mark.parametrize("t", [0.0, 0.4, 1.0])
def test_padding_rows_change_neither_values_nor_gradients(spec, t):
    objective = registry.build("objective", spec)
    frozen = torch.zeros(24, 3, dtype=torch.bool)
    frozen[:5, 1] = True
    batch = Batch.of(torch.tensor([2, 0, 3]).expand(24, -1), frozen=frozen)
    noise = Noise.draw(3, 0, torch.arange(24), torch.full((24,), t), 3)
    found = []
    for pad in (False, True):
        table = random_causal_table() if objective.causal else random_table()
        table.logits.requires_grad_()
        made = objective.corrupt(batch, LogLinear(), noise, table.config)
        terms = objective.terms(table, batch, made.pad_rows() if pad else made)
        (gradient,) = torch.autograd.grad(terms.loss, table.logits, allow_unused=True, materialize_grads=True)
        found.append((terms.nelbo, terms.cross_entropy, terms.loss, gradient))
    for plain, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-6, atol=1e-6)


def test_flat_weight_trains_on_cross_entropy_and_reports_the_bound():
    noise = Noise(torch.tensor([0.6, 0.1]), torch.tensor([[0.2, 0.9, 0.3], [0.1, 0.9, 0.9]]))
    batch = Batch.of(torch.tensor([2, 0, 3]).expand(2, -1))
    flat, bound = (Subs(weight=w).loss(random_table(), batch, LogLinear(), noise) for w in ("flat", "bound"))
    assert torch.equal(flat.nelbo, bound.nelbo)
    assert flat.loss.item() == pytest.approx(flat.cross_entropy.sum().item())
    assert bound.loss.item() == pytest.approx(bound.total.item())


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Geometric()], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("objective", [Subs(steps=1000), D3PM(steps=1000)], ids=lambda objective: objective.name)
def test_the_weights_of_many_steps_do_not_cancel(objective, schedule):
    i = torch.tensor([1, 2, 10, 400, 999, 1000], dtype=torch.float64)
    noise = Noise(((i - 0.5) / 1000).float(), torch.full((6, 1), 0.5))
    rate_s, rate_t = schedule.mask_rate((i - 1) / 1000), schedule.mask_rate(i / 1000)
    made = objective.corrupt(Batch.of(torch.zeros(6, 1, dtype=torch.long)), schedule, noise, random_table().config)
    torch.testing.assert_close(made.weight.double(), 1000 * (rate_t - rate_s) / rate_t, rtol=2e-7, atol=0)
    assert {made.weight.dtype, made.mask_rate.dtype} == {torch.float32}
