"""Likelihood bounds with error bars.

A bound is the mean over R random offsets. Within an offset every row is drawn `passes` times, at times that are
stratified over all of these draws and shifted by the offset. Offsets are independent, so the standard error of their
mean is the Monte-Carlo error. Every random number depends only on the seed and on the row's index, so batch size,
device and order of evaluation do not change the result. The data error is the spread over documents, without the noise
of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unmask.data.rows import POSITIONS, TEXT_TOKENS, Rows, prefetch
from unmask.models.config import Denoiser
from unmask.models.inference import device_of, pin_memory
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.registry import build
from unmask.schedules import Schedule, low_discrepancy, van_der_corput

Precision = float | Literal["auto"] | None
SCORE_PRECISION = 0.05
"""The Monte-Carlo error at which `precision="auto"` stops, in bits per token."""
OFFSETS = 16
"""Independent random offsets per bound."""
MAX_PASSES, SCORE_PASSES = 1024, 16
"""The most passes for a precision that was asked for, and for "auto"."""
OTHER_ESTIMATORS_SHARE = 4
"""The first estimator gets this many times the passes of the others, which only have to agree with it."""
AGREEMENT = 4.0
"""Two estimates of one bound agree if they are at most this many joint standard errors apart."""
BATCH_SIZE = 32
GPU_TOKENS_PER_CALL = 1 << 16
LEARNED_PADDING_NOTE = (
    "Tokens are those of the texts with one EOS each; the EOS that fill the rest of a row add to the bits, not to the "
    "tokens."
)
"""Shown with the figures of a length policy that learns its padding."""

Progress = Callable[[float], None]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


# ---- bounds and their errors ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p of some text in nats (for an autoregressive model, -log p itself), with its errors.

    `tokens` counts the tokens of the texts, and one end per text if the length policy has one. In records of earlier
    versions it counts positions, as their `denominator` says. `mc_stderr` is the Monte-Carlo standard error in nats (0
    for an exact likelihood). `data_stderr`, `byte_data_stderr` and `character_data_stderr` are the standard errors of
    nats per token, byte and character from the spread over documents, times the number of tokens, bytes or characters.
    They are None with fewer than two documents, or if the noise of the draws hides the spread. `each` holds one bound
    per document if requested.
    """

    estimator: str
    nats: float
    tokens: int
    bytes: int
    characters: int
    mc_stderr: float
    data_stderr: float | None
    draws: int
    exact: bool = False
    each: tuple[Bound, ...] = ()
    byte_data_stderr: float | None = None
    character_data_stderr: float | None = None
    denominator: str = POSITIONS

    @property
    def stderr(self) -> float:
        """The Monte-Carlo standard error in nats."""
        return self.mc_stderr

    @property
    def bits_per_token(self) -> float:
        """All bits over the tokens of the texts, one EOS each included."""
        return _bits_per(self.nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """All bits over the UTF-8 bytes of the text; NaN if unknown."""
        return _bits_per(self.nats, self.bytes)

    @property
    def bits_per_char(self) -> float:
        """All bits over the characters of the text; NaN if unknown."""
        return _bits_per(self.nats, self.characters)

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(min(self.nats / self.tokens, 700.0)) if self.tokens else math.nan

    def error(self, unit: str = "nats", of: str = "mc") -> float | None:
        """The standard error of `nats`, `bits_per_token`, `bits_per_byte`, `bits_per_char` or `perplexity`.

        `of="mc"` is the Monte-Carlo error, `of="data"` the data error.
        """
        nats: float | None = self.mc_stderr
        if of == "data":
            in_unit = {"bits_per_byte": self.byte_data_stderr, "bits_per_char": self.character_data_stderr}.get(unit)
            nats = self.data_stderr if in_unit is None else in_unit  # earlier versions stored the error of tokens only
        if nats is None:
            return None
        scale = {
            "nats": 1.0,
            "bits_per_token": _bits_per(1.0, self.tokens),
            "bits_per_byte": _bits_per(1.0, self.bytes),
            "bits_per_char": _bits_per(1.0, self.characters),
            "perplexity": self.perplexity / self.tokens if self.tokens else math.nan,
        }[unit]
        return nats * scale

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: every unit with both errors, None if unknown."""
        out = asdict(replace(self, each=()))
        out.pop("each")
        for unit in ("bits_per_token", "bits_per_byte", "bits_per_char", "perplexity"):
            out[unit] = _none_if_nan(getattr(self, unit))
            out[f"{unit}_mc_stderr"] = _none_if_nan(self.error(unit, "mc"))
            out[f"{unit}_data_stderr"] = _none_if_nan(self.error(unit, "data"))
        if self.each:
            out["each"] = [bound.as_dict() for bound in self.each]
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Bound:
        """Read what `as_dict` wrote, without the bounds of single documents."""
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name != "each" and one.name in values})

    def __len__(self) -> int:
        return len(self.each)

    def __bool__(self) -> bool:
        return True  # also without bounds of single documents

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.each)

    def __getitem__(self, index: int) -> Bound:
        return self.each[index]


@dataclass(frozen=True)
class Evaluation:
    """The bound by every estimator of the objective, which must agree, and T-step bounds by T."""

    bounds: dict[str, Bound]
    discrete: dict[int, Bound]

    @property
    def headline(self) -> Bound:
        """The reported bound: that of the first estimator."""
        return next(iter(self.bounds.values()))

    @property
    def disagreement(self) -> str | None:
        """A message if two estimators are too far apart, else None."""
        for (name, one), (other_name, other) in combinations(self.bounds.items(), 2):
            if not agree(one, other):
                return (
                    f"The estimators disagree: {name} {one.nats:.6g} +- {one.mc_stderr:.2g} nats against "
                    f"{other_name} {other.nats:.6g} +- {other.mc_stderr:.2g}; do not trust this model's bound."
                )
        return None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "headline": self.headline.as_dict(),
            "bounds": {name: bound.as_dict() for name, bound in self.bounds.items()},
            "discrete": {str(steps): bound.as_dict() for steps, bound in self.discrete.items()},
            "agree": self.disagreement is None,
        }


def format_with_errors(bound: Bound, unit: str) -> str:
    """A value with its Monte-Carlo error (unless exact) and data error, such as ``≤ 3.214 ± 0.004 ± 0.031``."""
    value = getattr(bound, unit)
    if math.isnan(value):
        return "-"
    data_error = bound.error(unit, "data")
    shown = f"{value:.3f}" if bound.exact else f"≤ {value:.3f} ± {bound.error(unit):.3f}"
    return shown if data_error is None else f"{shown} ± {data_error:.3f}"


def format_tokens(bound: Bound) -> str:
    """The number of tokens, or of positions in records of earlier versions."""
    return f"{bound.tokens:,}" if bound.denominator == TEXT_TOKENS else f"{bound.tokens:,} {bound.denominator}"


def agree(one: Bound, other: Bound) -> bool:
    """Whether two estimates of one bound are within four joint standard errors, up to rounding."""
    joint = math.hypot(one.mc_stderr, other.mc_stderr)
    return abs(one.nats - other.nats) <= AGREEMENT * joint + 1e-5 * abs(one.nats)


def _none_if_nan(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _bits_per(nats: float, units: int) -> float:
    return nats / units / math.log(2.0) if units else math.nan


# ---- estimators -----------------------------------------------------------------------------------------------------


def evaluate(
    denoiser: Denoiser,
    objective: Objective,
    schedule: Schedule,
    rows: Rows,
    *,
    steps: tuple[int, ...] = (),
    seed: int = 0,
    precision: Precision = None,
    offsets: int = OFFSETS,
    batch_size: int | None = None,
    each: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Estimate the bound of `rows` by every estimator of the objective, and the T-step bounds for T in `steps`.

    With `precision`, draw until the Monte-Carlo error of the first estimator is at most this many bits per token;
    "auto" stops at `SCORE_PRECISION` or after `SCORE_PASSES` passes. The other estimators get a quarter of its passes,
    at least one, drawn independently of the first. If two disagree, all are drawn again with about as many passes as
    the first had. `each` adds the bound of every document; `progress` is called with the number of new draws.
    """
    estimators = objective.estimators()
    (first_name, first), *others = estimators.items()
    estimate = partial(
        estimate_bound,
        denoiser,
        schedule=schedule,
        rows=rows,
        seed=seed,
        offsets=offsets,
        batch_size=batch_size,
        each=each,
        progress=progress,
    )
    headline = estimate(first, name=first_name)
    if precision is not None and not first.exact:
        target, most = (SCORE_PRECISION, SCORE_PASSES) if precision == "auto" else (precision, MAX_PASSES)
        headline = _refine(headline, target, most, partial(estimate, first, name=first_name), offsets)
    passes = max(1, headline.draws // offsets // OTHER_ESTIMATORS_SHARE)
    estimate_other = partial(estimate, passes=passes, stream=1)
    bounds = {first_name: headline} | {name: estimate_other(one, name=name) for name, one in others}
    in_steps = {T: build("objective", {"name": "subs", "steps": T}) for T in steps if not objective.exact}
    discrete = {T: estimate_other(one, name=f"discrete T={T}") for T, one in in_steps.items()}
    evaluation = Evaluation(bounds, discrete)
    if evaluation.disagreement:  # by chance in one of 1,000 evaluations: errors from 16 offsets are rough
        again = partial(estimate, passes=OTHER_ESTIMATORS_SHARE * passes)
        named = enumerate(estimators.items(), start=2)
        bounds = {name: again(one, name=name, stream=stream) for stream, (name, one) in named}
        evaluation = Evaluation(bounds, discrete)
    return evaluation


def _refine(bound: Bound, precision: float, most: int, estimate: Callable[..., Bound], offsets: int) -> Bound:
    """Estimate again with more passes until the error is at most `precision` bits per token, up to `most`.

    The number of passes is a power of two, at most 16 times the last one. Attempts are not averaged.
    """
    passes = bound.draws // offsets
    while (error := bound.error("bits_per_token") or 0.0) > precision and passes < most:
        wanted = passes * min((error / precision) ** 2, 16.0)
        passes = min(most, 2 ** max(1 + int(math.log2(passes)), math.ceil(math.log2(wanted))))
        bound = estimate(passes=passes)
    return bound


def count_draws(objective: Objective, rows: Rows, steps: int) -> int:
    """The number of draws of `evaluate` without a precision, with `steps` T-step bounds."""
    return len(rows) * (1 if objective.exact else OFFSETS * (len(objective.estimators()) + steps))


@dataclass(frozen=True)
class Draws:
    """How a bound is drawn: `offsets` independent sets of `passes` stratified draws per row.

    Draws of different `stream`s are independent. The result does not depend on the batch size, which by default suits
    the device.
    """

    seed: int = 0
    offsets: int = OFFSETS
    passes: int = 1
    batch_size: int | None = None
    stream: int = 0

    def rows_per_call(self, length: int, device: torch.device) -> int:
        """Rows of `length` tokens in one network call."""
        if self.batch_size is not None:
            return self.batch_size
        return max(BATCH_SIZE, GPU_TOKENS_PER_CALL // length) if device.type == "cuda" else BATCH_SIZE


def estimate_bound(
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
    stream: int = 0,
    each: bool = False,
    progress: Progress | None = None,
) -> Bound:
    """Estimate the bound of all counted positions of `rows` by one estimator."""
    draws = Draws(seed, 1, 1, batch_size) if estimator.exact else Draws(seed, offsets, passes, batch_size, stream)
    totals = draw_nats(denoiser, estimator, schedule, rows, draws, progress)
    return summarise(name or estimator.name, totals, rows, draws, estimator.exact, each)  # type: ignore[attr-defined]


def draw_nats(
    denoiser: Denoiser,
    estimator: Objective,
    schedule: Schedule,
    rows: Rows,
    draws: Draws,
    progress: Progress | None = None,
) -> NatTotals:
    """The nats of all draws per offset and document. Equal `draws` of two tables use the same random numbers."""

    def corrupt(batch: Batch, noise: Noise) -> Corruption:
        return estimator.corrupt(batch, schedule, noise, denoiser.config)

    with eval_mode(denoiser):
        terms = partial(estimator.terms, denoiser)
        return accumulate_nats(
            terms, corrupt, rows, draws, device_of(denoiser), progress, denominator=estimator.denominator
        )


# ---- sums over draws ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NatTotals:
    """`nats` [offsets, documents] of all counted positions per pass, and `tokens` [documents] by the `denominator`."""

    nats: Floats
    tokens: Floats
    denominator: str = TEXT_TOKENS


def accumulate_nats(
    terms: Callable[[Batch, Corruption], LossTerms],
    corrupt: Callable[[Batch, Noise], Corruption],
    rows: Rows,
    draws: Draws,
    device: torch.device,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
    denominator: str = TEXT_TOKENS,
) -> NatTotals:
    """Sum the nats of all draws per offset and document.

    `corrupt` runs on the CPU in a thread that prepares batches ahead; `terms` runs the network on the device. The
    result of a call is read after the next call has been issued, so that a GPU does not wait for the CPU.

    `share` = (k, n) takes every n-th batch from the k-th on; the totals of all shares add up. All shares make the same
    number of calls (the last one of some counts nothing), as sharded networks require.
    """
    totals = NatTotals(np.zeros((draws.offsets, rows.documents)), np.zeros(rows.documents), denominator)

    def add(prepared: _PreparedBatch, nelbo: Tensor, counted: Tensor, copied: torch.cuda.Event | None) -> None:
        if copied is not None:
            copied.synchronize()
        size = prepared.size
        keep = counted[:size].numpy()
        nats = nelbo[:size].numpy().astype(np.float64)[keep]
        np.add.at(totals.nats.reshape(-1), prepared.index[:size][keep], nats / draws.passes)
        token = keep & ~prepared.padding[:size] if denominator == TEXT_TOKENS else keep
        np.add.at(totals.tokens, prepared.document[:size][token], 1.0 / (draws.offsets * draws.passes))
        if progress is not None:
            progress(size)

    previous: tuple[_PreparedBatch, Tensor, Tensor, torch.cuda.Event | None] | None = None
    with closing(prefetch(_prepare_batches(corrupt, rows, draws, device, share))) as batches:
        for prepared in batches:
            found = terms(*prepared.to(device))
            nelbo, counted = _copy_to_cpu(found.nelbo), _copy_to_cpu(found.counted)
            copied = torch.cuda.Event() if found.nelbo.is_cuda else None
            if copied is not None:
                copied.record()
            if previous is not None:
                add(*previous)
            previous = prepared, nelbo, counted, copied
    if previous is not None:
        add(*previous)
    return totals


@dataclass(frozen=True)
class _PreparedBatch:
    """One network call. The nats of a position are added at `index` [B, L] and its token at `document` [B, L].

    All calls have the same shape; only the first `size` rows count.
    """

    batch: Batch
    corruption: Corruption
    document: Integers
    padding: Flags
    index: Integers
    size: int

    def to(self, device: torch.device) -> tuple[Batch, Corruption]:
        batch, corruption = self.batch, self.corruption
        if device.type == "cuda":
            batch, corruption = batch.map(pin_memory), corruption.map(pin_memory)
        return batch.to(device), corruption.map(lambda tensor: tensor.to(device, non_blocking=True))


def _prepare_batches(
    corrupt: Callable[[Batch, Noise], Corruption],
    rows: Rows,
    draws: Draws,
    device: torch.device,
    share: tuple[int, int],
) -> Iterator[_PreparedBatch]:
    """Draw times and masks. The time of draw d is its stratum, shifted by the offset."""
    strata = van_der_corput(len(rows) * draws.passes)
    total = len(rows) * draws.passes * draws.offsets
    size = min(total, draws.rows_per_call(rows.length, device))
    first, shares = share
    batches = -(-total // size)
    for number in range(first, -(-batches // shares) * shares, shares):
        item = torch.arange(number * size, (number + 1) * size)
        draw, offset = item.clamp_max(total - 1) // draws.offsets, item % draws.offsets
        table = rows[(draw // draws.passes).numpy()]
        batch = Batch.of_rows(table)
        source = (draws.stream << 32) + offset
        t = low_discrepancy(uniform(draws.seed, Purpose.OFFSET, step=source), strata[draw], len(strata))
        noise = Noise.draw(draws.seed, source[:, None], draw, t, batch.input_ids.shape[1])
        index = offset.numpy()[:, None] * rows.documents + table.document
        size_here = int((item < total).sum())
        yield _PreparedBatch(batch, corrupt(batch, noise), table.document, table.padding, index, size_here)


def _copy_to_cpu(value: Tensor) -> Tensor:
    """Start a copy to pinned memory; the caller waits for it."""
    if not value.is_cuda:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)


def summarise(name: str, totals: NatTotals, rows: Rows, draws: Draws, exact: bool = False, each: bool = False) -> Bound:
    """The bound with its errors, from the totals of all draws."""
    nats_RD, tokens_D = totals.nats, totals.tokens.round()
    units = {"tokens": tokens_D, "bytes": rows.document_bytes, "characters": rows.document_characters}
    present = int((tokens_D > 0).sum())

    def bound(documents: slice, data_errors: tuple[float | None, ...], each: tuple[Bound, ...] = ()) -> Bound:
        totals_R = nats_RD[:, documents].sum(axis=1)
        counts = {unit: int(counts_D[documents].sum()) for unit, counts_D in units.items()}
        return Bound(
            name,
            float(totals_R.mean()),
            **counts,
            mc_stderr=float(totals_R.std(ddof=1) / math.sqrt(len(totals_R))) if len(totals_R) > 1 else 0.0,
            data_stderr=data_errors[0],
            draws=draws.offsets * draws.passes,
            exact=exact,
            each=each,
            byte_data_stderr=data_errors[1],
            character_data_stderr=data_errors[2],
            denominator=totals.denominator,
        )

    documents = tuple(bound(slice(d, d + 1), (None,) * 3) for d in range(len(tokens_D))) if each else ()
    return bound(slice(None), tuple(_data_stderr(nats_RD, counts, present) for counts in units.values()), documents)


def _data_stderr(nats_RD: Floats, units_D: npt.NDArray[Any], documents: int) -> float | None:
    """Standard error, in nats, of the ratio of all nats to all units over documents (docs/mathematics.md).

    The residuals of the means over offsets contain the noise of the draws; its variance is subtracted. None with fewer
    than two documents, or if that noise hides their spread.
    """
    if documents < 2 or not units_D.sum():
        return None
    residual_RD = nats_RD - nats_RD.sum(axis=1, keepdims=True) / units_D.sum() * units_D
    squares = np.square(residual_RD.mean(axis=0)).sum()
    if (offsets := len(residual_RD)) > 1:
        squares -= residual_RD.var(axis=0, ddof=1).sum() / offsets
        if squares <= 0:
            return None
    return math.sqrt(documents / (documents - 1) * float(squares))


@contextmanager
def eval_mode(denoiser: Any) -> Iterator[None]:
    """Run a block in eval mode and without gradients."""
    was_training = getattr(denoiser, "training", False)
    if was_training:
        denoiser.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_training:
            denoiser.train()
