"""The training and validation split, mixtures, and `prepare`, which turns a source into a corpus of tokens.

No document is in both parts, and a tokenizer that learns from text sees the training part only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf, nextafter
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from unmask import registry
from unmask.data.cache import TokenCache
from unmask.data.documents import CorpusDigest, Document, hash_fraction
from unmask.data.joined_rows import JoinedRows, MixedRows
from unmask.data.length_policies import Policy, SpecialTokens
from unmask.data.rows import Rows
from unmask.data.sources import Source
from unmask.data.tokenizers import TokenizerComponent
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REPORT_CHARACTERS = 1 << 25


class MixturePart(BaseModel):
    """A source of a mixture and its share of the training samples, relative to the other weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: registry.field("source")  # type: ignore[valid-type]
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class MixtureSource(Source):
    """A weighted mixture: ``{name: mixture, parts: [{source: {...}, weight: 3}, {source: {...}, weight: 1}]}``.

    Parts are split and encoded separately, with one tokenizer for all, so nothing is encoded again when weights change.
    Weights are shares of the training samples, whatever the sizes of the parts: a small part is repeated sooner.
    Validation uses the validation documents of all parts once. A part may be a mixture.
    """

    name: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(min_length=1)

    @property
    def persistent(self) -> bool:  # type: ignore[override]
        return all(part.source.persistent for part in self.parts)

    def check(self) -> None:
        for part in self.parts:
            part.source.check()

    def documents(self) -> Iterator[Document]:
        return chain.from_iterable(part.source.documents() for part in self.parts)


def weighted_parts(source: Source) -> list[tuple[Source, float]]:
    """Return the sources of a mixture, nested ones included, with weights that sum to 1."""
    if not isinstance(source, MixtureSource):
        return [(source, 1.0)]
    total = sum(part.weight for part in source.parts)
    return [
        (inner, share * part.weight / total) for part in source.parts for inner, share in weighted_parts(part.source)
    ]


@dataclass(frozen=True)
class Split:
    """The training and validation documents of a source.

    A document is held out if its source says so or, where the source leaves it open, if the hash of seed and key is
    below `threshold`. cut: the character at which a single document is divided, else None. train, validation: digests
    of the two parts.
    """

    source: Source
    seed: int
    threshold: float
    cut: int | None = None
    train: CorpusDigest = field(default_factory=CorpusDigest)
    validation: CorpusDigest = field(default_factory=CorpusDigest)

    def hash(self, name: str) -> float:
        """Return a number in [0, 1) that is the same for all documents with the same key."""
        return hash_fraction(f"{self.seed}\n{self.source.split_key(name)}".encode("utf-8", "surrogatepass"))

    def is_validation(self, name: str) -> bool:
        """Return whether a document is for validation."""
        held_out = self.source.held_out(name)
        return self.hash(name) < self.threshold if held_out is None else held_out

    def documents(self, validation: bool) -> Iterator[Document]:
        """Yield the documents of one part, from the start of the source."""
        return (document for is_validation, document in self.labelled() if is_validation == validation)

    def labelled(self) -> Iterator[tuple[bool, Document]]:
        """Yield every document of the source with whether it is for validation."""
        position = 0
        for document in self.source.documents():
            if self.cut is None:
                yield self.is_validation(document.name), document
                continue
            end = position + len(document.text)
            if position < self.cut:
                yield False, Document(document.name, document.text[: self.cut - position], more=end < self.cut)
            if end > self.cut:
                yield True, Document(document.name, document.text[max(self.cut - position, 0) :], document.more)
            position = end

    def digested(self) -> Split:
        """Return this split with the digests of its parts."""
        digests = CorpusDigest(), CorpusDigest()
        for is_validation, document in self.labelled():
            digests[is_validation].add(document)
        return replace(self, train=digests[0], validation=digests[1])


