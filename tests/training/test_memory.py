"""Out of memory: the largest micro-batch that fits is found, and the accumulation that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.test_step import BATCH, LENGTH, feed, make_step
from unmask.errors import LoneError, UnmaskError
from unmask.objectives.base import LossTerms
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.training.memory import largest_that_fits, measure_or_explain, step_or_explain
from unmask.training.step import TrainStep
from unmask.training.validation import measure_bound

ALONE = SimpleNamespace(rank=0, world_size=1, has_failed=False, sum=lambda tensors: tensors)


@dataclasses.dataclass
class Several:
    """Eight processes, seen from rank 3."""

    first_to_fail: bool = True
    has_failed: bool = False
    world_size: int = 8
    rank: int = 3

    def report_failure(self) -> bool:
        return self.first_to_fail


def limited(
    room: int | Callable[[TrainStep], int], accumulation: int = 1, error: RuntimeError | None = None
) -> TrainStep:
    """A train step on a device with memory for `room` sequences."""
    one = make_step(Subs(), accumulation)
    terms = one.terms

    def guarded(batch: Batch, *rest: Any, **options: Any) -> LossTerms:
        if len(batch.input_ids) > (room(one) if callable(room) else room):
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        return terms(batch, *rest, **options)

    one.terms = guarded
    return one


@pytest.mark.parametrize(
    ("room", "largest"),
    [
        (0, 0),
        (1, 1),
        (4, 4),
        (6, 6),
        (7, 7),
        (lambda one: 4 if next(iter(one.parameters.values())).grad is None else 2, 2),
        (lambda one: 1 if one.optimizer.optimizer.state else 3, 1),
    ],
)
def test_the_largest_that_fits_is_found(room, largest):
    one = limited(room)
    assert largest_that_fits(one, feed(1).micro_batches(0)[0]) == largest
    assert all(parameter.grad is None for parameter in one.parameters.values())


def test_a_recording_is_freed_before_anything_is_tried():
    held = ["a graph"]
    one = limited(lambda one: 1 if held else 5)
    one._captured_passes = SimpleNamespace(clear=held.clear)
    assert largest_that_fits(one, feed(1).micro_batches(0)[0]) == 5


@pytest.mark.parametrize(("room", "accumulation"), [(5, 2), (3, 3)])
def test_the_message_names_what_fits(room, accumulation):
    with pytest.raises(UnmaskError) as caught:
        step_or_explain(limited(room), feed(1).micro_batches(0), 0, ALONE)
    assert str(caught.value) == (
        f"A micro-batch of {BATCH} sequences of {LENGTH} tokens does not fit into the memory of this machine; "
        f"the largest that does is {room}, so train with training.accumulation={accumulation}, "
        f"which keeps the batch of {BATCH}."
    )
    step_or_explain(limited(room, accumulation), feed(accumulation).micro_batches(0), 0, ALONE)


@pytest.mark.parametrize(
    ("room", "accumulation", "error", "message"),
    [
        # eight sequences in three micro-batches are 3, 3 and 2
        (2, 3, None, r"of 3 seq.* does is 2, .*training\.accumulation=4, .* batch of 8\."),
        (0, 1, None, rf"Not even one sequence of {LENGTH} tokens.*data\.length.*training\.shard"),
        (5, 1, "DefaultCPUAllocator: can't allocate memory: you", "largest that does is 5"),
        (5, 1, "CUDA error: out of memory", "largest that does is 5"),
    ],
)
def test_every_way_to_run_out_of_memory_is_explained(room, accumulation, error, message):
    one = limited(room, accumulation, RuntimeError(error) if error else None)
    with pytest.raises(UnmaskError, match=message):
        step_or_explain(one, feed(accumulation).micro_batches(0), 0, ALONE)


def test_other_errors_are_passed_on():
    broken = limited(0, error=RuntimeError("no kernel"))
    with pytest.raises(RuntimeError, match="no kernel"):
        step_or_explain(broken, feed(1).micro_batches(0), 0, ALONE)
    with pytest.raises(RuntimeError, match="no kernel"):
        measure_bound(ALONE, broken, feed(1).rows)


def test_among_several_processes_nothing_is_tried():
    one = limited(3, 2)
    with pytest.raises(LoneError, match=r"of 4 sequences.* \(process 3\); raise training\.accumulation \(it is 2\)"):
        step_or_explain(one, feed(2).micro_batches(0), 0, Several())
    with pytest.raises(SystemExit, match="2"):
        step_or_explain(one, feed(2).micro_batches(0), 0, Several(first_to_fail=False))
    with pytest.raises(LoneError, match="Not even one"):
        step_or_explain(limited(0, 8), feed(8).micro_batches(0), 0, Several())
    lost = limited(0, error=RuntimeError("closed by peer"))
    with pytest.raises(SystemExit, match="2"):
        step_or_explain(lost, feed(1).micro_batches(0), 0, Several(has_failed=True))


def test_a_validation_that_does_not_fit_uses_smaller_batches():
    rows = feed(1).rows.spread(5)
    expected = measure_bound(ALONE, make_step(Subs()), rows)
    for room in (1, 3, 40):
        found = measure_bound(ALONE, limited(room), rows)
        assert found.nats == pytest.approx(expected.nats, rel=1e-6)
        assert (found.tokens, found.draws) == (expected.tokens, expected.draws)
    with pytest.raises(UnmaskError, match=f"one sequence of {LENGTH} tokens at a time does not fit .* lower data.len"):
        measure_bound(ALONE, limited(0), rows)


def test_among_several_processes_a_validation_is_not_tried_again():
    calls = []

    def full(count: int) -> None:
        calls.append(count)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(LoneError, match="The validation of 32 sequences of 7 tokens at a time does not fit"):
        measure_or_explain(full, 32, 7, make_step(Subs()), Several())
    assert calls == [32]
    with pytest.raises(SystemExit):
        measure_or_explain(full, 32, 7, make_step(Subs()), Several(first_to_fail=False))
