"""What can be seen to be wrong with a run, each a function from its history to a sentence, or None.

A change counts when it is larger than the noise of the lines it is seen in; the noise is estimated from the lines
themselves. Where a plain number is compared with another, the comment says why that much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from unmask import registry
from unmask.training.advice.history import History, Values, noise

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