def split_source(
    source: Source, fraction: float = 0.05, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Split:
    """Hold out about `fraction` of the documents for validation, and at least one key on either side.

    A single document is cut: its last `fraction` of characters, from the next line or word on, is for validation.
    progress: called with the number of characters read.
    """
    if not 0 < fraction < 1:
        raise UnmaskError(f"The validation fraction must be between 0 and 1, got {fraction}; 0.05 is usual.")
    split = Split(source, seed, fraction)
    lowest, highest = inf, -inf
    for document in report(source.documents(), progress):
        held_out = source.held_out(document.name)
        if held_out is None:
            draw = split.hash(document.name)
            lowest, highest = min(lowest, draw), max(highest, draw)
            held_out = draw < fraction
        (split.validation if held_out else split.train).add(document)
    documents = split.train.documents + split.validation.documents
    if documents == 0:
        raise UnmaskError("The source has no documents; give it text.")
    if documents == 1:
        characters = split.train.characters + split.validation.characters
        return replace(split, cut=_find_cut(source, characters, fraction)).digested()
    if split.train.documents and split.validation.documents:
        return split
    # One part is empty: hold out the lowest hash alone, or all but the highest.
    split = replace(split, threshold=highest if split.validation.documents else nextafter(lowest, inf)).digested()
    held = split.validation.documents
    if 0 < held < documents:
        return split
    if (pattern := getattr(source, "validation_files", None)) is not None:
        remedy = f"data.source.validation_files={pattern!r} must match some of its files and not all"
    elif lowest != highest:
        remedy = "give it more text"
    elif getattr(source, "reverse_complement", False):
        remedy = "give it more records, or set data.source.reverse_complement=false to hold out the end of the only one"
    else:
        remedy = "give them different names"
    raise UnmaskError(
        f"The source holds out {held} of its {documents} documents, which leaves "
        f"{'nothing to train on' if held else 'nothing for validation'}; {remedy}."
    )


def report(documents: Iterable[Document], progress: Callable[[int], None] | None) -> Iterator[Document]:
    """Yield documents and call `progress` from time to time with the number of characters so far."""
    done = reported = 0
    for document in documents:
        yield document
        done += len(document.text)
        if progress is not None and done - reported >= REPORT_CHARACTERS:
            progress(done)
            reported = done


def _find_cut(source: Source, characters: int, fraction: float) -> int:
    """Return the start of a line, else of a word, else any character, at or soon after the last fraction begins."""
    target = int(characters * (1 - fraction))
    start, stop = max(target - 1, 0), target + (characters - target) // 2
    found: dict[str, int] = {}
    position, name = 0, ""
    for document in source.documents():
        name, text = document.name, document.text
        for space in "\n ":
            index = text.find(space, max(start - position, 0), max(stop - position, 0))
            if index >= 0:
                found.setdefault(space, position + index)
        position += len(text)
    cut = found.get("\n", found.get(" ", target - 1)) + 1
    if not 0 < cut < characters:
        raise UnmaskError(
            f"{name} is the only document and its {characters} characters are too few to hold out a fraction of "
            f"{fraction} for validation; give more text or a larger fraction."
        )
    return cut


@dataclass(frozen=True, eq=False)
class Corpus:
    """The tokens of each part of a mixture (a single part for other sources), and their tokenizer.

    weights: of the parts in training. cut: the character at which a single document was divided, else None.
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
        """Return the tables of training and of validation rows."""
        special = SpecialTokens.of(self.tokenizer)
        train = [policy.rows(tokens, length, special) for tokens in self.train_parts]
        validation = [policy.rows(tokens, length, special) for tokens in self.validation_parts]
        return (
            train[0] if len(train) == 1 else MixedRows(train, self.weights),
            validation[0] if len(validation) == 1 else JoinedRows(validation),
        )


SplitProgress = Callable[[str, int, int], None]
"""(part, done, total): characters encoded of the 'train' or 'validation' part, or read of the 'corpus' (total 0)."""

Part = tuple[Callable[[], Iterator[Document]], CorpusDigest]


def prepare(
    source: Source,
    tokenizer: TokenizerComponent | PreTrainedTokenizerFast,
    fraction: float = 0.05,
    seed: int = 0,
    progress: SplitProgress | None = None,
    validation: Source | None = None,
) -> Corpus:
    """Read, split and encode a source; the tokens of documents that were encoded before come from the cache.

    tokenizer: a component, built from the training documents, or a finished tokenizer. validation: a source of the
    validation documents; all of `source` is then for training. The parts of a mixture are split and encoded separately.
    """
    sources, weights = zip(*weighted_parts(source), strict=True)
    reading = None if progress is None else lambda characters: progress("corpus", characters, 0)
    cut = None
    if validation is not None:
        train = [_whole(part) for part in sources]
        held_out = [_whole(validation)]
    else:
        splits = [split_source(part, fraction, seed, reading) for part in sources]
        train = [(partial(split.documents, False), split.train) for split in splits]
        held_out = [(partial(split.documents, True), split.validation) for split in splits]
        cut = splits[0].cut if len(splits) == 1 else None
    if isinstance(tokenizer, TokenizerComponent):
        tokenizer = tokenizer.build(
            lambda: report(chain.from_iterable(documents() for documents, _ in train), reading),
            CorpusDigest.combine([digest for _, digest in train]),
        )

    def encoded(name: str, parts: list[Part]) -> tuple[TokenCache, ...]:
        told = progress and partial(progress, name)
        return tuple(TokenCache.build(documents, tokenizer, digest, told) for documents, digest in parts)

    return Corpus(encoded("train", train), encoded("validation", held_out), weights, tokenizer, cut)


def _whole(source: Source) -> Part:
    return source.documents, CorpusDigest.of(source.documents())
