"""Bounds with error bars. A bound is evaluated with R independent offsets; their spread is its Monte-Carlo error.

Within one offset the times of all rows (and of all passes over a row) are one stratified set, and every random number
depends on the row's index alone: batch size, device and order of evaluation do not move the result. The data error is
the spread over documents. Both are kept, and no perplexity leaves here without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unmask.data.build_once import prefetch
from unmask.data.rows import Rows
from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.inference import pin_memory
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.registry import build
from unmask.schedules import Schedule, low_discrepancy, van_der_corput

SCORE_PRECISION = 0.05
"""Bits per token to which `score` knows a bound unless asked otherwise."""
LEARNT_PADDING_NOTE = (
    "Tokens include the EOS that fill a row, which lowers bits per token and perplexity; bits per character are over "
    "the text alone, however many EOS there are."
)
"""What is to be said beside the figures of a length policy whose pads are learnt."""
AGREEMENT = 4.0
"""Two estimators of one bound agree when they are at most this many joint standard errors apart."""


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p of some text (or, for AR, -log p itself), in nats, with both its errors in nats.

    `mc_stderr` is the Monte-Carlo standard error (0 for an exact likelihood); `data_stderr` is the standard error from
    the spread over documents, None with fewer than two. `each` holds the same per document where that was asked for.
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

    @property
    def stderr(self) -> float:
        """The Monte-Carlo standard error in nats: how well this number is known for this very text."""
        return self.mc_stderr

    @property
    def bits_per_token(self) -> float:
        """Bits over counted tokens, EOS included."""
        return _ratio(self.nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """All bits over the UTF-8 bytes of the text; NaN where those are not known."""
        return _ratio(self.nats, self.bytes)

    @property
    def bits_per_char(self) -> float:
        """All bits over the characters of the text; NaN where those are not known."""
        return _ratio(self.nats, self.characters)

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(min(self.nats / self.tokens, 700.0))

    def error(self, unit: str = "nats", of: str = "mc") -> float | None:
        """The standard error of `nats`, `bits_per_token`, `bits_per_byte`, `bits_per_char` or `perplexity`.

        `of="mc"`: of the draws; `of="data"`: of the documents.
        """
        nats = self.mc_stderr if of == "mc" else self.data_stderr
        if nats is None:
            return None
        scale = {
            "nats": 1.0,
            "bits_per_token": _ratio(1.0, self.tokens),
            "bits_per_byte": _ratio(1.0, self.bytes),
            "bits_per_char": _ratio(1.0, self.characters),
            "perplexity": self.perplexity / self.tokens,
        }[unit]
        return nats * scale

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: every unit with both its errors; None where one is not known."""
        out = asdict(replace(self, each=()))
        out.pop("each")
        for unit in ("bits_per_token", "bits_per_byte", "bits_per_char", "perplexity"):
            out[unit] = _known(getattr(self, unit))
            out[f"{unit}_mc_stderr"] = _known(self.error(unit, "mc"))
            out[f"{unit}_data_stderr"] = _known(self.error(unit, "data"))
        if self.each:
            out["each"] = [bound.as_dict() for bound in self.each]
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Bound:
        """A bound as `as_dict` wrote it, without its documents."""
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name != "each"})

    def __len__(self) -> int:
        return len(self.each)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.each)

    def __getitem__(self, index: int) -> Bound:
        return self.each[index]


@dataclass(frozen=True)
class Evaluation:
    """A text judged by every estimator of its model's objective, which must agree, and by T-step bounds beside them."""

    bounds: dict[str, Bound]
    discrete: dict[int, Bound]

    @property
    def headline(self) -> Bound:
        """The estimate that counts: the first."""
        return next(iter(self.bounds.values()))

    @property
    def disagreement(self) -> str | None:
        """A sentence when two estimators of the same number are too far apart, else None."""
        named = list(self.bounds.items())
        for i, (name, one) in enumerate(named):
            for other_name, other in named[i + 1 :]:
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
    """A value with both its errors, such as ``≤ 3.214 ± 0.004 ± 0.031``; an exact likelihood has no first one."""
    value = getattr(bound, unit)
    if value != value:
        return "-"
    draws, data = bound.error(unit, "mc"), bound.error(unit, "data")
    parts = [f"{value:.3f}" if bound.exact else f"≤ {value:.3f} ± {draws:.3f}"]
    return " ± ".join([*parts, f"{data:.3f}"] if data is not None else parts)


def agree(one: Bound, other: Bound) -> bool:
    """Whether two estimates of one bound are within four joint standard errors (and rounding) of each other."""
    joint = math.hypot(one.mc_stderr, other.mc_stderr)
    return abs(one.nats - other.nats) <= AGREEMENT * joint + 1e-5 * abs(one.nats)


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _ratio(nats: float, units: int) -> float:
    return nats / units / math.log(2.0) if units else math.nan


OFFSETS = 16
BATCH = 32
TOKENS_AT_ONCE = 1 << 16
"""What a GPU likes to see in one call."""

Progress = Callable[[float], None]
Floats = npt.NDArray[np.float64]
Corrupt = Callable[[Batch, Noise], Corruption]
Ask = Callable[[Batch, Corruption], LossTerms]


