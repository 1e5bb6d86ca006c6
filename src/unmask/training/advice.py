"""Advice for a run: look at its data and its log, and say in one sentence what seems wrong and what to do.

A symptom is a function of the run's history that returns a sentence or None.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from unmask.data.rows import TEXT_TOKENS

if TYPE_CHECKING:
    from unmask.data.length_policies import Policy
    from unmask.data.rows import Rows
    from unmask.objectives.base import Objective
    from unmask.optimizers.base import OptimizerComponent

RECORDS = 400
"""Training records that are kept, the newest ones."""
MIN_BUCKETS = 8
"""Intervals of the mask rate that must have a cross-entropy for their mean to count."""
ROWS_EXAMINED = 1024
WINDOW = 5
"""Records that are averaged before they are compared with others."""
STRETCH = 20
"""Records over which a state must last."""
SIGNIFICANT = 4.0
"""Standard errors by which figures must differ."""
JUMPS = 3
PLATEAU_STEPS = 1000
"""Healthy small byte models leave the unigram entropy within a few hundred steps."""
MANY_EPOCHS = 50
CALM = 20
"""Records without a symptom after which its return counts as new."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """What the records of a run are compared with.

    `uniform_bits` is the cost of a uniform guess, and `unigram_bits` the entropy of single tokens, which a network that
    ignores its input can reach, both per token. `blind_at_full_mask`: a fully masked row shows nothing (no frozen
    tokens, no learned padding). `weighted`: the loss has weights that the recipe can flatten. `positions_per_token` is
    above 1 with learned padding.
    """

    uniform_bits: float
    unigram_bits: float
    warmup: int
    clip: float
    blind_at_full_mask: bool = True
    weighted: bool = True
    positions_per_token: float = 1.0

    @classmethod
    def of(
        cls, rows: Rows, policy: Policy, vocab_size: int, objective: Objective, optimizer: OptimizerComponent
    ) -> Baseline:
        """The baseline of a run on these rows; `vocab_size` includes the mask token."""
        if objective.trains_planner:  # which predicts one bit per position
            return cls(1.0, 1.0, optimizer.warmup, optimizer.clip, blind_at_full_mask=False, weighted=False)
        some = rows.spread(ROWS_EXAMINED)[:]
        counted = some.attention_mask & ~some.frozen
        positions_per_token = float(counted.sum() / max(1, (counted & ~some.padding).sum()))
        return cls(
            uniform_bits=positions_per_token * math.log2(max(2, vocab_size - 1)),
            unigram_bits=positions_per_token * entropy_bits(some.input_ids[counted]),
            warmup=optimizer.warmup,
            clip=optimizer.clip,
            blind_at_full_mask=not (policy.supervises_padding or some.frozen.any()),
            weighted=getattr(objective, "weight", None) == "bound",
            positions_per_token=positions_per_token,
        )


def entropy_bits(tokens: npt.NDArray[np.int64]) -> float:
    """The entropy of single tokens, with the Miller-Madow correction for tokens that the sample misses."""
    counts = np.bincount(tokens.ravel())
    counts = counts[counts > 0]
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum() + (len(counts) - 1) / (2 * counts.sum() * math.log(2.0)))


class ValidationPoint(NamedTuple):
    """A validation bound in bits per token with its Monte-Carlo error."""

    step: int
    bits: float
    error: float


class History:
    """The newest training records, as arrays, and all validations of a run.

    `levels` are bits per token with little noise: the mean cross-entropy over mask rates, which is the same integral as
    the bound without its weights (eq. 11), or the loss if mask rates are missing (an autoregressive model, tiny
    batches). `fully_masked` is the cross-entropy at the highest mask rates in bits, NaN if unknown. Training losses per
    position, which earlier versions logged, are converted; validations per position are left out, since they are of
    other rows.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.first_level: float | None = None
        self.validations: list[ValidationPoint] = []
        self._records: deque[tuple[float, ...]] = deque(maxlen=RECORDS)
        self.steps = self.levels = self.losses = self.grad_norms = self.fully_masked = np.zeros(0)

    def add(self, record: dict[str, Any]) -> bool:
        """Add a training or validation record; False for any other."""
        if "loss" in record:
            known = [value for value in record["cross_entropy"] if value is not None]
            last = record["cross_entropy"][-1]
            scale = self.baseline.positions_per_token
            loss = record["bits_per_token"] * (1.0 if record.get("denominator") == TEXT_TOKENS else scale)
            level = scale * sum(known) / len(known) / math.log(2.0) if len(known) >= MIN_BUCKETS else loss
            fully_masked = math.nan if last is None else last / math.log(2.0)
            self._records.append((record["step"], level, loss, record["grad_norm"], fully_masked))
            columns = np.array(list(self._records), dtype=np.float64).T
            self.steps, self.levels, self.losses, self.grad_norms, self.fully_masked = columns
            self.first_level = level if self.first_level is None else self.first_level
        elif "validation" in record:
            bound = record["validation"]
            error = bound["bits_per_token_mc_stderr"] or 0.0
            if bound.get("denominator") == TEXT_TOKENS or self.baseline.positions_per_token == 1.0:
                self.validations.append(ValidationPoint(record["step"], bound["bits_per_token"], error))
        else:
            return False
        return True

    def late_levels(self, count: int) -> Values | None:
        """The newest `count` levels, or None if there are fewer after the warm-up."""
        late = self.levels[self.steps > self.baseline.warmup]
        return late[-count:] if len(late) >= count else None

    def has_moved(self, levels: Values) -> bool:
        """Whether the mean of some levels differs from the first level by more than 1%."""
        return self.first_level is not None and bool(abs(levels.mean() - self.first_level) > 0.01 * self.first_level)


