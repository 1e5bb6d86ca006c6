"""Forward and backward pass of a micro-batch as one recorded CUDA graph: one launch in place of hundreds.

Small networks and small batches are bound by the CPU that launches their kernels; a recording is not. Every tensor that
goes in or comes out keeps its place in memory: inputs are copied in, gradients are added up where they always are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from torch import Tensor

from unmask.graphs import Recording
from unmask.objectives.base import LossTerms
from unmask.training.data import MicroBatch

CALLS_BEFORE_RECORDING = 2
MOST_SHAPES = 4
"""Recordings that are kept; what is rarer than that runs as it is."""

Work = Callable[[MicroBatch, Tensor], LossTerms]


class Recorder:
    """Does `work(micro_batch, scale)`, which leaves gradients in the parameters, by recordings where shapes repeat.

    Gradients must be zeroed where they lie between steps, never dropped.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._seen: dict[Any, int] = {}
        self._recordings: dict[Any, _Passes] = {}

    def __call__(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        kinds = [(name, tensor.shape, tensor.dtype) for name, tensor in _tensors(micro_batch).items()]
        shapes = (*kinds, micro_batch.batch.has_pads)
        if shapes not in self._recordings and not self._is_due(shapes):
            return self._work(micro_batch, scale)
        if shapes not in self._recordings:
            beside = next((kept.recording for kept in self._recordings.values()), None)
            self._recordings[shapes] = _Passes(self._work, micro_batch, scale, beside)
        return self._recordings[shapes](micro_batch, scale)

    def forget(self) -> None:
        """Let go of all recordings, and of the memory that they hold from one call to the next."""
        self._recordings.clear()
        self._seen.clear()

    def _is_due(self, shapes: Any) -> bool:
        """Whether this shape has been seen often enough to be worth a recording, and everything it needs is made."""
        self._seen[shapes] = self._seen.get(shapes, 0) + 1
        return self._seen[shapes] > CALLS_BEFORE_RECORDING and len(self._recordings) < MOST_SHAPES


class _Passes:
    """Both passes of micro-batches of one shape, in the memory of those of another.

    They have been made before, so that nothing is warmed up. Graphs of theirs that are garbage by now go first: what
    adds up gradients would live on in them with another stream (see `Stepper`).
    """

    def __init__(self, work: Work, micro_batch: MicroBatch, scale: Tensor, beside: Recording | None) -> None:
        self._micro_batch = micro_batch.each(Tensor.clone)
        self._scale = scale.clone()
        gc.collect()
        self.recording = Recording(lambda: work(self._micro_batch, self._scale), warm_up=0, beside=beside)

    def __call__(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        given = _tensors(micro_batch)
        for name, kept in _tensors(self._micro_batch).items():
            kept.copy_(given[name])
        self._scale.copy_(scale)
        return self.recording()


def _tensors(micro_batch: MicroBatch) -> dict[str, Tensor]:
    """What a pass reads, by name."""
    read = {**vars(micro_batch.batch), **(vars(micro_batch.corruption) if micro_batch.corruption else {})}
    return {name: value for name, value in read.items() if isinstance(value, Tensor)}
