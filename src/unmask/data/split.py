"""A source becomes a corpus: training and validation documents, apart, as token caches with their tokenizer.

Documents are never in both parts, and a tokenizer that learns from text sees the training part only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from unmask.data.cache import Inventory, TokenCache
from unmask.data.sources import Document, Source
from unmask.data.tokenizers import TokenizerComponent
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Progress = Callable[[str, int, int], None]  # 'train' or 'validation', characters encoded so far, characters in all


@dataclass(frozen=True, eq=False)
class Split:
    """Which documents are for validation.

    validation: bool [n], one for each document. cut: None, or, where the only document was cut in two, the character at
    which its validation part begins.
    """

    validation: npt.NDArray[np.bool_]
    cut: int | None = None

    def part(self, documents: Iterable[Document], validation: bool) -> Iterator[Document]:
        """The training or the validation documents among all of them."""
        for document, held_out in zip(documents, self.validation, strict=False):  # the cache notices a changed source
            if self.cut is not None:
                text = document.text[self.cut :] if validation else document.text[: self.cut]
                yield Document(document.name, text)
            elif held_out == validation:
                yield document


@dataclass(frozen=True, eq=False)
class Corpus:
    """What training reads. cut: where a lone document was cut in two to have a validation part, else None."""

    train: TokenCache
    validation: TokenCache
    tokenizer: PreTrainedTokenizerFast
    cut: int | None = None


def split(
    documents: Iterable[Document],
    held_out: Callable[[str], bool | None] | None = None,
    fraction: float = 0.05,
    seed: int = 0,
) -> Split:
    """Choose validation documents in one pass.

    held_out: the source's own opinion on a document's name; it wins where it is not None. Otherwise a hash of seed,
    index and name holds out about ``fraction`` of the documents, and of two or more at least one on either side. A
    single document is cut: its last ``fraction`` of characters, from the next line or word on, is the validation part.
    """
    if not 0 < fraction < 1:
        raise UnmaskError(f"The validation fraction {fraction} does not lie between 0 and 1; 0.05 is usual.")
    opinions: list[bool | None] = []
    draws = array("d")
    first: Document | None = None
    for index, document in enumerate(documents):
        first = first or document
        opinions.append(held_out(document.name) if held_out else None)
        draws.append(_uniform(seed, index, document.name))
    if first is None:
        raise UnmaskError("The source has no documents; give it text.")
    if len(draws) == 1:
        return Split(np.zeros(1, dtype=bool), _cut(first, fraction))
    return Split(_choose(opinions, np.array(draws), fraction))


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
    source whose documents are the validation part; all of ``source`` is then for training and nothing is split.
    """
    if validation is not None:
        return _corpus(tokenizer, (source.documents, None), (validation.documents, None), None, progress)
    inventory = Inventory()
    parted = split(inventory.note(source.documents()), source.held_out, fraction, seed)
    train, held_out = (_part(source, parted, inventory, side) for side in (False, True))
    return _corpus(tokenizer, train, held_out, parted.cut, progress)


_Part = tuple[Callable[[], Iterator[Document]], Inventory | None]


def _part(source: Source, parted: Split, inventory: Inventory, validation: bool) -> _Part:
    known = inventory.chosen(parted.validation == validation) if parted.cut is None else None
    return lambda: parted.part(source.documents(), validation), known


def _corpus(
    tokenizer: TokenizerComponent | PreTrainedTokenizerFast,
    train: _Part,
    validation: _Part,
    cut: int | None,
    progress: Progress | None,
) -> Corpus:
    built = tokenizer.build(train[0]) if isinstance(tokenizer, TokenizerComponent) else tokenizer
    caches = [
        TokenCache.build(documents, built, inventory, progress and partial(progress, name))
        for name, (documents, inventory) in (("train", train), ("validation", validation))
    ]
    return Corpus(caches[0], caches[1], built, cut)


def _uniform(seed: int, index: int, name: str) -> float:
    digest = blake2b(f"{seed}\n{index}\n{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _choose(opinions: list[bool | None], draws: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.bool_]:
    """Draws below the fraction, the lowest always and the highest never, then what the source says instead."""
    chosen = draws < fraction
    chosen[draws.argmin()] = True
    chosen[draws.argmax()] = False
    for index, opinion in enumerate(opinions):
        if opinion is not None:
            chosen[index] = opinion
    if chosen.all() or not chosen.any():
        raise UnmaskError(
            f"The source holds out {int(chosen.sum())} of its {len(chosen)} documents, which leaves "
            f"{'nothing to train on' if chosen.all() else 'nothing for validation'}; give it more text."
        )
    return chosen


def _cut(document: Document, fraction: float) -> int:
    """The start of a line, else of a word, else any character, at or soon after the last fraction begins."""
    text = document.text
    target = int(len(text) * (1 - fraction))
    stop = target + (len(text) - target) // 2
    ends = (text.find(space, max(target - 1, 0), stop) + 1 for space in ("\n", " "))
    cut = next((end for end in ends if end), target)
    if not text[:cut].strip() or not text[cut:].strip():
        raise UnmaskError(
            f"{document.name} is the only document and its {len(text)} characters are too few to set a fraction of "
            f"{fraction} apart for validation; give more text or a larger fraction."
        )
    return cut
