"""Batches and noise depend on the step and the place in the global batch alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import rows_of_texts
from unmask.data.length_policies import Packed
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.training.data_feed import DataFeed, MicroBatch, split_batch

LENGTH = 8


def rows(number: int) -> Rows:
    """Row i holds the number i, LENGTH times."""
    return rows_of_texts(Packed(), [np.arange(number).repeat(LENGTH).tolist()], LENGTH, eos_id=None)


def feed(accumulation: int = 1, batch_size: int = 16, rank: int = 0, world_size: int = 1) -> DataFeed:
    places = split_batch(batch_size, accumulation, rank, world_size)
    return DataFeed(rows(40), batch_size, places, seed=3, data_seed=5)


def joined(micro_batches: list[MicroBatch]) -> list[torch.Tensor]:
    return [
        torch.cat([m.batch.input_ids for m in micro_batches]),
        torch.cat([m.noise.t for m in micro_batches]),
        torch.cat([m.noise.u for m in micro_batches]),
    ]


@pytest.mark.parametrize(("accumulation", "processes"), [(2, 1), (3, 1), (16, 1), (2, 2)])
def test_micro_batches_and_processes_share_one_global_batch(accumulation: int, processes: int) -> None:
    whole = joined(feed(1).micro_batches(7))
    feeds = [feed(accumulation, rank=rank, world_size=processes) for rank in range(processes)]
    cut = joined([micro_batch for one in feeds for micro_batch in one.micro_batches(7)])
    assert all(torch.equal(one, other) for one, other in zip(whole, cut, strict=True))


def test_times_of_every_micro_batch_are_stratified() -> None:
    for micro_batch in feed(4).micro_batches(2):
        assert sorted((micro_batch.noise.t * 4).long().tolist()) == [0, 1, 2, 3]


def test_times_are_independent_if_requested() -> None:
    independent = replace(feed(), batch_size=512, places=split_batch(512, 1), independent_times=True)
    (micro_batch,) = independent.micro_batches(2)
    assert micro_batch.noise.t.sort().values.diff().max() > 3 / 512


def test_an_epoch_visits_every_row_once_and_the_next_in_another_order() -> None:
    ids = torch.cat([joined(feed(batch_size=20).micro_batches(step))[0][:, 0] for step in range(4)])
    first, second = ids[:40].tolist(), ids[40:].tolist()
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


def test_prefetched_steps_are_the_requested_ones() -> None:
    made = list(feed(2).steps(3, 8))
    assert len(made) == 5
    for step, micro_batches in enumerate(made, start=3):
        expected = joined(feed(2).micro_batches(step))
        assert all(torch.equal(one, other) for one, other in zip(expected, joined(micro_batches), strict=True))


def test_samples_are_located_in_the_data() -> None:
    second = feed(2, rank=1, world_size=2)
    own = joined(second.micro_batches(7))[0][:, 0].tolist()
    assert [second.locate(7, place) for place in range(8)] == [(7 * 16 + 8 + i, row) for i, row in enumerate(own)]


def test_steps_differ_in_rows_times_and_masks() -> None:
    one, other = joined(feed().micro_batches(0)), joined(feed().micro_batches(1))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_more_micro_batches_than_sequences_is_refused() -> None:
    with pytest.raises(UnmaskError, match=r"batch of 4 cannot be cut into 5 micro-batches; .*accumulation"):
        split_batch(4, 5)


def test_samples_are_read_on_the_opposite_strand_with_the_given_probability() -> None:
    complements = np.arange(40)[::-1].copy()
    plain = replace(feed(4, batch_size=400), rows=rows(40))
    turned = replace(plain, reverse_complement=0.3, complements=complements)
    before, after = (joined(one.micro_batches(3)) for one in (plain, turned))
    flipped = (before[0] != after[0]).all(dim=1)
    assert torch.equal(after[0][flipped], torch.from_numpy(complements)[before[0][flipped]].flip(1))
    assert torch.equal(after[0][~flipped], before[0][~flipped])
    assert abs(flipped.float().mean() - 0.3) < 5 * (0.3 * 0.7 / 400) ** 0.5
    assert torch.equal(before[2], after[2]), "the noise is the same"
    other_step = (joined(plain.micro_batches(4))[0] != joined(turned.micro_batches(4))[0]).all(dim=1)
    assert not torch.equal(flipped, other_step)
