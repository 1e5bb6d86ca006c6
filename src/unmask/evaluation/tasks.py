"""Tasks with a right answer: decoding strategies, result rows, and the evaluation of puzzles."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch

from unmask.data.encoding import encode
from unmask.data.length_policies import SpecialTokens
from unmask.data.puzzles import PuzzleSource
from unmask.data.rows import Rows, Tokens
from unmask.data.sources import Source
from unmask.errors import UnmaskError, did_you_mean
from unmask.evaluation.statistics import (
    LEVEL,
    Estimate,
    Values,
    bootstrap_ratio,
    bootstrap_weights,
    result_as_dict,
    wilson,
)
from unmask.generation_config import SamplerSpec, SamplingOptions, configure_sampler
from unmask.registry import build
from unmask.samplers.base import Canvas, Sampler
from unmask.samplers.token_sampling import TokenSampler

if TYPE_CHECKING:
    from unmask.likelihood import Progress
    from unmask.pipeline import MaskedDiffusionLM

ORDERS = ("uniform", "left_to_right", "confidence", "margin", "entropy", "threshold")
TokenRule = Literal["greedy", "stochastic"]
TOKEN_RULES: dict[TokenRule, TokenSampler] = {"greedy": TokenSampler(temperature=0.0), "stochastic": TokenSampler()}
BATCH_SIZES = {"cpu": 64, "cuda": 1024}
MAX_PUZZLES = 1000
"""Held-out puzzles used by default."""

Columns = dict[str, Values]
"""Measurements by name, [n] each: one value per item."""
C = TypeVar("C", bound=str)
S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class Strategy:
    """A decoding strategy: an unmasking order or a sampler, a token rule and a number of steps."""

    rule: TokenRule = "greedy"
    order: str | None = None
    sampler: SamplerSpec | None = None
    steps: int | None = None
    """None: one token per call."""

    @property
    def name(self) -> str:
        """The order, or the name of the sampler."""
        if self.order is not None:
            return self.order
        return str(self.sampler["name"] if isinstance(self.sampler, Mapping) else self.sampler or "ancestral")

    def build_sampler(self, lm: MaskedDiffusionLM) -> Sampler:
        """The sampler for a model; an autoregressive model has only one."""
        return lm.sampler() if lm.causal else lm.sampler(self.steps, self.order, self.sampler)


def make_strategies(
    lm: MaskedDiffusionLM,
    orders: Sequence[str],
    samplers: Sequence[SamplerSpec],
    rules: Sequence[TokenRule],
    steps: Sequence[int | None],
) -> list[Strategy]:
    """Every combination a model supports: adaptive samplers take no steps, autoregressive models only a token rule."""
    if lm.causal:
        return [Strategy(rule) for rule in rules]
    orderings = [Strategy(order=order) for order in orders] + [Strategy(sampler=sampler) for sampler in samplers]
    strategies = [
        replace(one, steps=n) for one in orderings for n in ([None] if one.build_sampler(lm).adaptive else steps)
    ]
    return [replace(one, rule=rule) for rule in rules for one in strategies]


def parse_choices(words: Sequence[str], choices: Mapping[C, Any], what: str) -> list[C]:
    """The chosen keys, each once and in the order of `choices`; raise `UnmaskError` for an unknown word."""
    for word in words:
        if word not in choices:
            raise UnmaskError(f"There is no {what} '{word}'.{did_you_mean(word, choices)}")
    return [choice for choice in choices if choice in words]


def default_batch_size(lm: MaskedDiffusionLM) -> int:
    """Items per batch on the model's device."""
    return BATCH_SIZES.get(lm.device.type, BATCH_SIZES["cpu"])


@dataclass(frozen=True)
class TaskResult:
    """The metrics of one strategy of one checkpoint."""

    checkpoint: str
    strategy: str
    rule: TokenRule
    steps: int | None
    items: int
    sampler: dict[str, Any]
    metrics: dict[str, Estimate]
    causal: bool = False
    adaptive: bool = False
    kind: str | None = None
    """The kind of blank, for code."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, where the strategy is the `way`."""
        row = result_as_dict(self)
        row["way"] = row.pop("strategy")
        if self.kind is None:
            del row["kind"]
        return row


@dataclass
class TaskEvaluation(ABC):
    """Held-out items of a task by kind (None if there is only one kind), and the results so far."""

    groups: Mapping[Any, list[Any]]
    seed: int = field(default=0, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)
    rows: list[TaskResult] = field(default_factory=list, kw_only=True)

    @abstractmethod
    def check(self, lm: MaskedDiffusionLM) -> None:
        """Raise `UnmaskError` if a model was not trained on the data that the items come from."""

    @abstractmethod
    def evaluate(
        self, lm: MaskedDiffusionLM, items: list[Any], strategy: Strategy, progress: Progress | None
    ) -> dict[str, Estimate]:
        """The metrics of a model and a strategy on some items."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The source and the number of items, for JSON."""

    @property
    def size(self) -> int:
        return sum(map(len, self.groups.values()))

    def run(self, lm: MaskedDiffusionLM, strategies: Sequence[Strategy], progress: Progress | None = None) -> None:
        """Evaluate a model with each strategy; `progress` counts items."""
        self.check(lm)
        for kind, items in self.groups.items():
            for strategy in strategies:
                sampler = strategy.build_sampler(lm)
                result = TaskResult(
                    checkpoint=Path(str(lm.path)).name,
                    strategy="ar" if lm.causal else strategy.name,
                    rule=strategy.rule,
                    steps=strategy.steps,
                    items=len(items),
                    sampler=sampler.model_dump(mode="json"),
                    metrics=self.evaluate(lm, items, strategy, progress),
                    causal=lm.causal,
                    adaptive=sampler.adaptive,
                    kind=kind,
                )
                self.rows.append(result)

    def as_dict(self) -> dict[str, Any]:
        shared = {"seed": self.seed, "interval": {"level": LEVEL}, "rows": [row.as_dict() for row in self.rows]}
        return self.settings() | shared


