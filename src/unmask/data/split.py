"""A source becomes a corpus: training and validation documents, apart, as token caches with their tokenizer.

Documents are never in both parts, and a tokenizer that learns from text sees the training part only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from math import inf, nextafter
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from unmask.data.cache import TokenCache
from unmask.data.length_policies import Policy, SpecialTokens
from unmask.data.rows import Rows
from unmask.data.sources import Document, Source
from unmask.data.sources.base import Inventory, joined, take_inventory
from unmask.data.token_rows import JoinedRows, MixedRows
from unmask.data.tokenizers import TokenizerComponent
from unmask.errors import UnmaskError
from unmask.registry import field

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class MixturePart(BaseModel):
    """A source of a mixture, and its share of the training samples in proportion to the other weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: field("source")  # type: ignore[valid-type]
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class MixtureSource(Source):
    """A weighted mixture: ``{name: mixture, parts: [{source: {...}, weight: 3}, {source: {...}, weight: 1}]}``.

    parts: each is split and encoded on its own with one tokenizer for all, so that a changed weight encodes nothing
    again. Weights count samples of training, whatever the sizes of the parts: a small part is repeated sooner.
    Validation goes through the validation documents of all parts, as they are. A part may be a mixture itself.
    """

    name: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(min_length=1)

    @property
    def persistent(self) -> bool:  # type: ignore[override]
        """Whether every part can be read again."""
        return all(part.source.persistent for part in self.parts)

    def documents(self) -> Iterator[Document]:
        """All documents, part by part."""
        return chain.from_iterable(part.source.documents() for part in self.parts)


def weighted_parts(source: Source) -> list[tuple[Source, float]]:
    """The sources of a mixture, mixtures inside it taken apart, with weights that add up to 1; of others themselves."""
    if not isinstance(source, MixtureSource):
        return [(source, 1.0)]
    total = sum(part.weight for part in source.parts)
    return [
        (inner, share * part.weight / total) for part in source.parts for inner, share in weighted_parts(part.source)
    ]


REPORT_CHARACTERS = 1 << 25
Progress = Callable[[int], None]  # characters read so far


@dataclass(frozen=True)
class Split:
    """Tells the two sides of a source apart.

    The source's own opinion on a name wins where it has one. Otherwise a document is for validation when a hash of seed
    and key, a number in [0, 1), lies below ``below``. cut: None, or the character at which the validation part of a
    lone document begins.
    """

    source: Source
    seed: int
    below: float
    cut: int | None = None

    def holds_out(self, name: str) -> bool:
        """Whether a document is for validation."""
        opinion = self.source.held_out(name)
        return self.draw(name) < self.below if opinion is None else opinion

    def draw(self, name: str) -> float:
        """The same number in [0, 1) for all documents with the same key."""
        key = f"{self.seed}\n{self.source.split_key(name)}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") / 2**64

    def sides(self) -> Iterator[tuple[bool, Document]]:
        """Every document of the source, read from its start, and before each whether it is for validation."""
        documents = self.source.documents()
        if self.cut is not None:
            return _torn(documents, self.cut)
        return ((self.holds_out(document.name), document) for document in documents)

    def part(self, validation: bool) -> Iterator[Document]:
        """The training or the validation documents alone."""
        return (document for held_out, document in self.sides() if held_out == validation)


@dataclass(frozen=True)
class Sides:
    """A split, and the inventories of what it sets apart."""

    split: Split
    train: Inventory
    validation: Inventory


def take_sides(source: Source, fraction: float = 0.05, seed: int = 0, progress: Progress | None = None) -> Sides:
    """Choose validation documents: about ``fraction`` of them, and of two or more keys at least one on either side.

    A single document is cut: its last ``fraction`` of characters, from the next line or word on, is for validation.
    """
    if not 0 < fraction < 1:
        raise UnmaskError(f"The validation fraction {fraction} does not lie between 0 and 1; 0.05 is usual.")
    split = Split(source, seed, fraction)
    look = _FirstLook(split)
    look.read(reported(source.documents(), progress))
    if look.documents == 0:
        raise UnmaskError("The source has no documents; give it text.")
    if look.documents == 1:
        return _second_look(replace(split, cut=_find_cut(source, look.characters, fraction)))
    if not look.is_lopsided:
        return Sides(split, look.train, look.validation)
    sides = _second_look(replace(split, below=look.fair_bound))
    _check_both(sides, look)
    return sides


def reported(documents: Iterable[Document], progress: Progress | None) -> Iterable[Document]:
    """Pass documents on, and say now and then how many characters have gone by."""
    return documents if progress is None else _reported(documents, progress)


def _reported(documents: Iterable[Document], progress: Progress) -> Iterator[Document]:
    done = said = 0
    for document in documents:
        yield document
        done += len(document.text)
        if done - said >= REPORT_CHARACTERS:
            progress(done)
            said = done


