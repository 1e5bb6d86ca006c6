"""A source becomes a corpus: training and validation documents, apart, as token caches with their tokenizer.

Documents are never in both parts, and a tokenizer that learns from text sees the training part only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from unmask.data.cache import TokenCache
from unmask.data.inventory import Inventory, joined, take_inventory
from unmask.data.mixed_rows import JoinedRows, MixedRows
from unmask.data.mixture import weighted_parts
from unmask.data.policies import Marks, Policy
from unmask.data.rows import Rows
from unmask.data.sides import reported, take_sides
from unmask.data.sources import Document, Source
from unmask.data.tokenizers import TokenizerComponent, encode_one

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Progress = Callable[[str, int, int], None]
"""(part, done, total): characters encoded of the 'train' or 'validation' part; or read of the 'corpus', total 0."""


def marks_of(tokenizer: Any) -> Marks:
    """What length policies know of a tokenizer."""
    return Marks(tokenizer.eos_token_id, tokenizer.pad_token_id, partial(encode_one, tokenizer))


@dataclass(frozen=True, eq=False)
class Corpus:
    """What training reads: the tokens of each part of a mixture, of which most corpora have one.

    weights: of the parts in training. cut: where a lone document was cut in two to have a validation part, else None.
    """

    train_parts: tuple[TokenCache, ...]
    validation_parts: tuple[TokenCache, ...]
    weights: tuple[float, ...]
    tokenizer: PreTrainedTokenizerFast
    cut: int | None = None

    @property
    def train(self) -> TokenCache:
        """The training tokens of a corpus that is not a mixture."""
        (only,) = self.train_parts
        return only

    @property
    def validation(self) -> TokenCache:
        """The validation tokens of a corpus that is not a mixture."""
        (only,) = self.validation_parts
        return only

    def rows(self, policy: Policy, length: int) -> tuple[Rows, Rows]:
        """The tables of training and of validation rows."""
        marks = marks_of(self.tokenizer)
        train = [policy.rows(tokens, length, marks) for tokens in self.train_parts]
        validation = [policy.rows(tokens, length, marks) for tokens in self.validation_parts]
        return (
            train[0] if len(train) == 1 else MixedRows(train, self.weights),
            validation[0] if len(validation) == 1 else JoinedRows(validation),
        )


@dataclass(frozen=True)
class _Side:
    """Documents that are to be encoded into one cache."""

    documents: Callable[[], Iterator[Document]]
    inventory: Inventory


def prepare(
    source: Source,
    tokenizer: TokenizerComponent | PreTrainedTokenizerFast,
    fraction: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
    validation: Source | None = None,
) -> Corpus:
    """Read, split and encode a source; what was encoded before is found again in the cache.

    tokenizer: a component, built from the training documents, or a tokenizer that is there already. validation: a
    source whose documents are the validation part; all of ``source`` is then for training and nothing is split. The
    parts of a mixture are split and encoded each on its own.
    """
    parts, weights = zip(*weighted_parts(source), strict=True)
    reading = progress and partial(_read, progress)
    cut = None
    if validation is not None:
        train, held_out = [_whole(part) for part in parts], [_whole(validation)]
    else:
        sides = [take_sides(part, fraction, seed, reading) for part in parts]
        train = [_Side(partial(one.split.part, False), one.train) for one in sides]
        held_out = [_Side(partial(one.split.part, True), one.validation) for one in sides]
        cut = sides[0].split.cut if len(sides) == 1 else None
    built = _built(tokenizer, train, reading)
    train_parts = _encoded(train, built, progress and partial(progress, "train"))
    validation_parts = _encoded(held_out, built, progress and partial(progress, "validation"))
    return Corpus(train_parts, validation_parts, weights, built, cut)


def _whole(source: Source) -> _Side:
    return _Side(source.documents, take_inventory(source.documents()))


def _read(progress: Progress, characters: int) -> None:
    progress("corpus", characters, 0)


def _built(
    tokenizer: TokenizerComponent | PreTrainedTokenizerFast,
    train: Sequence[_Side],
    reading: Callable[[int], None] | None,
) -> PreTrainedTokenizerFast:
    if not isinstance(tokenizer, TokenizerComponent):
        return tokenizer
    return tokenizer.build(
        lambda: iter(reported(chain.from_iterable(side.documents() for side in train), reading)),
        joined([side.inventory for side in train]),
    )


def _encoded(
    sides: Sequence[_Side], tokenizer: PreTrainedTokenizerFast, progress: Callable[[int, int], None] | None
) -> tuple[TokenCache, ...]:
    return tuple(TokenCache.build(side.documents, tokenizer, side.inventory, progress) for side in sides)