def summarize(columns: Columns, rates: Sequence[str], unit: str) -> dict[str, Estimate]:
    """Rates with Wilson intervals, the share of right units with a bootstrap interval, and mean calls and seconds."""
    share = bootstrap_ratio(columns[f"right_{unit}"], columns[unit], bootstrap_weights(len(columns[unit])))
    assert share is not None
    return {
        **{name: wilson(columns[name]) for name in rates},
        unit: share,
        **{name: Estimate(float(columns[name].mean())) for name in ("calls", "seconds")},
    }


def training_source(lm: MaskedDiffusionLM, kind: type[S], description: str, recipes: str) -> S:
    """The source of a checkpoint's training data; raise `UnmaskError` unless it is of this kind."""
    config: dict[str, Any] = lm.config.protocol.get("data", {}).get("source", {})
    source = build("source", config) if config else None
    if isinstance(source, kind):
        return source
    found = f"was trained on the source '{config['name']}'" if config else "does not record its training data"
    raise UnmaskError(f"The checkpoint '{lm.path}' {found}, not on {description}; train one with {recipes}.")


def puzzle_source(lm: MaskedDiffusionLM) -> PuzzleSource:
    """The source of a checkpoint's training data; raise `UnmaskError` unless it is one of puzzles."""
    return training_source(lm, PuzzleSource, "puzzles", "'unmask train sudoku' or 'paths'")  # type: ignore[type-abstract]


@dataclass
class PuzzleEvaluation(TaskEvaluation):
    """Held-out puzzles, as ``question=answer``."""

    source: PuzzleSource

    @classmethod
    def of(
        cls, lm: MaskedDiffusionLM, count: int | None = None, seed: int = 0, batch_size: int | None = None
    ) -> PuzzleEvaluation:
        """The first `count` held-out puzzles of a checkpoint's training data, by default at most 1,000."""
        source = puzzle_source(lm)
        count = min(MAX_PUZZLES, source.validation) if count is None else count
        if count > source.validation:
            raise UnmaskError(
                f"--count must be at most {source.validation}, the number of held-out items, got {count}."
            )
        puzzles = list(islice(source.items(held_out=True), count))
        return cls({None: puzzles}, source, seed=seed, batch_size=batch_size)

    def check(self, lm: MaskedDiffusionLM) -> None:
        """A model of other puzzles may have been trained on the items held out here."""
        if puzzle_source(lm) != self.source:
            raise UnmaskError(f"'{lm.path}' was trained on other puzzles; give a checkpoint of the same data.source.")

    def evaluate(
        self, lm: MaskedDiffusionLM, items: list[str], strategy: Strategy, progress: Progress | None
    ) -> dict[str, Estimate]:
        """Puzzles solved, answers that break no rule, right cells, calls and seconds."""
        rows = puzzle_rows(lm, items)
        columns = solve(lm, self.source, rows, strategy, self.seed, self.batch_size, progress)
        return summarize(columns, ("accuracy", "valid"), "cells")

    def settings(self) -> dict[str, Any]:
        return {"source": self.source.model_dump(mode="json"), "items": self.size}


def puzzle_rows(lm: MaskedDiffusionLM, items: list[str]) -> Rows:
    """Puzzles as the model saw them in training; the question is frozen."""
    tokenizer = lm.text_processor.tokenizer
    return lm.config.policy.rows(Tokens.of(encode(tokenizer, items)), lm.row_length, SpecialTokens.of(tokenizer))


def solve(
    lm: MaskedDiffusionLM,
    source: PuzzleSource,
    rows: Rows,
    strategy: Strategy,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Solve all rows; row i has the seed `seed + i`.

    Columns: `accuracy` (every cell is right), `valid` (the answer breaks no rule), `right_cells`, `cells`, `calls` and
    `seconds` (those of the batch, divided evenly).
    """
    sampler = strategy.build_sampler(lm)
    run_sampler = configure_sampler(sampler, SamplingOptions(TOKEN_RULES[strategy.rule]), lm.device)
    calls = min(getattr(sampler, "steps", None) or rows.length, rows.length)
    denoiser = lm.prepare_denoiser(len(rows) * rows.length * calls)
    mask = lm.denoiser.config.mask_token_id
    size = batch_size or default_batch_size(lm)
    batches: list[Columns] = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        since = time.perf_counter()
        target = batch.attention_mask & ~batch.frozen
        masked = torch.from_numpy(batch.input_ids).masked_fill(torch.from_numpy(target), mask)
        attention_mask = torch.from_numpy(batch.attention_mask).to(lm.device)
        for state in run_sampler(denoiser, Canvas.of(masked.to(lm.device), mask, seed + start, attention_mask)):
            last = state
        written, made = last.ids.cpu().numpy(), last.calls.cpu().numpy()
        seconds = (time.perf_counter() - since) / len(written)
        right = ((written == batch.input_ids) & target).sum(axis=1)
        batches.append(
            {
                "accuracy": right == target.sum(axis=1),
                "valid": np.array([source.is_correct(lm.decode(ids)) for ids in written.tolist()]),
                "right_cells": right,
                "cells": target.sum(axis=1),
                "calls": made,
                "seconds": np.full(len(written), seconds),
            }
        )
        if progress is not None:
            progress(len(written))
    return {name: np.concatenate([one[name] for one in batches]).astype(np.float64) for name in batches[0]}
