"""Bounds with error bars. A bound is evaluated with R independent offsets; their spread is its Monte-Carlo error.

Within one offset the times of all rows (and of all passes over a row) are one stratified set, and every random number
depends on the row's index alone: batch size, device and order of evaluation do not move the result. The data error is
the spread over documents. Both are kept, and no perplexity leaves here without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from unmask.batch import Batch
from unmask.bounds import Bound, Evaluation
from unmask.data.rows import Rows
from unmask.models.protocol import Denoiser, DenoiserConfig
from unmask.objectives.base import Corruption, Noise, Objective
from unmask.registry import build
from unmask.schedules import Schedule
from unmask.tally import OFFSETS, Draws, Progress, Tally, tally

MAX_PASSES = 1024
SHARE_OF_OTHERS = 4
"""The first estimator's passes over those of the others, which only have to agree with it within both their errors."""


def evaluate(
    denoiser: Denoiser,
    objective: Objective,
    schedule: Schedule,
    rows: Rows,
    *,
    steps: tuple[int, ...] = (),
    seed: int = 0,
    precision: float | None = None,
    offsets: int = OFFSETS,
    batch_size: int | None = None,
    each: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Judge rows by all estimators of an objective; `steps` asks for T-step bounds too.

    `precision`: draw until the Monte-Carlo error of the first estimator is at most this many bits per token. The others
    get a quarter of the passes that it took, and at least one.
    """
    (name, first), *others = objective.estimators().items()
    asked = () if objective.exact else steps
    others += [(f"discrete T={T}", build("objective", {"name": "subs", "steps": T})) for T in asked]
    options: dict[str, Any] = {"seed": seed, "offsets": offsets, "batch_size": batch_size, "each": each}
    options["progress"] = progress
    if precision is None or first.exact:
        headline = bound(denoiser, first, schedule, rows, name=name, **options)
    else:
        headline = bound_to(precision, denoiser, first, schedule, rows, name=name, **options)
    bounds = {name: headline}
    for other, estimator in others:
        passes = max(1, headline.draws // offsets // SHARE_OF_OTHERS)
        bounds[other] = bound(denoiser, estimator, schedule, rows, name=other, passes=passes, **options)
    discrete = {T: bounds.pop(f"discrete T={T}") for T in asked}
    return Evaluation(bounds, discrete)


def bound_to(
    precision: float, denoiser: Denoiser, estimator: Objective, schedule: Schedule, rows: Rows, **options: Any
) -> Bound:
    """A bound whose Monte-Carlo error is at most `precision` bits per token, or the best of `MAX_PASSES` passes.

    Each try draws anew with more passes, as many as the last error asks for, so that tries are not mixed.
    """
    passes = 1
    while True:
        result = bound(denoiser, estimator, schedule, rows, passes=passes, **options)
        error = result.error("bits_per_token") or 0.0
        if error <= precision or passes >= MAX_PASSES:
            return result
        wanted = passes * min((error / precision) ** 2, 16.0)
        passes = min(MAX_PASSES, 2 ** max(1 + int(math.log2(passes)), math.ceil(math.log2(wanted))))


def bound(
    denoiser: Denoiser,
    estimator: Objective,
    schedule: Schedule,
    rows: Rows,
    *,
    name: str | None = None,
    seed: int = 0,
    offsets: int = OFFSETS,
    passes: int = 1,
    batch_size: int | None = None,
    each: bool = False,
    progress: Progress | None = None,
) -> Bound:
    """The bound of all counted tokens of `rows`: `offsets` independent sets of `passes` draws a row."""
    if estimator.exact:
        offsets = passes = 1
    draws = Draws(seed, offsets, passes, batch_size)
    with evaluating(denoiser):
        corrupt = partial(_corrupt, estimator, schedule, denoiser.config)
        found = tally(partial(estimator.terms, denoiser), corrupt, rows, draws, device_of(denoiser), progress)
    return summarise(name or estimator.name, found, rows, draws, estimator.exact, each)  # type: ignore[attr-defined]


def _corrupt(
    estimator: Objective, schedule: Schedule, config: DenoiserConfig, batch: Batch, noise: Noise
) -> Corruption:
    return estimator.corrupt(batch, schedule, noise, config)


def evaluation_work(objective: Objective, rows: Rows, steps: int = 0) -> int:
    """The draws that `evaluate` will report as progress when no precision is asked for; `steps` T-step bounds."""
    if objective.exact:
        return len(rows)
    return len(rows) * OFFSETS * (len(objective.estimators()) + steps)


def device_of(denoiser: Any) -> torch.device:
    """Where a denoiser computes; the CPU for those that hold no parameters."""
    return getattr(denoiser, "device", torch.device("cpu"))


@contextmanager
def evaluating(denoiser: Any) -> Iterator[None]:
    """Eval mode and no gradients for a while."""
    was_training = getattr(denoiser, "training", False)
    if was_training:
        denoiser.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_training:
            denoiser.train()


def summarise(name: str, found: Tally, rows: Rows, draws: Draws, exact: bool = False, each: bool = False) -> Bound:
    """A bound with its errors from a whole tally."""
    nats_RD, tokens_D = found.nats, found.tokens.round()
    draws_of_each = draws.offsets * draws.passes
    nats_D = nats_RD.mean(axis=0)
    per_document: tuple[Bound, ...] = ()
    if each:
        per_document = tuple(
            Bound(
                name,
                float(nats_D[d]),
                int(tokens_D[d]),
                int(rows.document_bytes[d]),
                int(rows.document_characters[d]),
                _spread(nats_RD[:, d]),
                None,
                draws_of_each,
                exact,
            )
            for d in range(len(nats_D))
        )
    return Bound(
        name,
        float(nats_D.sum()),
        int(tokens_D.sum()),
        int(rows.document_bytes.sum()),
        int(rows.document_characters.sum()),
        _spread(nats_RD.sum(axis=1)),
        _data_error(nats_D, tokens_D),
        draws_of_each,
        exact,
        per_document,
    )


def _spread(totals_R: np.ndarray) -> float:
    """Standard error of the mean over independent offsets."""
    return float(totals_R.std(ddof=1) / math.sqrt(len(totals_R))) if len(totals_R) > 1 else 0.0


def _data_error(nats_D: np.ndarray, tokens_D: np.ndarray) -> float | None:
    """Standard error, in total nats, of nats per token as a ratio over documents."""
    count = int((tokens_D > 0).sum())
    if count < 2:
        return None
    residual = nats_D - nats_D.sum() / tokens_D.sum() * tokens_D
    return float(math.sqrt(count / (count - 1) * np.square(residual).sum()))
