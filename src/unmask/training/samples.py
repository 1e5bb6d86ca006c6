"""Texts that a network writes while it learns."""

from __future__ import annotations

from typing import Any

from unmask.checkpoint import Card
from unmask.generation import MaskedDiffusionLM
from unmask.likelihood import evaluating

CALLS = 64
"""Network calls a text may take at most."""


def write_samples(denoiser: Any, tokenizer: Any, card: Card, count: int, seed: int) -> list[str]:
    """`count` texts by the weights as they are, the same for the same weights and seed.

    A masked model writes a whole row in `CALLS` steps, its causal twin the first `CALLS` tokens of one. Samplers draw
    from counters alone, so training's random numbers are not touched.
    """
    lm = MaskedDiffusionLM(denoiser, tokenizer, card)
    length, steps = (min(CALLS, lm.row_length), None) if lm.causal else (lm.row_length, CALLS)
    with evaluating(denoiser):
        return lm.generate(count, length=length, steps=steps, seed=seed)
