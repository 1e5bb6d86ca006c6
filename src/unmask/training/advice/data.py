"""What can be said of the rows of a run before its first step."""

from __future__ import annotations

import numpy as np

from unmask.data.policies import Policy
from unmask.data.rows import RowBatch, Rows
from unmask.training.advice.history import ROWS_LOOKED_AT

MANY_PASSES = 50


def advice_on_data(
    rows: Rows, policy: Policy, mask_token_id: int, eos_token_id: int | None, batch_size: int, steps: int
) -> list[str]:
    """Sentences on rows that will not teach what one may think; mostly none. Looks at rows spread over all of them."""
    some = rows.spread(ROWS_LOOKED_AT)[:]
    found = [
        _learnt_ends(some, eos_token_id) if policy.learnt_pads else _pads(some),
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
        f"{share:.0%} of the learnt tokens are the EOS that fill up short texts (policy supervised_eos): the loss is "
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