@dataclass(frozen=True)
class Draws:
    """How often a bound is drawn: `offsets` independent sets of `passes` draws a row, `batch_size` at once.

    Without a batch size it is what suits the device; no result depends on it.
    """

    seed: int = 0
    offsets: int = OFFSETS
    passes: int = 1
    batch_size: int | None = None

    def at_once(self, length: int, device: torch.device) -> int:
        """Rows of so many tokens that are asked about in one call."""
        if self.batch_size is not None:
            return self.batch_size
        return max(BATCH, TOKENS_AT_ONCE // length) if device.type == "cuda" else BATCH


@dataclass(frozen=True)
class Tally:
    """What draws add up to: `nats` [offsets, documents] a pass, and `tokens` [documents] that are counted."""

    nats: Floats
    tokens: Floats


@dataclass(frozen=True)
class _Question:
    """One call of the network: `document` and `place` [B, L] say where each position's nats belong.

    All calls have the same shape; of the last one only `size` rows are meant.
    """

    batch: Batch
    corruption: Corruption
    document: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    size: int

    def on(self, device: torch.device) -> tuple[Batch, Corruption]:
        """What the network is given."""
        if device.type != "cuda":
            return self.batch.to(device), self.corruption.map(lambda tensor: tensor.to(device))
        batch, corruption = self.batch.map(pin_memory), self.corruption.map(pin_memory)
        return batch.to(device), corruption.map(lambda tensor: tensor.to(device, non_blocking=True))


class _Answer:
    """Nats and counted positions [B, L] on their way to the CPU. `read` waits for them, and for nothing after them."""

    def __init__(self, terms: LossTerms) -> None:
        self._values = [_leaving(value) for value in (terms.nelbo, terms.counted)]
        self._there = torch.cuda.Event() if terms.nelbo.is_cuda else None
        if self._there is not None:
            self._there.record()

    def read(self, size: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Those of the first `size` rows."""
        if self._there is not None:
            self._there.synchronize()
        nats, counted = (value[:size].numpy() for value in self._values)
        return nats.astype(np.float64), counted


def tally(
    ask: Ask,
    corrupt: Corrupt,
    rows: Rows,
    draws: Draws,
    device: torch.device,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
) -> Tally:
    """Draw what `share` = (which, of how many) asks for: every k-th batch; the tallies of all shares add up.

    `corrupt` is the noise's work, on the CPU; `ask` the network's, on the device. All shares ask equally often (the
    last question of some counts nothing), as sharded networks need.
    """
    found = Tally(np.zeros((draws.offsets, rows.documents)), np.zeros(rows.documents))

    def take(question: _Question, answer: _Answer) -> None:
        _add(found, question, *answer.read(question.size), draws)
        if progress is not None:
            progress(question.size)

    waiting: tuple[_Question, _Answer] | None = None
    with closing(prefetch(_questions(corrupt, rows, draws, device, share))) as coming:
        for question in coming:
            answer = _Answer(ask(*question.on(device)))
            if waiting is not None:
                take(*waiting)
            waiting = question, answer
    if waiting is not None:
        take(*waiting)
    return found


def _questions(
    corrupt: Corrupt, rows: Rows, draws: Draws, device: torch.device, share: tuple[int, int]
) -> Iterator[_Question]:
    strata = van_der_corput(len(rows) * draws.passes)
    total = len(rows) * draws.passes * draws.offsets
    at_once = min(total, draws.at_once(rows.length, device))
    which, shares = share
    batches = -(-total // at_once)
    for number in range(which, -(-batches // shares) * shares, shares):
        item = torch.arange(number * at_once, (number + 1) * at_once)
        size = int((item < total).sum())
        draw, offset = item.clamp_max(total - 1) // draws.offsets, item % draws.offsets
        table = rows[(draw // draws.passes).numpy()]
        batch = Batch.of(*map(torch.from_numpy, (table.input_ids, table.attention_mask, table.frozen)))
        place = offset.numpy()[:, None] * rows.documents + table.document
        noise = _noise(draws.seed, offset, draw, strata, batch.input_ids.shape[1])
        yield _Question(batch, corrupt(batch, noise), table.document, place, size)


def _noise(seed: int, offset: Tensor, draw: Tensor, strata: Tensor, length: int) -> Noise:
    """The noise of draws number `draw` [B], each of the set that belongs to one of the `offset`s [B]."""
    t = low_discrepancy(uniform(seed, Purpose.OFFSET, step=offset), strata[draw], len(strata))
    return Noise.draw(seed, offset[:, None], draw, t, length)


def _leaving(value: Tensor) -> Tensor:
    """The value on the CPU, or on its way there."""
    if not value.is_cuda:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)


def _add(found: Tally, question: _Question, nats: Floats, counted: npt.NDArray[np.bool_], draws: Draws) -> None:
    place, document = question.place[: question.size][counted], question.document[: question.size][counted]
    np.add.at(found.nats.reshape(-1), place, nats[counted] / draws.passes)
    np.add.at(found.tokens, document, 1.0 / (draws.offsets * draws.passes))


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


def count_draws(objective: Objective, rows: Rows, steps: int = 0) -> int:
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