class _FirstLook:
    """The inventories of both sides as the fraction alone makes them, and the outermost draws."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.train, self.validation = Inventory(), Inventory()
        self.lowest, self.highest = inf, -inf

    @property
    def documents(self) -> int:
        return self.train.documents + self.validation.documents

    @property
    def characters(self) -> int:
        return self.train.characters + self.validation.characters

    @property
    def is_lopsided(self) -> bool:
        return not (self.train.documents and self.validation.documents)

    @property
    def fair_bound(self) -> float:
        """Holds out the lowest draw alone where none was held out, all but the highest where all were."""
        return self.highest if self.validation.documents else nextafter(self.lowest, inf)

    def read(self, documents: Iterable[Document]) -> None:
        for document in documents:
            (self.validation if self._holds_out(document.name) else self.train).add(document)

    def _holds_out(self, name: str) -> bool:
        opinion = self.split.source.held_out(name)
        if opinion is not None:
            return opinion
        draw = self.split.draw(name)
        if draw < self.lowest:
            self.lowest = draw
        if draw > self.highest:
            self.highest = draw
        return draw < self.split.below


def _second_look(split: Split) -> Sides:
    train, validation = Inventory(), Inventory()
    for held_out, document in split.sides():
        (validation if held_out else train).add(document)
    return Sides(split, train, validation)


def _check_both(sides: Sides, look: _FirstLook) -> None:
    held_out = sides.validation.documents
    if 0 < held_out < look.documents:
        return
    raise UnmaskError(
        f"The source holds out {held_out} of its {look.documents} documents, which leaves "
        f"{'nothing to train on' if held_out else 'nothing for validation'}; "
        f"{_remedy(sides.split.source, look)}."
    )


def _remedy(source: Source, look: _FirstLook) -> str:
    pattern = getattr(source, "validation_files", None)
    if pattern is not None:
        return f"validation_files={pattern!r} must match some of its files and not all"
    if look.lowest != look.highest:
        return "give it more text"
    if getattr(source, "reverse_complement", False):
        return "give it more records, or set reverse_complement=false, and the end of the only one is held out"
    return "give them different names"


def _torn(documents: Iterator[Document], cut: int) -> Iterator[tuple[bool, Document]]:
    """The parts of one document before and behind a character, each with its side."""
    position = 0
    for document in documents:
        end = position + len(document.text)
        if position < cut:
            yield False, Document(document.name, document.text[: cut - position], more=end < cut)
        if end > cut:
            yield True, Document(document.name, document.text[max(cut - position, 0) :], document.more)
        position = end


def _find_cut(source: Source, characters: int, fraction: float) -> int:
    """The start of a line, else of a word, else any character, at or soon after the last fraction begins."""
    target = int(characters * (1 - fraction))
    window = _Window(max(target - 1, 0), target + (characters - target) // 2)
    for document in source.documents():
        window.read(document)
    cut = next((found + 1 for found in window.spaces.values() if found is not None), target)
    if not window.is_written_on_both_sides_of(cut):
        raise UnmaskError(
            f"{window.name} is the only document and its {characters} characters are too few to set a fraction of "
            f"{fraction} apart for validation; give more text or a larger fraction."
        )
    return cut


class _Window:
    """The first line end and the first space between two positions of a text, and the first and last written character.

    Positions are None where there is none.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.spaces: dict[str, int | None] = {"\n": None, " ": None}
        self.name = ""
        self._first: int | None = None
        self._last: int | None = None
        self._position = 0

    def read(self, document: Document) -> None:
        """The next part of the text."""
        text, position, self.name = document.text, self._position, document.name
        for space, found in self.spaces.items():
            place = text.find(space, max(self.start - position, 0), max(self.stop - position, 0))
            if found is None and place >= 0:
                self.spaces[space] = position + place
        if self._first is None and (rest := text.lstrip()):
            self._first = position + len(text) - len(rest)
        if rest := text.rstrip():
            self._last = position + len(rest) - 1
        self._position += len(text)

    def is_written_on_both_sides_of(self, cut: int) -> bool:
        return self._first is not None and self._last is not None and self._first < cut <= self._last


SplitProgress = Callable[[str, int, int], None]
"""(part, done, total): characters encoded of the 'train' or 'validation' part; or read of the 'corpus', total 0."""


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
        special = SpecialTokens.of(self.tokenizer)
        train = [policy.rows(tokens, length, special) for tokens in self.train_parts]
        validation = [policy.rows(tokens, length, special) for tokens in self.validation_parts]
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
    progress: SplitProgress | None = None,
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


def _read(progress: SplitProgress, characters: int) -> None:
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
