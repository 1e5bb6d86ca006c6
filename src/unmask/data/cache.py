"""Tokens of a corpus on disk, found again by content.

A cache is a folder named by a hash of the tokenizer and of every document's name and text. It is there completely or
not at all; two processes may ask for the same one, and the first builds it. Its files are opened read-only as memory
maps.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from unmask.data.build_once import JOURNAL, build_once, cache_dir, keeping_in, prefetch
from unmask.data.encoding import Encoder, Ids, encoder_of
from unmask.data.pieces import LONG, Counts, Joined, Piece, batches
from unmask.data.sources import Document
from unmask.data.sources.base import Inventory, take_inventory
from unmask.errors import UnmaskError
from unmask.io import atomic_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


FORMAT = 2
FILES = ("ids.bin", "offsets.bin", "bytes.bin", "characters.bin", "names.jsonl")
META = "meta.json"
COMMIT_BYTES = 64 << 20


@dataclass
class Done:
    """How far the files go. begun_bytes, begun_characters: of a document whose last piece is not there yet."""

    pieces: int = 0
    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    characters: int = 0
    begun_bytes: int = 0
    begun_characters: int = 0


class Writer:
    """Appends encoded pieces to the files of a cache in a folder. ``done`` is what they hold, also of an earlier run.

    Every so many bytes the files are forced onto the disk and a journal says how far they go; a writer that opens the
    folder after a crash cuts off what is not in the journal.
    """

    def __init__(self, folder: Path, dtype: npt.DTypeLike) -> None:
        self._folder = folder
        self._dtype = np.dtype(dtype)
        self.done, sizes = _read_journal(folder)
        self._opened = ExitStack()
        self._files = {
            name: self._opened.enter_context(_append_to(folder / name, sizes.get(name, 0))) for name in FILES
        }
        self._uncommitted = 0
        if not sizes:
            self._write("offsets.bin", np.zeros(1, dtype=np.int64))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def append(self, joined: Joined, ids: Ids, sizes: Counts) -> None:
        """Add pieces: their ids one after the other, and int64 [n] how many each has."""
        done = self.done
        ends = np.array([not piece.more for piece in joined.pieces])
        byte_counts, done.begun_bytes = _sums(joined.bytes, ends, done.begun_bytes)
        character_counts, done.begun_characters = _sums(joined.characters, ends, done.begun_characters)
        self._write("ids.bin", ids.astype(self._dtype, copy=False))
        self._write("offsets.bin", (done.tokens + np.cumsum(sizes))[ends])
        self._write("bytes.bin", byte_counts)
        self._write("characters.bin", character_counts)
        self._write("names.jsonl", _lines([piece.name for piece in joined.pieces if not piece.more]))
        done.pieces += len(joined.pieces)
        done.documents += int(ends.sum())
        done.tokens += len(ids)
        done.bytes += len(joined.utf8)
        done.characters += len(joined.text)
        if self._uncommitted >= COMMIT_BYTES:
            self._commit()

    def finish(self) -> None:
        """Force everything onto the disk and describe it. The description comes last: what has one is complete."""
        sizes = self._flush()
        totals = {name: getattr(self.done, name) for name in ("documents", "tokens", "bytes", "characters")}
        meta = {"format": FORMAT, "dtype": self._dtype.name, **totals, "sizes": sizes}
        atomic_text(self._folder / META, json.dumps(meta, indent=1))

    def forget(self) -> None:
        """Nobody is to go on from here."""
        (self._folder / JOURNAL).unlink(missing_ok=True)

    def _write(self, name: str, values: npt.NDArray[Any] | bytes) -> None:
        self._uncommitted += self._files[name].write(values if isinstance(values, bytes) else values.data)

    def _commit(self) -> None:
        journal = {"format": FORMAT, "long": LONG, "done": asdict(self.done), "sizes": self._flush()}
        atomic_text(self._folder / JOURNAL, json.dumps(journal))
        self._uncommitted = 0

    def _flush(self) -> dict[str, int]:
        """The sizes of the files, once the disk has them."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The description of a complete cache; None where files are missing, cut short or not described."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in FILES}
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT and meta.get("sizes") == sizes else None


