"""Tokens of a corpus on disk, found again by content.

A cache is a folder named by a hash of the tokenizer and of every document's name and text. It is written in a temporary
folder beside its place and then renamed, so it is there completely or not at all; two processes may build the same one,
and the first to finish wins. Its files are opened read-only as memory maps.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unmask.data.sources import Document
from unmask.data.tokenizers import Encoder, encoder_of
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Counts = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]  # characters encoded so far, characters in all

FORMAT = 1
PRINT = 16  # bytes of a document's fingerprint
BATCH_CHARACTERS = 1 << 20
FILES = ("ids.bin", "offsets.npy", "bytes.npy", "characters.npy", "names.jsonl")


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

    def name(self, index: int) -> str:
        """What to call a document in a message."""
        return f"document {index}"


@dataclass(frozen=True, eq=False)
class TokenCache(Tokens):
    """The tokens of a corpus in a folder; ``ids`` (uint16, or uint32 from 65,537 tokens on) is a read-only map."""

    folder: Path

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
        progress: called now and then while they are encoded. Only a batch of documents is in memory at once.
        """
        encoder = encoder_of(tokenizer)
        known = inventory or _inventory(documents())
        place = cache_folder() / "tokens" / known.key(encoder)
        try:
            cache = _opened(place)
            if cache is None:
                _install(place, lambda folder: _write(folder, documents(), encoder, known, progress))
                cache = cls.open(place)
        except OSError as error:
            raise UnmaskError(
                f"The cache folder {place.parent} cannot be used ({error.strerror or error}); "
                "set the environment variable UNMASK_CACHE to a folder that can be written."
            ) from error
        return cache

    @classmethod
    def open(cls, folder: Path) -> TokenCache:
        """Open an existing folder; a damaged one is an `UnmaskError`."""
        meta = _read_meta(folder)
        if meta is None:
            raise UnmaskError(f"The token cache {folder} is missing or damaged; delete it and let it be built again.")
        offsets, byte_counts, character_counts = (np.load(folder / name, mmap_mode="r") for name in FILES[1:4])
        ids = np.memmap(folder / "ids.bin", dtype=meta["dtype"], mode="r")
        return cls(ids, offsets, byte_counts, character_counts, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the folder again instead of receiving the tokens."""
        return TokenCache.open, (self.folder,)

    @cached_property
    def names(self) -> list[str]:
        """The documents' names, read when they are first asked for."""
        with open(self.folder / "names.jsonl", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def name(self, index: int) -> str:
        """The name of one document."""
        return self.names[index]


def cache_folder() -> Path:
    """``$UNMASK_CACHE``, else ``$XDG_CACHE_HOME/unmask``, else ``~/.cache/unmask``."""
    if own := os.environ.get("UNMASK_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


class Inventory:
    """What is left of documents when their text has gone by: fingerprints and sizes, a few bytes each."""

    def __init__(self) -> None:
        self.fingerprints = bytearray()
        self.byte_counts = array("q")
        self.character_counts = array("q")

    def note(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass documents on and note each."""
        for document in documents:
            name, text = (part.encode("utf-8", "surrogatepass") for part in (document.name, document.text))
            self.fingerprints += blake2b(len(name).to_bytes(8, "big") + name + text, digest_size=PRINT).digest()
            self.byte_counts.append(len(text))
            self.character_counts.append(len(document.text))
            yield document

    def chosen(self, flags: npt.NDArray[np.bool_]) -> Inventory:
        """The inventory of the documents whose flag (bool [n]) is set."""
        part = Inventory()
        part.fingerprints += np.frombuffer(self.fingerprints, dtype=f"V{PRINT}")[flags].tobytes()
        part.byte_counts.frombytes(np.array(self.byte_counts)[flags].tobytes())
        part.character_counts.frombytes(np.array(self.character_counts)[flags].tobytes())
        return part

    def key(self, encoder: Encoder) -> str:
        """The name of the cache of these documents with this encoder."""
        head = f"{FORMAT}\n{encoder.identity}\n".encode()
        return blake2b(head + self.fingerprints, digest_size=20).hexdigest()


def _inventory(documents: Iterable[Document]) -> Inventory:
    inventory = Inventory()
    for _ in inventory.note(documents):
        pass
    return inventory


def _opened(folder: Path) -> TokenCache | None:
    return None if _read_meta(folder) is None else TokenCache.open(folder)


def _read_meta(folder: Path) -> dict[str, Any] | None:
    """The description of a complete cache; None where files are missing, cut short or not described."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in FILES}
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("sizes") == sizes else None


def _install(place: Path, write: Callable[[Path], None]) -> None:
    """Write a folder under a temporary name, then put it in its place unless another process was faster."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        write(temporary)
        while not _moved(temporary, place) and _read_meta(place) is None:
            with contextlib.suppress(FileNotFoundError):
                os.replace(place, temporary.with_suffix(".damaged"))
            shutil.rmtree(temporary.with_suffix(".damaged"), ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _moved(source: Path, target: Path) -> bool:
    """Rename a folder; False where the target is there already."""
    try:
        os.replace(source, target)
    except OSError:
        if target.exists():
            return False
        raise
    return True


def _write(
    folder: Path, documents: Iterator[Document], encoder: Encoder, inventory: Inventory, progress: Progress | None
) -> None:
    """Fill a folder with the files of a cache."""
    dtype = np.dtype(np.uint16 if encoder.vocabulary_size <= 1 << 16 else np.uint32)
    offsets = array("q", [0])
    seen = Inventory()
    total = sum(inventory.character_counts)
    done = 0
    with open(folder / "ids.bin", "wb") as ids_file, open(folder / "names.jsonl", "w", encoding="utf-8") as names_file:
        for batch in _batches(seen.note(documents)):
            for ids in encoder([document.text for document in batch], [document.name for document in batch]):
                ids_file.write(ids.astype(dtype).data)
                offsets.append(offsets[-1] + len(ids))
            names_file.writelines(json.dumps(document.name) + "\n" for document in batch)
            done += sum(len(document.text) for document in batch)
            if progress:
                progress(done, total)
    if seen.fingerprints != inventory.fingerprints:
        raise UnmaskError("The text changed while it was read; run again when nothing writes to it.")
    if offsets[-1] == 0:
        raise UnmaskError("The corpus has no tokens in it; give it text that the tokenizer can encode.")
    for name, values in zip(FILES[1:4], (offsets, seen.byte_counts, seen.character_counts), strict=True):
        np.save(folder / name, np.array(values, dtype=np.int64))
    _write_meta(folder, dtype.name)


def _write_meta(folder: Path, dtype: str) -> None:
    """The description comes last: a folder that has one is complete."""
    meta = {"format": FORMAT, "dtype": dtype, "sizes": {name: (folder / name).stat().st_size for name in FILES}}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups of about a million characters."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
