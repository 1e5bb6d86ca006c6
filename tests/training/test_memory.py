"""A batch that does not fit: what is found by trying, and the accumulation that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.test_step import BATCH, LENGTH, feed, stepper
from unmask.errors import LoneError, UnmaskError
from unmask.objectives.base import LossTerms
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.training.data_feed import parts_of
from unmask.training.memory import accumulation_for, largest_that_fits, measure_or_explain, step_or_explain
from unmask.training.step import TrainStep
from unmask.training.validation import measure

ALONE = SimpleNamespace(processes=1, ended=False, share=(0, 1), sum_array=lambda values: values)


def crowded(room: int, accumulation: int = 1, error: RuntimeError | None = None) -> TrainStep:
    """A stepper on a device that has room for so many sequences at a time."""
    return full_above(lambda one: room, accumulation, error)


def full_above(room: Callable[[TrainStep], int], accumulation: int = 1, error: RuntimeError | None = None) -> TrainStep:
    one = stepper(Subs(), accumulation)
    terms = one.terms

    def guarded(batch: Batch, *rest: Any, **options: Any) -> LossTerms:
        if len(batch.input_ids) > room(one):
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        return terms(batch, *rest, **options)

    one.terms = guarded
    return one


@pytest.mark.parametrize("room", [0, 1, 4, 6, 7])
def test_the_largest_is_found_exactly(room):
    (micro_batch,) = feed(1).micro_batches(0)
    assert largest_that_fits(crowded(room), micro_batch) == room


@pytest.mark.parametrize("batch_size", range(1, 25))
def test_accumulation_is_the_smallest_that_fits(batch_size):
    for largest in range(1, batch_size + 1):
        fitting = [k for k in range(1, batch_size + 1) if max(map(len, parts_of(batch_size, k))) <= largest]
        assert accumulation_for(batch_size, largest) == fitting[0]


@pytest.mark.parametrize(("room", "accumulation"), [(5, 2), (3, 3)])
def test_the_sentence_names_what_fits(room, accumulation):
    one = crowded(room)
    with pytest.raises(UnmaskError) as caught:
        step_or_explain(one, feed(1).micro_batches(0), 0, ALONE)
    assert str(caught.value) == (
        f"A micro-batch of {BATCH} sequences of {LENGTH} tokens does not fit into the memory of this machine; "
        f"the largest that does is {room}, so train with training.accumulation={accumulation}, "
        f"which keeps the batch of {BATCH}."
    )
    again = crowded(room, accumulation)
    step_or_explain(again, feed(accumulation).micro_batches(0), 0, ALONE)


def test_uneven_micro_batches_are_cut_further():
    """Eight sequences in three are 3, 3 and 2; with room for two, four are needed, and the batch stays eight."""
    with pytest.raises(UnmaskError, match=r"of 3 seq.* does is 2, .*training\.accumulation=4, .* batch of 8\."):
        step_or_explain(crowded(2, 3), feed(3).micro_batches(0), 0, ALONE)


def test_gradients_of_earlier_micro_batches_take_room_too():
    """Two sequences fit while a gradient waits; with accumulation one always does."""
    one = full_above(lambda one: 2 if any(p.grad is not None for p in one.parameters.values()) else 4)
    assert largest_that_fits(one, feed(1).micro_batches(0)[0]) == 2
    assert all(parameter.grad is None for parameter in one.parameters.values())


def test_recordings_are_let_go_before_anything_is_tried():
    """As long as they hold their memory one sequence fits, and without them five do."""
    held = ["a recording"]
    one = full_above(lambda one: 1 if held else 5)
    one._recorder = SimpleNamespace(forget=held.clear)
    assert largest_that_fits(one, feed(1).micro_batches(0)[0]) == 5


def test_moments_that_the_first_step_makes_take_room_too():
    one = full_above(lambda one: 1 if one.optimizer.optimizer.state else 3)
    assert largest_that_fits(one, feed(1).micro_batches(0)[0]) == 1


@pytest.mark.parametrize("error", ["DefaultCPUAllocator: can't allocate memory: you", "CUDA error: out of memory"])
def test_other_words_for_it(error):
    with pytest.raises(UnmaskError, match="largest that does is 5"):
        step_or_explain(crowded(5, error=RuntimeError(error)), feed(1).micro_batches(0), 0, ALONE)


def test_not_even_one():
    with pytest.raises(UnmaskError, match=rf"Not even one sequence of {LENGTH} tokens.*data\.length.*training\.shard"):
        step_or_explain(crowded(0), feed(1).micro_batches(0), 0, ALONE)


def test_other_errors_are_what_they_are():
    with pytest.raises(RuntimeError, match="no kernel"):
        step_or_explain(crowded(0, error=RuntimeError("no kernel")), feed(1).micro_batches(0), 0, ALONE)


@dataclasses.dataclass
class Crew:
    """Several processes, seen by number 3, of which one may have spoken already."""

    speaks: bool = True
    ended: bool = False
    processes: int = 8
    process: int = 3

    def end(self) -> bool:
        return self.speaks


def test_among_several_processes_nothing_is_tried():
    one = crowded(3, 2)
    with pytest.raises(LoneError, match=r"of 4 sequences.* \(process 3\); raise training\.accumulation \(it is 2\)"):
        step_or_explain(one, feed(2).micro_batches(0), 0, Crew())
    with pytest.raises(SystemExit) as caught:
        step_or_explain(one, feed(2).micro_batches(0), 0, Crew(speaks=False))
    assert caught.value.code == 2
    with pytest.raises(LoneError, match="Not even one"):
        step_or_explain(crowded(0, 8), feed(8).micro_batches(0), 0, Crew())


def test_a_connection_that_the_other_end_has_closed_is_not_worth_a_word():
    with pytest.raises(SystemExit) as caught:
        step_or_explain(crowded(0, error=RuntimeError("closed by peer")), feed(1).micro_batches(0), 0, Crew(ended=True))
    assert caught.value.code == 2


@pytest.mark.parametrize("room", [1, 3, 40])
def test_a_validation_that_does_not_fit_is_made_of_fewer_rows_at_a_time(room):
    rows = feed(1).rows
    expected = measure(ALONE, stepper(Subs()), rows)
    found = measure(ALONE, crowded(room), rows)
    assert found.nats == pytest.approx(expected.nats, rel=1e-6)
    assert (found.tokens, found.draws) == (expected.tokens, expected.draws)


def test_a_validation_of_one_row_that_does_not_fit_is_one_sentence():
    with pytest.raises(UnmaskError) as caught:
        measure(ALONE, crowded(0), feed(1).rows)
    assert str(caught.value) == (
        f"The validation of one sequence of {LENGTH} tokens does not fit into the memory of this machine; "
        "lower data.length or take a smaller model."
    )
    with pytest.raises(RuntimeError, match="no kernel"):
        measure(ALONE, crowded(0, error=RuntimeError("no kernel")), feed(1).rows)


def test_among_several_processes_a_validation_is_not_tried_again():
    calls = []

    def full(count: int) -> None:
        calls.append(count)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(LoneError, match="The validation of 32 sequences of 7 tokens at a time does not fit"):
        measure_or_explain(full, 32, 7, stepper(Subs()), Crew())
    assert calls == [32]
    with pytest.raises(SystemExit):
        measure_or_explain(full, 32, 7, stepper(Subs()), Crew(speaks=False))