def noise(values: Values, order: int = 1) -> float:
    """Robust standard deviation around a slow trend, from differences of neighbours; infinite with too few values.

    `order=2` uses second differences, so that a steady slope counts as trend.
    """
    steps = np.diff(values, order)
    if len(steps) < 2:
        return math.inf
    return float(1.4826 * np.median(np.abs(steps)) / math.sqrt(math.comb(2 * order, order)))


def _falls(levels: Values) -> bool:
    """Whether the second half of some levels is significantly lower than the first."""
    first, second = np.array_split(levels, 2)
    error = noise(levels) * math.sqrt(1 / len(first) + 1 / len(second))
    return bool(second.mean() < first.mean() - SIGNIFICANT * error)


def learning_rate_too_high(history: History) -> str | None:
    """The loss rises, or stays above that of a network that ignores its input."""
    found = _rises(history) or _above_uniform(history) or _above_unigram(history)
    if found is None:
        return None
    norm, clip = float(np.median(history.grad_norms[-STRETCH:])), history.baseline.clip
    clipped = f" and gradients are {norm / clip:.0f} times optimizer.clip" if norm > 10 * clip else ""
    return (
        f"The training loss {found}{clipped}: the learning rate is too high for this network; train again with a lower "
        "optimizer.learning_rate or a longer optimizer.warmup."
    )


def _rises(history: History) -> str | None:
    """The median of the newest levels is significantly above the lowest median before.

    The minimum of n noisy values lies about sqrt(2 log n) standard errors below their trend. The standard error of a
    median is 1.25 times that of a mean.
    """
    levels = history.levels
    if len(levels) < 2 * WINDOW:
        return None
    before = np.median(sliding_window_view(levels[:-WINDOW], WINDOW), axis=1)
    lowest, now = float(before.min()), float(np.median(levels[-WINDOW:]))
    error = 1.25 * max(noise(levels), noise(levels[-STRETCH:])) * math.sqrt(2 / WINDOW)
    if now <= lowest + (SIGNIFICANT + math.sqrt(2 * math.log(len(before)))) * error:
        return None
    return f"has risen from {lowest:.2f} to {now:.2f} bits per token"


def _above_uniform(history: History) -> str | None:
    """Networks start near a uniform guess, so 10% above it is a deterioration."""
    newest, uniform = history.late_levels(WINDOW), history.baseline.uniform_bits
    if newest is None or newest.min() < 1.1 * uniform:
        return None
    return f"is at {newest.mean():.2f} bits per token, above the {uniform:.2f} of a uniform guess"


