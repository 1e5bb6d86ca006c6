"""A model at work on puzzles: what is given stands on the canvas, the rest is masked, and a sampler writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from unmask.data.rows import Flags, RowBatch, Rows
from unmask.data.sources.puzzle import PuzzleSource
from unmask.evaluation.contests.ways import RULES, Way, at_once
from unmask.evaluation.generation.measures import Values
from unmask.generation import MaskedDiffusionLM
from unmask.samplers.base import Canvas, State
from unmask.samplers.control import Control, walks
from unmask.tally import Progress

Answers = tuple[Any, Any, float]


@dataclass(frozen=True)
class Solved:
    """What became of n puzzles: [n] cells that were right, cells that were asked, whether the answer breaks no rule,
    network calls, and its share of the seconds of its batch."""

    right_cells: Values
    cells: Values
    valid: Values
    calls: Values
    seconds: Values

    @property
    def right(self) -> Values:
        """[n] whether every cell is."""
        return (self.right_cells == self.cells).astype(np.float64)


def solve(
    lm: MaskedDiffusionLM,
    source: PuzzleSource,
    rows: Rows,
    way: Way,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Solved:
    """Let a model solve all rows; row i has the seed `seed + i`."""
    size = at_once(lm, batch_size)
    sampler = way.on(lm)
    walk = walks(sampler, Control(RULES[way.rule]), lm.device)
    calls = min(getattr(sampler, "steps", None) or rows.length, rows.length)
    finish = partial(_finish, partial(walk, lm.ready(len(rows) * rows.length * calls)), lm)
    parts = []
    for start in range(0, len(rows), size):
        table = rows[start : start + size]
        parts.append(_judged(lm, source, table, *finish(table, seed + start)))
        if progress is not None:
            progress(len(table.input_ids))
    return Solved(*(np.concatenate(column).astype(np.float64) for column in zip(*parts, strict=True)))


def _finish(walk: Callable[[Canvas], Iterator[State]], lm: MaskedDiffusionLM, table: RowBatch, seed: int) -> Answers:
    """What a walk writes where nothing is given, [b, L], its calls [b], and the seconds it took."""
    since = time.perf_counter()
    mask = lm.denoiser.config.mask_token_id
    open_, ids, real = (torch.from_numpy(x) for x in (_open(table), table.input_ids, table.attention_mask))
    canvas = Canvas.of(ids.masked_fill(open_, mask).to(lm.device), mask, seed, real.to(lm.device))
    for state in walk(canvas):
        last = state
    written, calls = last.ids.cpu().numpy(), last.calls.cpu().numpy()
    return written, calls, time.perf_counter() - since


def _judged(
    lm: MaskedDiffusionLM, source: PuzzleSource, table: RowBatch, written: Any, calls: Any, seconds: float
) -> tuple[Any, ...]:
    """The columns of `Solved` for some rows."""
    open_ = _open(table)
    right = ((written == table.input_ids) & open_).sum(axis=1)
    valid = [source.is_right(lm.decode(ids)) for ids in written.tolist()]
    return right, open_.sum(axis=1), valid, calls, np.full(len(calls), seconds / len(calls))


def _open(table: RowBatch) -> Flags:
    """[b, L] what is asked."""
    return table.attention_mask & ~table.frozen