def _read_journal(folder: Path) -> tuple[Done, dict[str, int]]:
    """What is done and how large the files were then; nothing where there is no journal that fits them.

    Pieces of another size could not be counted, hence ``long``.
    """
    try:
        journal = json.loads((folder / JOURNAL).read_text(encoding="utf-8"))
        here = {name: (folder / name).stat().st_size for name in FILES}
    except (OSError, ValueError):
        return Done(), {}
    if (journal["format"], journal["long"]) != (FORMAT, LONG) or any(here[n] < journal["sizes"][n] for n in FILES):
        return Done(), {}
    return Done(**journal["done"]), journal["sizes"]


def _append_to(path: Path, size: int) -> BinaryIO:
    """Open a file of which ``size`` bytes are to stay."""
    path.touch()
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file


def _sums(sizes: Counts, ends: npt.NDArray[np.bool_], begun: int) -> tuple[Counts, int]:
    """Sizes of pieces added up to those of the documents that end here, and of the one that does not."""
    running = begun + np.cumsum(sizes)
    at_ends = running[ends]
    return np.diff(at_ends, prepend=0), int(running[-1] - at_ends[-1]) if len(at_ends) else int(running[-1])


def _lines(names: list[str]) -> bytes:
    """One JSON string a line; in one call, as there may be very many."""
    return json.dumps(names, separators=("\n", ":"))[1:-1].encode() + b"\n" * bool(names)


__all__ = ["FILES", "TokenCache", "Tokens", "cache_dir"]

Progress = Callable[[int, int], None]  # characters encoded so far, characters in all

LARGE = 1 << 30
"""Bytes of ids from which on nothing is read ahead: rows lie far apart, and what lies around them is not wanted."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of some documents, one after the other, without special tokens.

    ids: [N] unsigned integers. offsets: int64 [n + 1]; document i has ``ids[offsets[i]:offsets[i + 1]]``. byte_counts,
    character_counts: int64 [n], the size of each document's text, or None where the text is not known.
    """

    ids: npt.NDArray[Any]
    offsets: Counts
    byte_counts: Counts | None
    character_counts: Counts | None

    @classmethod
    def of(cls, token_ids: Sequence[Sequence[int]], texts: Sequence[str] | None = None) -> Tokens:
        """Lists of ids in memory, with the texts that they encode where those are known."""
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in token_ids])]).astype(np.int64)
        flat = np.fromiter((number for ids in token_ids for number in ids), dtype=np.int64, count=int(offsets[-1]))
        if texts is None:
            return cls(flat, offsets, None, None)
        if len(texts) != len(token_ids):
            raise ValueError(f"{len(token_ids)} lists of ids for {len(texts)} texts")
        sizes = np.array([(len(text.encode()), len(text)) for text in texts], dtype=np.int64).reshape(-1, 2)
        return cls(flat, offsets, sizes[:, 0], sizes[:, 1])

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.offsets) - 1

    def document(self, index: int) -> npt.NDArray[Any]:
        """The ids of one document."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of all texts."""
        return None if self.byte_counts is None else int(self.byte_counts.sum())

    @property
    def characters(self) -> int | None:
        """Characters of all texts."""
        return None if self.character_counts is None else int(self.character_counts.sum())

    def name(self, index: int) -> str:
        """What to call a document in a message."""
        return f"document {index}"

    def release(self) -> None:
        """Give back memory that reading took and that is not needed any more."""


