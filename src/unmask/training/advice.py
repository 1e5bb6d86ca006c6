"""The doctor of a run: reads its data and its log, and says in plain words what looks wrong and what to do about it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from unmask import registry
from unmask.data.length_policies import Policy
from unmask.data.rows import RowBatch, Rows
from unmask.objectives.base import Objective
from unmask.optimizers.base import OptimizerComponent

LINES = 400
"""Newest training lines that are remembered."""
MOST_BUCKETS = 8
ROWS_LOOKED_AT = 1024

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """What a run's records are judged by.

    uniform_bits: what equal chances for all tokens cost. unigram_bits: the entropy of single tokens, which a network
    that ignores its input can reach. blind_at_full_mask: whether a fully masked row shows nothing (no given tokens, no
    learnt pads). weighted: whether the loss has weights that the recipe can make flat.
    """

    uniform_bits: float
    unigram_bits: float
    warmup: int
    clip: float
    blind_at_full_mask: bool = True
    weighted: bool = True

    @classmethod
    def of(
        cls, rows: Rows, policy: Policy, vocab_size: int, objective: Objective, optimizer: OptimizerComponent
    ) -> Baseline:
        """The yardstick of a run on these rows; one of the tokens is the mask. A planner answers yes or no: one bit."""
        if objective.trains_planner:
            return cls(1.0, 1.0, optimizer.warmup, optimizer.clip, blind_at_full_mask=False, weighted=False)
        some = rows.spread(ROWS_LOOKED_AT)[:]
        counted = some.attention_mask & ~some.frozen
        return cls(
            uniform_bits=math.log2(max(2, vocab_size - 1)),
            unigram_bits=entropy_bits(some.input_ids[counted]),
            warmup=optimizer.warmup,
            clip=optimizer.clip,
            blind_at_full_mask=not (policy.supervises_padding or some.frozen.any()),
            weighted=getattr(objective, "weight", None) == "bound",
        )


@dataclass(frozen=True)
class Validation:
    """One validation: the bound in bits per token and the error of its draws."""

    step: int
    bits: float
    error: float


class History:
    """The newest training lines and all validations of a run, and what it is judged by."""

    def __init__(self, yardstick: Baseline) -> None:
        self.yardstick = yardstick
        self.start: float | None = None
        """The level of the very first line."""
        self.validations: list[Validation] = []
        self._lines: deque[tuple[float, ...]] = deque(maxlen=LINES)

    def add(self, record: dict[str, Any]) -> bool:
        """Take in a training or a validation record; False for any other."""
        if "loss" in record:
            self._lines.append(_numbers(record))
            self.start = _level(record) if self.start is None else self.start
        elif "validation" in record:
            bound = record["validation"]
            error = bound["bits_per_token_mc_stderr"] or 0.0
            self.validations.append(Validation(record["step"], bound["bits_per_token"], error))
        else:
            return False
        return True

    @property
    def steps(self) -> Values:
        """Steps of the training lines."""
        return self._column(0)

    @property
    def levels(self) -> Values:
        """Bits per token of the training lines with as little noise as they allow: `_level`."""
        return self._column(1)

    @property
    def losses(self) -> Values:
        """The bound in bits per token as it was drawn, weights and all."""
        return self._column(2)

    @property
    def grad_norms(self) -> Values:
        """Gradient norms before clipping."""
        return self._column(3)

    @property
    def nearly_all_masked(self) -> Values:
        """Cross-entropy of the highest mask rates in bits; NaN where there was none."""
        return self._column(4)

    def _column(self, number: int) -> Values:
        return np.array([line[number] for line in self._lines], dtype=np.float64)


def _numbers(line: dict[str, Any]) -> tuple[float, ...]:
    last = line["cross_entropy"][-1]
    masked = math.nan if last is None else last / math.log(2.0)
    return line["step"], _level(line), line["bits_per_token"], line["grad_norm"], masked


def noise(values: Values, order: int = 1) -> float:
    """Standard deviation of a value around a slow course, from the steps between neighbours; outliers do not count.

    `order=2` takes the steps between steps, which a steady slope has no part in. Infinite where there are too few.
    """
    steps = np.diff(values, order)
    spread = 1.4826 * np.median(np.abs(steps)) / math.sqrt(math.comb(2 * order, order)) if len(steps) > 1 else math.inf
    return float(spread)


def entropy_bits(tokens: npt.NDArray[np.int64]) -> float:
    """The entropy of single tokens, with Miller and Madow's correction for those that a sample misses."""
    counts = np.bincount(tokens.ravel())
    counts = counts[counts > 0]
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum() + (len(counts) - 1) / (2 * counts.sum() * math.log(2.0)))


