"""A model at work on blanks: a masked one sees all of the function, its twin what stands before the blank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.data.functions import parsed
from unmask.evaluation.code.blanks import Blank
from unmask.evaluation.contests.ways import RULES, Way, at_once
from unmask.evaluation.generation.measures import Values
from unmask.generation import MaskedDiffusionLM
from unmask.scribe import Generation
from unmask.tally import Progress


@dataclass(frozen=True)
class Filled:
    """What became of n blanks: [n] whether the function parses, whether the blank holds what it held (but for white
    space; to the token), tokens that are right and that were asked, network calls, and a share of the seconds."""

    parses: Values
    exact: Values
    same_tokens: Values
    right_tokens: Values
    tokens: Values
    calls: Values
    seconds: Values


def row_of(lm: MaskedDiffusionLM, blank: Blank) -> list[int]:
    """What a model is shown: the function with masks in the blank and its end behind it, as in training; a model that
    reads from left to right is not shown what follows the blank."""
    masks = [lm.scribe.mask] * len(blank.truth)
    if lm.causal:
        return [*blank.ids[: blank.start], *masks]
    return lm.card.policy.frame(blank.with_span(masks), lm.row_length, lm.words.eos_token_id)


def fill(
    lm: MaskedDiffusionLM,
    blanks: Sequence[Blank],
    way: Way,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Filled:
    """Let a model fill all blanks; blank i has the seed `seed + i`."""
    since = time.perf_counter()
    written = lm.fill_rows(
        [row_of(lm, blank) for blank in blanks],
        seed=seed,
        batch_size=at_once(lm, batch_size),
        progress=progress,
        sampler=None if lm.causal else way.on(lm),
        rule=RULES[way.rule],
    )
    seconds = (time.perf_counter() - since) / len(blanks)
    judged = [(*_judged(lm, blank, one), one.calls, seconds) for blank, one in zip(blanks, written, strict=True)]
    return Filled(*(np.array(column, dtype=np.float64) for column in zip(*judged, strict=True)))


def _judged(lm: MaskedDiffusionLM, blank: Blank, written: Generation) -> tuple[bool, bool, bool, int, int]:
    """The columns of `Filled` that one blank alone decides."""
    span = written.ids[blank.start : blank.end]
    text = text_with(lm, blank, span)
    right = sum(a == b for a, b in zip(span, blank.truth, strict=True))
    same_words = text.split() == blank.text.split()
    return parsed(text) is not None, same_words, right == len(span), right, len(span)


def text_with(lm: MaskedDiffusionLM, blank: Blank, span: Sequence[int]) -> str:
    """The function with tokens in its blank, up to the first EOS among them: who ends there has written less."""
    eos = lm.words.eos_token_id
    kept = span[: span.index(eos)] if eos in span else span
    return lm.words.decode(blank.with_span(kept), clean_up_tokenization_spaces=False)
