"""What noise makes of a batch ahead of time: rows, their padding, and what padding must not change."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from unmask import registry
from unmask.laws.tables import random_causal_table, random_table
from unmask.objectives.base import ROW_BUCKETS, Corruption, Noise
from unmask.process import Batch
from unmask.schedules import Cosine, LogLinear, draw_times
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


def test_rows_are_the_predicted_places_in_order():
    made = corruption(torch.tensor([[True, False, True], [False, False, True]]))
    assert made.rows.tolist() == [0, 2, 5]
    assert made.row_weight.tolist() == [1.0, 1.0, 2.0]
    assert made.scatter(torch.tensor([7.0, 8.0, 9.0])).tolist() == [[7.0, 0.0, 8.0], [0.0, 0.0, 9.0]]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_padded_rows_come_in_few_numbers_and_name_no_place_twice(share):
    torch.manual_seed(0)
    predicted = torch.rand(8, 32) < share
    plain, padded = corruption(predicted), corruption(predicted).pad_rows()
    count = int(predicted.sum())
    unit = predicted.numel() // ROW_BUCKETS
    assert len(padded.rows) % unit == unit // 2 or len(padded.rows) == predicted.numel()
    assert count <= len(padded.rows) <= min(predicted.numel(), count + predicted.numel() // ROW_BUCKETS)
    assert len(padded.rows.unique()) == len(padded.rows)
    assert torch.equal(padded.rows[:count], plain.rows)
    assert padded.row_mask.sum() == count
    assert not padded.row_weight[count:].any()


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("length", [64, 48])
def test_batches_of_stratified_times_have_one_number_of_rows(schedule, length):
    objective, size = registry.build("objective", "subs"), 128
    batch = Batch.of(torch.zeros(size, length, dtype=torch.long))
    share, counts = predicted_share(objective, schedule), Counter()
    for step in range(24):
        sample = torch.arange(size)
        noise = Noise.draw(1, step, size * step + sample, draw_times(1, step, sample, size), length)
        made = objective.corrupt(batch, schedule, noise, random_table().config)
        counts[len(made.pad_rows(share).rows)] += 1
    assert counts.most_common(1)[0][1] >= 22


def test_a_batch_smaller_than_the_budgets_is_not_padded():
    made = corruption(torch.tensor([[True, False, True]]))
    assert torch.equal(made.pad_rows().rows, made.rows)


@pytest.mark.parametrize("spec", OBJECTIVES, ids=str)
@pytest.mark.parametrize("t", [0.0, 0.4, 1.0])
def test_padding_changes_neither_values_nor_gradients(spec, t):
    objective = registry.build("objective", spec)
    text = torch.tensor([2, 0, 3]).expand(24, -1)
    frozen = torch.zeros(24, 3, dtype=torch.bool)
    frozen[:5, 1] = True
    batch = Batch.of(text, frozen=frozen)
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


def test_every_tensor_is_put_through_a_function():
    made = corruption(torch.tensor([[True, False]])).map(lambda tensor: tensor + 1)
    assert made.rows.tolist() == [1]
    assert made.mask_rate.tolist() == [1.5]
    assert made.mask_rate_s is None