def _level(line: dict[str, Any]) -> float:
    """The bound without its weights: the mean cross-entropy over mask rates, which is the same integral (eq. 11).

    Where mask rates are missing (a left-to-right model, tiny batches) it is the loss itself.
    """
    known = [value for value in line["cross_entropy"] if value is not None]
    if len(known) < MOST_BUCKETS:
        return line["bits_per_token"]
    return sum(known) / len(known) / math.log(2.0)


WINDOW = 5
"""Lines whose mean is compared with others'."""
STRETCH = 20
"""Lines without which a lasting state is not spoken of."""
SURE = 4.0
"""Standard errors that make a difference."""
JUMPS = 3
"""Jumps that are no coincidence any more."""
PLATEAU_STEPS = 1000
"""Healthy small models of bytes leave the entropy of single tokens within a few hundred steps of its reach."""


def learning_rate_too_high(history: History) -> str | None:
    """The loss climbs, or stays above what a network that ignores its input would reach."""
    seen = _climbs(history) or _worse_than_blind(history) or _worse_than_frequencies(history)
    if seen is None:
        return None
    return (
        f"The training loss {seen}{_clipped(history)}: the learning rate is too high for this network; train again "
        "with a lower optimizer.learning_rate or a longer optimizer.warmup."
    )


def nothing_learnt(history: History) -> str | None:
    """The loss is where it started, long after the warm-up began."""
    late = _late(history, STRETCH)
    if late is None or _moved(history, late) or late.mean() <= history.yardstick.unigram_bits:
        return None
    return (
        f"The training loss has hardly moved from its start, {late.mean():.2f} bits per token: "
        "the learning rate is too low; raise optimizer.learning_rate."
    )


def masked_tokens_visible(history: History) -> str | None:
    """Tokens are known where nearly all of them are masked."""
    blind = history.nearly_all_masked[-STRETCH:]
    if not history.yardstick.blind_at_full_mask or len(blind) < STRETCH or np.isnan(blind).any():
        return None
    # A few visible tokens of a text lower the entropy of the others by some percent; not by half.
    if blind.mean() + SURE * noise(blind) / math.sqrt(len(blind)) < 0.5 * history.yardstick.unigram_bits:
        return (
            f"Where more than 90% of a row is masked, its tokens are still predicted to {blind.mean():.2f} bits, and "
            f"single tokens hold {history.yardstick.unigram_bits:.2f}: either all rows are alike, or the network sees "
            "what is masked; look for repeated text, and for a tokenizer or collator that marks masked tokens."
        )
    return None


def overfitting(history: History) -> str | None:
    """The validation bound rises while the training loss falls."""
    if len(history.validations) < 3:
        return None
    best = min(history.validations, key=lambda validation: validation.bits)
    after = [validation for validation in history.validations if validation.step > best.step]
    # All validations use the same draws: their differences have less noise than each of them, but never none.
    wobble = max(best.error, noise(np.array([one.bits for one in history.validations]), order=2))
    risen = [one for one in after[-2:] if one.bits > best.bits + SURE * wobble]
    levels = history.levels
    since = levels[history.steps > best.step]
    if len(risen) < 2 or len(since) < WINDOW or not _falls(levels[-(len(since) + WINDOW) :]):
        return None
    return (
        f"The validation bound has risen from {best.bits:.3f} (step {best.step}) to {after[-1].bits:.3f} bits per "
        "token while the training loss falls: the network learns its text by heart; stop here and use the checkpoint "
        "of the lowest bound, or train on more text, with more model.dropout or a smaller model."
    )


def unigram_plateau(history: History) -> str | None:
    """The loss is no better than token frequencies, and has been for long."""
    steps, unigram = history.steps, history.yardstick.unigram_bits
    if not len(steps):
        return None
    late = history.levels[steps > max(history.yardstick.warmup, steps[-1] / 2)]
    lasted = steps[-1] - max(history.yardstick.warmup, steps[-1] / 2, steps[0])
    if len(late) < STRETCH or lasted < PLATEAU_STEPS or _falls(late):
        return None
    if abs(late.mean() - unigram) > 0.05 * unigram:
        return None
    return (
        f"The training loss has stayed at {late.mean():.2f} bits per token for {lasted:.0f} steps, the entropy of "
        f"single tokens ({unigram:.2f}): the network does not use its context; masked models rest there for a while, "
        "and if it lasts, try another optimizer.learning_rate (too high and too low look the same here), a larger "
        "training.batch_size or a shorter data.length."
    )