def _above_unigram(history: History) -> str | None:
    """Token frequencies are known to a few percent from a sample of rows."""
    late, unigram = history.late_levels(STRETCH), history.baseline.unigram_bits
    if late is None or _falls(late) or not history.has_moved(late):
        return None
    if late.mean() - SIGNIFICANT * noise(late) / math.sqrt(len(late)) <= 1.03 * unigram:
        return None
    return f"stays at {late.mean():.2f} bits per token, above the {unigram:.2f} of token frequencies alone"


def learning_rate_too_low(history: History) -> str | None:
    """Long after the warm-up, the loss is still where it started."""
    late = history.late_levels(STRETCH)
    if late is None or history.has_moved(late) or late.mean() <= history.baseline.unigram_bits:
        return None
    return (
        f"The training loss has hardly moved from its start, {late.mean():.2f} bits per token: "
        "the learning rate is too low; raise optimizer.learning_rate."
    )


def masked_tokens_visible(history: History) -> str | None:
    """Tokens are predicted well although nearly all of them are masked."""
    blind, unigram = history.fully_masked[-STRETCH:], history.baseline.unigram_bits
    if not history.baseline.blind_at_full_mask or len(blind) < STRETCH or np.isnan(blind).any():
        return None
    # A few visible tokens lower the entropy of the others by some percent, not by half.
    if blind.mean() + SIGNIFICANT * noise(blind) / math.sqrt(len(blind)) >= 0.5 * unigram:
        return None
    return (
        f"Where more than 90% of a row is masked, tokens still cost only {blind.mean():.2f} bits, while the entropy of "
        f"single tokens is {unigram:.2f}: either all rows are alike, or the network sees masked tokens; look for "
        "repeated text, and for a tokenizer or collator that marks masked tokens."
    )


def overfitting(history: History) -> str | None:
    """The validation bound rises while the training loss falls."""
    if len(history.validations) < 3:
        return None
    best = min(history.validations, key=lambda point: point.bits)
    after = [point for point in history.validations if point.step > best.step]
    # All validations use the same draws, so their differences have less noise than their errors say, but never none.
    wobble = max(best.error, noise(np.array([point.bits for point in history.validations]), order=2))
    risen = [point for point in after[-2:] if point.bits > best.bits + SIGNIFICANT * wobble]
    since = int((history.steps > best.step).sum())
    if len(risen) < 2 or since < WINDOW or not _falls(history.levels[-(since + WINDOW) :]):
        return None
    return (
        f"The validation bound has risen from {best.bits:.3f} (step {best.step}) to {after[-1].bits:.3f} bits per "
        "token while the training loss falls: the network overfits; stop here and use the checkpoint of the lowest "
        "bound, or train on more text, with a higher model.dropout or a smaller model."
    )


def unigram_plateau(history: History) -> str | None:
    """The loss has been no better than token frequencies for a long time."""
    steps, unigram = history.steps, history.baseline.unigram_bits
    if not len(steps):
        return None
    start = max(history.baseline.warmup, steps[-1] / 2)
    late = history.levels[steps > start]
    lasted = steps[-1] - max(start, steps[0])
    if len(late) < STRETCH or lasted < PLATEAU_STEPS or _falls(late):
        return None
    if abs(late.mean() - unigram) > 0.05 * unigram:
        return None
    return (
        f"The training loss has stayed at {late.mean():.2f} bits per token for {lasted:.0f} steps, the entropy of "
        f"single tokens ({unigram:.2f}): the network does not use its context; masked models stay there for a while, "
        "and if it lasts, try another optimizer.learning_rate (too high and too low look the same here), a larger "
        "training.batch_size or a shorter data.length."
    )


def validation_stalls(history: History) -> str | None:
    """The best bound of the second half of the run is no better than that of the first."""
    validations = history.validations
    last = validations[-1].step if validations else 0
    early = [point for point in validations if point.step <= last / 2]
    late = [point for point in validations if point.step > last / 2]
    if min(len(early), len(late)) < WINDOW or last / 2 < history.baseline.warmup:
        return None
    before, now = (min(half, key=lambda point: point.bits) for half in (early, late))
    if now.bits < before.bits - max(now.error, before.error):
        return None
    return (
        f"The validation bound has not improved beyond its error since step {before.step} ({before.bits:.3f} bits per "
        "token): stop here, or continue with a lower optimizer.learning_rate, more text or a larger model."
    )


