"""How well a model solves items with one right answer: which are asked, in which ways, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.data.encoding import encode, encode_one
from unmask.data.length_policies import rows_of_texts
from unmask.data.puzzles import PuzzleSource
from unmask.data.rows import Flags, RowBatch, Rows
from unmask.errors import UnmaskError
from unmask.evaluation.perplexity import trained_on
from unmask.evaluation.statistics import LEVEL, Estimate, Values
from unmask.evaluation.tasks import RULES, Row, Strategy, at_once, contenders, costs, pooled, wilson
from unmask.likelihood import Progress
from unmask.pipeline import MaskedDiffusionLM
from unmask.plots.tasks import draw_puzzles
from unmask.samplers.base import Canvas, State
from unmask.samplers.options import SamplingOptions, configure_sampler

ITEMS = 1000
"""How many are asked unless told."""


def puzzles_of(lm: MaskedDiffusionLM) -> PuzzleSource:
    """The source of a checkpoint's training data, which must be one of puzzles."""
    return trained_on(lm, PuzzleSource, "puzzles", "'unmask train sudoku' or 'paths'")  # type: ignore[type-abstract]


def held_out_items(source: PuzzleSource, count: int | None = None) -> list[str]:
    """The first held-out items, as `question=answer`; some, or all if they are few, where no number is named."""
    if count is None:
        count = min(ITEMS, source.validation)
    if count > source.validation:
        raise UnmaskError(f"--count {count} asks for more than the {source.validation} held-out items that there are.")
    return list(islice(source.items(held_out=True), count))


def rows_of_items(lm: MaskedDiffusionLM, items: list[str]) -> Rows:
    """Items as a model was shown them: its length policy says what stands where, and what is given."""
    words = lm.text_processor.tokenizer
    return rows_of_texts(
        lm.config.policy,
        encode(words, items),
        lm.row_length,
        words.eos_token_id,
        words.pad_token_id,
        encode=partial(encode_one, words),
    )


def check_twin(source: PuzzleSource, twin: MaskedDiffusionLM) -> None:
    """A twin is asked the same items, so it must have learnt the same ones, and not those held out here."""
    if puzzles_of(twin) != source:
        raise UnmaskError(f"The twin '{twin.path}' was trained on other puzzles; give one of the same data.source.")


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
    way: Strategy,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Solved:
    """Let a model solve all rows; row i has the seed `seed + i`."""
    size = at_once(lm, batch_size)
    sampler = way.on(lm)
    walk = configure_sampler(sampler, SamplingOptions(RULES[way.rule]), lm.device)
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
    valid = [source.is_correct(lm.decode(ids)) for ids in written.tolist()]
    return right, open_.sum(axis=1), valid, calls, np.full(len(calls), seconds / len(calls))


def _open(table: RowBatch) -> Flags:
    """[b, L] what is asked."""
    return table.attention_mask & ~table.frozen


def figures_of(solved: Solved) -> dict[str, Estimate]:
    """Items solved, cells right (bootstrap over items), answers that break no rule, calls and seconds an item."""
    return {
        "accuracy": wilson(solved.right),
        "cells": pooled(solved.right_cells, solved.cells),
        "valid": wilson(solved.valid),
        **costs(solved.calls, solved.seconds),
    }


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw all rows."""
    draw_puzzles(contenders(rows, "accuracy"), title, path)


@dataclass
class PuzzleEvaluation:
    """The items of a task, and the rows of all who have tried them so far."""

    source: PuzzleSource
    items: list[str]
    seed: int = 0
    batch_size: int | None = None
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(
        cls, lm: MaskedDiffusionLM, count: int | None = None, seed: int = 0, batch_size: int | None = None
    ) -> PuzzleEvaluation:
        """The first `count` held-out items of what a model was trained on; 1,000 where there are as many."""
        source = puzzles_of(lm)
        return cls(source, held_out_items(source, count), seed, batch_size)

    @property
    def size(self) -> int:
        """How many items there are."""
        return len(self.items)

    def admit(self, lm: MaskedDiffusionLM) -> Rows:
        """The items as a model sees them; one that has learnt other puzzles is refused."""
        check_twin(self.source, lm)
        return rows_of_items(lm, self.items)

    def enter(self, lm: MaskedDiffusionLM, ways: Sequence[Strategy], progress: Progress | None = None) -> None:
        """Let a model solve the items in each of the ways."""
        rows = self.admit(lm)
        for way in ways:
            solved = solve(lm, self.source, rows, way, self.seed, self.batch_size, progress)
            self.rows.append(Row.of(lm, way, len(self.items), figures_of(solved)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was asked, and the rows."""
        asked = {"source": self.source.model_dump(mode="json"), "items": len(self.items), "seed": self.seed}
        return {**asked, "interval": {"level": LEVEL}, "rows": [row.as_dict() for row in self.rows]}
