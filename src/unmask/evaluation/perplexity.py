"""Held-out rows for a checkpoint: its own validation split, or any text, under its own length policy."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.config import DataConfig
from unmask.data.cache import TokenCache
from unmask.data.rows import Rows
from unmask.data.sources import TextSource
from unmask.data.split import Corpus, prepare
from unmask.errors import UnmaskError
from unmask.generation import MaskedDiffusionLM


def held_out_rows(
    lm: MaskedDiffusionLM, paths: Sequence[str] | None = None, separator: str | None = None, count: int | None = None
) -> Rows:
    """Rows of the texts at `paths`, or of the validation split of the training data; `count` of them."""
    if paths:
        tokens = TokenCache.build(TextSource(paths=list(paths), separator=separator).documents, lm.words)
        rows = lm.card.policy.rows(tokens, lm.row_length, lm.words.eos_token_id, lm.words.pad_token_id)
    else:
        _, rows = _corpus(lm).rows(lm.card.policy, lm.row_length)
    return rows if count is None else rows.spread(count)


def _corpus(lm: MaskedDiffusionLM) -> Corpus:
    described = lm.card.protocol.get("data")
    if described is None:
        raise UnmaskError("This checkpoint does not say what it was trained on; name texts with --data.")
    data = DataConfig(**described)
    if not data.source.lasting:
        raise UnmaskError("This checkpoint was trained on standard input, which is gone; name texts with --data.")
    return prepare(data.source, lm.words, data.validation, data.seed)