def heavy_weights(history: History) -> str | None:
    """Loss or gradient jump while the cross-entropies are steady, because the weights near t = 0 are too large."""
    levels, losses, norms = (x[-2 * STRETCH :] for x in (history.levels, history.losses, history.grad_norms))
    if not history.baseline.weighted or len(levels) < STRETCH:
        return None
    steady = np.abs(levels - np.median(levels)) < SIGNIFICANT * noise(levels)
    # More than a healthy batch fluctuates: a third of the whole loss at once, or ten times the usual gradient.
    jumps = steady & ((losses - levels > levels / 3) | (norms > 10 * np.median(norms)))
    if jumps.sum() < JUMPS:
        return None
    return (
        f"The loss or gradient jumped in {jumps.sum()} of the last {len(levels)} records (to {losses[jumps].max():.2f} "
        f"bits per token and a norm of {norms[jumps].max():.3g}) while the cross-entropies were steady: the weights of "
        "the bound near t = 0 dominate the gradient; train with objective.weight=flat, schedule=learned or a larger "
        "training.batch_size."
    )


SYMPTOMS: tuple[Callable[[History], str | None], ...] = (
    learning_rate_too_high,
    learning_rate_too_low,
    masked_tokens_visible,
    overfitting,
    unigram_plateau,
    validation_stalls,
    heavy_weights,
)
"""Ordered by how much they explain: while one is found, those after it are not looked for."""


class Advisor:
    """Gives advice on a run from its records alone, so that the same log gives the same advice."""

    def __init__(self, baseline: Baseline) -> None:
        self._history = History(baseline)
        self._last_seen: dict[Callable[[History], str | None], int] = {}
        self._records = 0

    def look(self, record: dict[str, Any]) -> list[str]:
        """The advice on a new record: one sentence at the start of an episode, usually none."""
        if not self._history.add(record):
            return []
        self._records += 1
        for symptom in SYMPTOMS:
            if sentence := symptom(self._history):
                last_seen = self._last_seen.get(symptom)
                self._last_seen[symptom] = self._records
                return [sentence] if last_seen is None or self._records - last_seen > CALM else []
        return []


def advice_on_data(rows: Rows, policy: Policy, tokenizer: Any, batch_size: int, steps: int) -> list[str]:
    """Advice before the first step, from a sample of the rows; usually none."""
    some = rows.spread(ROWS_EXAMINED)[:]
    found = []
    padding = some.padding.mean()
    if padding > 0.5 and policy.supervises_padding:
        found.append(
            f"{padding:.0%} of the learned tokens are EOS that fill up short texts (policy supervised_eos): the loss "
            "is mostly about them; choose a shorter data.length, or data.policy=padded, which does not learn them."
        )
    elif padding > 0.5:
        found.append(
            f"{padding:.0%} of the positions are padding, computed but not counted: choose a shorter data.length, or "
            "data.policy=packed."
        )
    masks = int(((some.input_ids == tokenizer.mask_token_id) & some.attention_mask).any(axis=1).sum())
    if masks:
        found.append(
            f"The training text itself has the mask token (id {tokenizer.mask_token_id}), in {masks} of "
            f"{len(some.input_ids)} rows examined: it cannot be told from noise and is never predicted; clean the text "
            "or choose another data.tokenizer."
        )
    if len(rows) < batch_size:
        found.append(
            f"There are {len(rows)} training rows, fewer than one batch of {batch_size}, so every step sees rows "
            "twice: lower training.batch_size or data.length, or provide more text."
        )
    epochs = batch_size * steps / len(rows)
    if epochs > MANY_EPOCHS:
        found.append(
            f"The run makes {epochs:.0f} epochs over its {len(rows):,} training rows: watch the validation bound, "
            "which may be lowest long before the end."
        )
    return found
