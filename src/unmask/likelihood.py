"""Bounds with error bars. A bound is evaluated with R independent offsets; their spread is its Monte-Carlo error.

Within one offset the times of all rows (and of all passes over a row) are one stratified set, and every random number
depends on the row's index alone: batch size, device and order of evaluation do not move the result. The data error is
the spread over documents. Both are kept, and no perplexity leaves here without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.bounds import Bound, Evaluation
from unmask.data.rows import Rows
from unmask.models.protocol import Denoiser
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.objectives.subs import Subs
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule
from unmask.times import low_discrepancy, van_der_corput

OFFSETS = 16
MAX_PASSES = 1024

Progress = Callable[[int], None]
Floats = npt.NDArray[np.float64]


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
    batch_size: int = 32,
    each: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Judge rows by all estimators of an objective; `steps` asks for T-step bounds too.

    `precision`: draw until the Monte-Carlo error of the first estimator is at most this many bits per token. The others
    get as many draws as it took.
    """
    (name, first), *others = objective.estimators().items()
    others += [(f"discrete T={T}", Subs(steps=T)) for T in steps if not objective.exact]
    options: dict[str, Any] = {"seed": seed, "offsets": offsets, "batch_size": batch_size, "each": each}
    options["progress"] = progress
    if precision is None or first.exact:
        headline = bound(denoiser, first, schedule, rows, name=name, **options)
    else:
        headline = bound_to(precision, denoiser, first, schedule, rows, name=name, **options)
    bounds = {name: headline}
    for other, estimator in others:
        passes = headline.draws // offsets
        bounds[other] = bound(denoiser, estimator, schedule, rows, name=other, passes=passes, **options)
    discrete = {T: bounds.pop(f"discrete T={T}") for T in steps if not objective.exact}
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
    batch_size: int = 32,
    each: bool = False,
    progress: Progress | None = None,
) -> Bound:
    """The bound of all counted tokens of `rows`: `offsets` independent sets of `passes` draws a row."""
    if estimator.exact:
        offsets = passes = 1
    draws = Draws(seed, offsets, passes, batch_size)
    with evaluating(denoiser):
        found = tally(partial(_terms, estimator, denoiser, schedule), rows, draws, device_of(denoiser), progress)
    return summarise(name or estimator.name, found, rows, draws, estimator.exact, each)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Draws:
    """How often a bound is drawn: `offsets` independent sets of `passes` draws a row, so many at once."""

    seed: int = 0
    offsets: int = OFFSETS
    passes: int = 1
    batch_size: int = 32


@dataclass(frozen=True)
class Tally:
    """What draws add up to: `nats` [offsets, documents] a pass, and `tokens` [documents] that are counted."""

    nats: Floats
    tokens: Floats


def tally(
    terms_of: Callable[[Batch, Noise], LossTerms],
    rows: Rows,
    draws: Draws,
    device: torch.device,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
) -> Tally:
    """Draw what `share` = (which, of how many) asks for: every k-th batch; the tallies of all shares add up.

    All shares call the network equally often (the last call of some counts nothing), as sharded networks need.
    """
    nats_RD = np.zeros((draws.offsets, rows.documents))
    tokens_D = np.zeros(rows.documents)
    strata = van_der_corput(len(rows) * draws.passes)
    batches = torch.arange(len(rows) * draws.passes * draws.offsets).split(draws.batch_size)
    which, shares = share
    for number in range(which, -(-len(batches) // shares) * shares, shares):
        item = batches[min(number, len(batches) - 1)]
        draw, offset = item // draws.offsets, item % draws.offsets
        batch, document = _fetch(rows, draw // draws.passes, device)
        terms = terms_of(batch, _noise(draws.seed, offset, draw, strata, batch))
        if number >= len(batches):
            break
        place = offset.numpy()[:, None] * rows.documents + document
        nats_RD += _sums(terms.nelbo, terms.counted, place, nats_RD.size).reshape(nats_RD.shape) / draws.passes
        tokens_D += _sums(terms.counted, terms.counted, document, len(tokens_D)) / (draws.offsets * draws.passes)
        if progress is not None:
            progress(len(item))
    return Tally(nats_RD, tokens_D)


def _terms(estimator: Objective, denoiser: Denoiser, schedule: Schedule, batch: Batch, noise: Noise) -> LossTerms:
    return estimator.loss(denoiser, batch, schedule, noise)


def evaluation_work(objective: Objective, rows: Rows, steps: int = 0, offsets: int = OFFSETS) -> int:
    """The draws that `evaluate` will report as progress when no precision is asked for; `steps` T-step bounds."""
    if objective.exact:
        return len(rows)
    return len(rows) * offsets * (len(objective.estimators()) + steps)


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


def _fetch(rows: Rows, index: Tensor, device: torch.device) -> tuple[Batch, np.ndarray]:
    table = rows[index.numpy()]
    batch = Batch.of(
        torch.from_numpy(table.input_ids), torch.from_numpy(table.attention_mask), torch.from_numpy(table.frozen)
    )
    return batch.to(device), table.document


def _noise(seed: int, offset: Tensor, draw: Tensor, strata: Tensor, batch: Batch) -> Noise:
    """The noise of draws number `draw` [B], each of the set that belongs to one of the `offset`s [B]."""
    device = batch.input_ids.device
    t = low_discrepancy(uniform(seed, Purpose.OFFSET, step=offset), strata[draw], len(strata)).to(device)
    return Noise.draw(seed, offset[:, None].to(device), draw.to(device), t, batch.input_ids.shape[1])


def _sums(values: Tensor, counted: Tensor, place: np.ndarray, size: int) -> np.ndarray:
    """[size] the sum of values [B, L] over the counted positions that have each `place` [B, L]."""
    counted_BL = counted.cpu().numpy()
    weights = values.double().cpu().numpy()[counted_BL]
    return np.bincount(place[counted_BL], weights=weights, minlength=size)


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