def validation_stands_still(history: History) -> str | None:
    """The best bound of the second half of the run is no better than that of the first."""
    validations = history.validations
    last = validations[-1].step if validations else 0
    early = [one for one in validations if one.step <= last / 2]
    late = [one for one in validations if one.step > last / 2]
    if min(len(early), len(late)) < WINDOW or last / 2 < history.yardstick.warmup:
        return None
    before, now = (min(half, key=lambda one: one.bits) for half in (early, late))
    if now.bits < before.bits - max(now.error, before.error):
        return None
    return (
        f"The validation bound has not improved beyond its error since step {before.step} ({before.bits:.3f} bits per "
        "token): stop here, or go on with a lower optimizer.learning_rate, more text or a larger model."
    )


def heavy_weights(history: History) -> str | None:
    """Loss or gradient jump again and again while the cross-entropies behind them are calm: the weights near t = 0."""
    levels, losses, norms = (x[-2 * STRETCH :] for x in (history.levels, history.losses, history.grad_norms))
    if not history.yardstick.weighted or len(levels) < STRETCH:
        return None
    calm = np.abs(levels - np.median(levels)) < SURE * noise(levels)
    # A jump is no fluctuation of a healthy batch: a third of the whole loss at once, or ten times the usual gradient.
    jumps = calm & ((losses - levels > levels / 3) | (norms > 10 * np.median(norms)))
    if jumps.sum() < JUMPS:
        return None
    return (
        f"Loss or gradient jumped in {jumps.sum()} of the last {len(levels)} lines (to {losses[jumps].max():.2f} bits "
        f"per token and a norm of {norms[jumps].max():.3g}) while the cross-entropies behind them were calm: the "
        "weights of the bound near t = 0 drown the gradient; train with "
        f"objective.weight=flat{_learned_schedule()} or a larger training.batch_size."
    )


SYMPTOMS: dict[str, Callable[[History], str | None]] = {
    symptom.__name__: symptom
    for symptom in (
        learning_rate_too_high,
        nothing_learnt,
        masked_tokens_visible,
        overfitting,
        unigram_plateau,
        validation_stands_still,
        heavy_weights,
    )
}


def _climbs(history: History) -> str | None:
    """The median of the newest lines is above the lowest one before them, for sure.

    The lowest of n noisy values lies about sqrt(2 log n) standard errors below the course it is drawn from. A median's
    error is 1.25 times a mean's.
    """
    levels = history.levels
    if len(levels) < 2 * WINDOW:
        return None
    before = np.median(sliding_window_view(levels[:-WINDOW], WINDOW), axis=1)
    lowest, now = float(before.min()), float(np.median(levels[-WINDOW:]))
    error = 1.25 * max(noise(levels), noise(levels[-STRETCH:])) * math.sqrt(2 / WINDOW)
    if now <= lowest + (SURE + math.sqrt(2 * math.log(len(before)))) * error:
        return None
    return f"has risen from {lowest:.2f} to {now:.2f} bits per token"


def _worse_than_blind(history: History) -> str | None:
    """Networks begin with equal chances for all tokens, or near them: a tenth above is not where they began."""
    newest, uniform = _late(history, WINDOW), history.yardstick.uniform_bits
    if newest is None or newest.min() < 1.1 * uniform:
        return None
    return f"is at {newest.mean():.2f} bits per token, and equal chances for all tokens give {uniform:.2f}"


def _worse_than_frequencies(history: History) -> str | None:
    """The frequencies of a sample of rows are known to a few percent."""
    late, unigram = _late(history, STRETCH), history.yardstick.unigram_bits
    if late is None or _falls(late) or not _moved(history, late) or not _above(late, 1.03 * unigram):
        return None
    return f"stays at {late.mean():.2f} bits per token, and token frequencies alone give {unigram:.2f}"


def _falls(levels: Values) -> bool:
    """Whether the second half of some lines is lower than the first for sure."""
    first, second = np.array_split(levels, 2)
    error = noise(levels) * math.sqrt(1 / len(first) + 1 / len(second))
    return bool(second.mean() < first.mean() - SURE * error)


def _above(levels: Values, limit: float) -> bool:
    """Whether the mean of some lines is above a limit for sure."""
    return bool(levels.mean() - SURE * noise(levels) / math.sqrt(len(levels)) > limit)


