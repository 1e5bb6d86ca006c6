"""Held-out items for a checkpoint, which says itself what puzzles it was trained on."""

from __future__ import annotations

from functools import partial
from itertools import islice

from unmask.data.policies import rows_of_texts
from unmask.data.rows import Rows
from unmask.data.sources.puzzle import PuzzleSource
from unmask.data.tokenizers import encode, encode_one
from unmask.errors import UnmaskError
from unmask.evaluation.origin import trained_on
from unmask.generation import MaskedDiffusionLM

ITEMS = 1000
"""How many are asked unless told."""


def puzzles_of(lm: MaskedDiffusionLM) -> PuzzleSource:
    """The source of a checkpoint's training data, which must be one of puzzles."""
    return trained_on(lm, PuzzleSource, "puzzles", "'unmask train sudoku' or 'paths'")  # type: ignore[type-abstract]


def held_out_items(source: PuzzleSource, count: int | None = None) -> list[str]:
    """The first held-out items, as `question=answer`; some, or all if they are few, where no number is named."""
    if count is None:
        count = min(ITEMS, source.validation)
    if count > source.validation:
        raise UnmaskError(f"--count {count} asks for more than the {source.validation} held-out items that there are.")
    return list(islice(source.items(held_out=True), count))


def rows_of_items(lm: MaskedDiffusionLM, items: list[str]) -> Rows:
    """Items as a model was shown them: its length policy says what stands where, and what is given."""
    words = lm.words
    return rows_of_texts(
        lm.card.policy,
        encode(words, items),
        lm.row_length,
        words.eos_token_id,
        words.pad_token_id,
        encode=partial(encode_one, words),
    )


def check_twin(source: PuzzleSource, twin: MaskedDiffusionLM) -> None:
    """A twin is asked the same items, so it must have learnt the same ones, and not those held out here."""
    if puzzles_of(twin) != source:
        raise UnmaskError(f"The twin '{twin.path}' was trained on other puzzles; give one of the same data.source.")