@dataclass(frozen=True, eq=False)
class TokenCache(Tokens):
    """The tokens of a corpus in a folder; ``ids`` (uint16, or uint32 from 65,537 tokens on) is a read-only map."""

    folder: Path
    meta: dict[str, Any]

    @classmethod
    def build(
        cls,
        documents: Callable[[], Iterator[Document]],
        tokenizer: PreTrainedTokenizerFast,
        inventory: Inventory | None = None,
        progress: Progress | None = None,
    ) -> TokenCache:
        """Open the cache of these documents, encoding them first where there is none (or only a damaged one).

        documents: yields them from the start at each call. inventory: theirs, where the caller has it already.
        progress: called now and then while they are encoded. Only a few batches of text are in memory at once. What was
        encoded before a crash is not encoded again.
        """
        encoder = encoder_of(tokenizer)
        known = inventory or take_inventory(documents())
        place = cache_dir() / "tokens" / _key(known, encoder)
        with keeping_in(place.parent):
            build_once(place, _is_whole, lambda folder: _write(folder, documents(), encoder, known, progress))
            return cls.open(place)

    @classmethod
    def open(cls, folder: Path) -> TokenCache:
        """Open an existing folder; a damaged one is an `UnmaskError`."""
        meta = read_meta(folder)
        if meta is None:
            raise UnmaskError(f"The token cache {folder} is missing or damaged; delete it and let it be built again.")
        ids = np.memmap(folder / FILES[0], meta["dtype"], "r")
        if ids.nbytes > LARGE:
            _advise(ids, "MADV_RANDOM")
        offsets, byte_counts, character_counts = (np.memmap(folder / name, np.int64, "r") for name in FILES[1:4])
        return cls(ids, offsets, byte_counts, character_counts, folder, meta)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the folder again instead of receiving the tokens."""
        return TokenCache.open, (self.folder,)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return self.meta["bytes"]

    @property
    def characters(self) -> int:
        """Characters of all texts."""
        return self.meta["characters"]

    @cached_property
    def names(self) -> list[str]:
        """The documents' names, read when they are first asked for."""
        with open(self.folder / "names.jsonl", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def name(self, index: int) -> str:
        """The name of one document."""
        with open(self.folder / "names.jsonl", encoding="utf-8") as lines:
            return json.loads(next(islice(lines, index, None)))

    def release(self) -> None:
        """Let go of pages of the maps: they count as this process's memory, though the system can have them back."""
        for array in (self.ids, self.offsets):
            _advise(array, "MADV_DONTNEED")


def _advise(array: npt.NDArray[Any], advice: str) -> None:
    """Tell the system how a map is used, where it can be told."""
    if hasattr(mmap, advice):
        array.base.madvise(getattr(mmap, advice))  # type: ignore[union-attr]


def _key(inventory: Inventory, encoder: Encoder) -> str:
    content = f"{FORMAT}\n{encoder.identity}\n{inventory.digest}"
    return blake2b(content.encode(), digest_size=20).hexdigest()


def _is_whole(folder: Path) -> bool:
    return read_meta(folder) is not None


def _write(
    folder: Path, documents: Iterator[Document], encoder: Encoder, inventory: Inventory, progress: Progress | None
) -> None:
    """Fill a folder with the files of a cache, going on behind the pieces that are there already."""
    seen = Inventory()
    with Writer(folder, np.uint16 if encoder.vocabulary_size <= 1 << 16 else np.uint32) as writer:
        pieces = islice(encoder.pieces(seen.note(documents)), writer.done.pieces, None)
        with closing(prefetch(batches(pieces))) as coming:
            for batch in coming:
                _append(writer, encoder, batch)
                if progress:
                    progress(writer.done.characters, inventory.characters)
        _check(seen, inventory, writer)
        writer.finish()


def _append(writer: Writer, encoder: Encoder, batch: Sequence[Piece]) -> None:
    try:
        joined = Joined(batch)
        writer.append(joined, *encoder.encode(joined))
    except UnmaskError:  # the text is at fault, so that nobody will come back for it
        writer.forget()
        raise


def _check(seen: Inventory, expected: Inventory, writer: Writer) -> None:
    if seen.digest != expected.digest:
        writer.forget()
        raise UnmaskError("The text changed while it was read; run again when nothing writes to it.")
    if not writer.done.tokens:
        raise UnmaskError("The corpus has no tokens in it; give it text that the tokenizer can encode.")