def _late(history: History, count: int) -> Values | None:
    """The newest lines, where there are so many after the warm-up."""
    late = history.levels[history.steps > history.yardstick.warmup]
    return late[-count:] if len(late) >= count else None


def _moved(history: History, late: Values) -> bool:
    """Whether the loss is anywhere else than where it started."""
    return history.start is not None and bool(abs(late.mean() - history.start) > 0.01 * history.start)


def _clipped(history: History) -> str:
    """A remark on gradients that are cut to a tenth or less every time."""
    norm, clip = float(np.median(history.grad_norms[-STRETCH:])), history.yardstick.clip
    return f" and gradients are {norm / clip:.0f} times optimizer.clip" if norm > 10 * clip else ""


def _learned_schedule() -> str:
    return ", schedule=learned" if "learned" in registry.names("schedule") else ""


MANY_PASSES = 50


def advice_on_data(
    rows: Rows, policy: Policy, mask_token_id: int, eos_token_id: int | None, batch_size: int, steps: int
) -> list[str]:
    """Sentences on rows that will not teach what one may think; mostly none. Looks at rows spread over all of them."""
    some = rows.spread(ROWS_LOOKED_AT)[:]
    found = [
        _learnt_ends(some, eos_token_id) if policy.supervises_padding else _pads(some),
        _mask_token(some, mask_token_id),
        _few_rows(len(rows), batch_size),
        _many_passes(len(rows), batch_size * steps),
    ]
    return [sentence for sentence in found if sentence]


def _learnt_ends(some: RowBatch, eos_id: int | None) -> str | None:
    """Rows filled up with EOS: the first ends the text, the others only fill."""
    after_text = np.cumprod((some.input_ids == eos_id)[:, ::-1], axis=1).sum(axis=1)
    share = np.maximum(after_text - 1, 0).sum() / some.input_ids.size
    if share <= 0.5:
        return None
    return (
        f"{share:.0%} of the learned tokens are EOS that fill up short texts (policy supervised_eos): the loss is "
        "mostly about them; choose a shorter data.length, or data.policy=padded, which does not count them."
    )


def _pads(some: RowBatch) -> str | None:
    share = 1.0 - some.attention_mask.mean()
    if share <= 0.5:
        return None
    return (
        f"{share:.0%} of the positions are pads, computed and not counted: choose a shorter data.length, or "
        "data.policy=packed."
    )


def _mask_token(some: RowBatch, mask_token_id: int) -> str | None:
    holding = int(((some.input_ids == mask_token_id) & some.attention_mask).any(axis=1).sum())
    if not holding:
        return None
    return (
        f"The mask token (id {mask_token_id}) stands in the training text itself, in {holding} of "
        f"{len(some.input_ids)} rows looked at: it cannot be told from noise and is never predicted; clean the text or "
        "choose another data.tokenizer."
    )


def _few_rows(rows: int, batch_size: int) -> str | None:
    if rows >= batch_size:
        return None
    return (
        f"There are {rows} training rows, fewer than one batch of {batch_size}, so every step sees rows twice: lower "
        "training.batch_size or data.length, or give more text."
    )


def _many_passes(rows: int, samples: int) -> str | None:
    passes = samples / rows
    if passes <= MANY_PASSES:
        return None
    return (
        f"The run passes {passes:.0f} times over its {rows:,} training rows: watch the validation bound, whose lowest "
        "value may come long before the end."
    )


CALM = 20
"""Records without a symptom that end its episode."""


class Advisor:
    """What it says is a function of the records alone: looking through a log again says the same again.

    Symptoms are ordered by how much they explain: while one holds, those behind it are not looked for.
    """

    def __init__(self, yardstick: Baseline) -> None:
        self._history = History(yardstick)
        self._calm_since: dict[str, int] = {}
        self._records = 0

    def look(self, record: dict[str, Any]) -> list[str]:
        """The sentences that a new record of the log gives reason for; mostly none."""
        if not self._history.add(record):
            return []
        self._records += 1
        for name, symptom in SYMPTOMS.items():
            if sentence := symptom(self._history):
                return [sentence] if self._begins(name) else []
        return []

    def _begins(self, name: str) -> bool:
        """Whether a symptom that is seen now was not seen for a while."""
        seen_before = self._calm_since.get(name)
        self._calm_since[name] = self._records
        return seen_before is None or self._records - seen_before > CALM


__all__ = ["Advisor", "Baseline", "advice_on_data"]
