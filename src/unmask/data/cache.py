"""The token cache: encoded documents in a folder, memory-mapped and found again by content.

A cache is named by a hash of the tokenizer and of every document's name and text. It is complete or absent: an encoding
that is killed continues in a temporary folder, and a damaged cache is built again.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unmask.data.documents import CorpusDigest, Document
from unmask.data.encoding import CHUNK_CHARACTERS, ChunkBatch, Counts, Ids, TextEncoder, encoder_of
from unmask.data.rows import Tokens, prefetch
from unmask.errors import UnmaskError
from unmask.io import atomic_text, build_once, cache_dir

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Progress = Callable[[int, int], None]
"""Called with the characters encoded so far and the characters in all."""

FORMAT = 2
FILES = ("ids.bin", "offsets.bin", "bytes.bin", "characters.bin", "names.jsonl")
META = "meta.json"
JOURNAL = "progress.json"
COMMIT_BYTES = 64 << 20
RANDOM_ACCESS_BYTES = 1 << 30
"""Larger files are mapped without read-ahead, since rows are read in random order."""


@dataclass(frozen=True, eq=False)
class TokenCache(Tokens):
    """The tokens of a corpus in a folder; `ids` is a read-only memory map of uint16, or uint32 if they need it."""

    folder: Path

    @classmethod
    def build(
        cls,
        documents: Callable[[], Iterator[Document]],
        tokenizer: PreTrainedTokenizerFast,
        digest: CorpusDigest | None = None,
        progress: Progress | None = None,
    ) -> TokenCache:
        """Open the cache of these documents, after encoding them where it is missing or damaged.

        documents: yields them from the start at each call. digest: that of the documents, if it is known.
        """
        encoder = encoder_of(tokenizer)
        digest = digest or CorpusDigest.of(documents())
        key = f"{FORMAT}\n{encoder.identity}\n{digest.hexdigest}"
        folder = cache_dir() / "tokens" / blake2b(key.encode(), digest_size=20).hexdigest()
        build_once(
            folder,
            lambda folder: read_meta(folder) is not None,
            lambda folder: write_tokens(folder, documents(), encoder, digest, progress),
        )
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> TokenCache:
        """Open an existing folder; raise `UnmaskError` if it is damaged."""
        meta = read_meta(folder)
        if meta is None:
            raise UnmaskError(f"The token cache {folder} is missing or damaged; delete it to have it built again.")
        ids = np.memmap(folder / FILES[0], meta["dtype"], "r")
        if ids.nbytes > RANDOM_ACCESS_BYTES:
            _advise(ids, "MADV_RANDOM")
        offsets, byte_counts, character_counts = (np.memmap(folder / name, np.int64, "r") for name in FILES[1:4])
        return cls(ids, offsets, byte_counts, character_counts, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder's path instead of the tokens."""
        return TokenCache.open, (self.folder,)

    def name(self, index: int) -> str:
        with open(self.folder / "names.jsonl", encoding="utf-8") as lines:
            return json.loads(next(islice(lines, index, None)))

    def release(self) -> None:
        """Release the pages of the maps, which count as memory of this process."""
        for array in (self.ids, self.offsets):
            _advise(array, "MADV_DONTNEED")


def _advise(array: npt.NDArray[Any], advice: str) -> None:
    if hasattr(mmap, advice):
        array.base.madvise(getattr(mmap, advice))  # type: ignore[union-attr]


def read_meta(folder: Path) -> dict[str, Any] | None:
    """Return the description of a complete cache; None where files are missing or truncated."""
    meta = _read_json(folder / META)
    return meta if meta.get("format") == FORMAT and meta.get("sizes") == _file_sizes(folder) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _file_sizes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in FILES if (folder / name).is_file()}


def write_tokens(
    folder: Path, documents: Iterator[Document], encoder: TextEncoder, digest: CorpusDigest, progress: Progress | None
) -> None:
    """Encode documents into the files of a cache, after the chunks that are there already."""
    seen = CorpusDigest()

    def hashed() -> Iterator[Document]:
        for document in documents:
            seen.add(document)
            yield document

    with TokenWriter(folder, np.uint16 if encoder.vocabulary_size <= 1 << 16 else np.uint32) as writer:
        chunks = islice(encoder.split(hashed()), writer.written.chunks, None)
        with closing(prefetch(ChunkBatch.group(chunks))) as batches:
            for batch in batches:
                writer.append(batch, *encoder.encode(batch))
                if progress:
                    progress(writer.written.characters, digest.characters)
        if seen.hexdigest != digest.hexdigest:
            raise UnmaskError("The text changed while it was read; run again when nothing writes to it.")
        if not writer.written.tokens:
            raise UnmaskError("The corpus has no tokens in it; give it text that the tokenizer can encode.")
        writer.finish()


@dataclass
class WriterState:
    """What the files hold. open_bytes, open_characters: sizes of a document whose last chunk is not written yet."""

    chunks: int = 0
    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    characters: int = 0
    open_bytes: int = 0
    open_characters: int = 0


class TokenWriter:
    """Appends encoded chunks to the files of a cache.

    Every `COMMIT_BYTES` the files are flushed to the disk and a journal records their sizes. A new writer in the same
    folder cuts off what was written after that and continues; `written` is what the files hold.
    """

    def __init__(self, folder: Path, dtype: npt.DTypeLike) -> None:
        self._folder, self._dtype = folder, np.dtype(dtype)
        self._uncommitted = 0
        self.written = WriterState()
        journal, present = _read_json(folder / JOURNAL), _file_sizes(folder)
        sizes = dict.fromkeys(FILES, 0)
        # Chunks of another size cannot be counted, and files shorter than the journal says are damaged.
        if journal.get("format") == [FORMAT, CHUNK_CHARACTERS] and all(
            present.get(name, 0) >= size for name, size in journal["sizes"].items()
        ):
            self.written, sizes = WriterState(**journal["written"]), journal["sizes"]
        self._stack = ExitStack()
        self._files = {}
        for name, size in sizes.items():
            (folder / name).touch()
            self._files[name] = file = self._stack.enter_context((folder / name).open("r+b"))
            file.truncate(size)
            file.seek(size)
        if not sizes["offsets.bin"]:
            self._write("offsets.bin", np.zeros(1, dtype=np.int64))

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def append(self, batch: ChunkBatch, ids: Ids, sizes: Counts) -> None:
        """Append chunks: their ids, concatenated, and int64 [n], the number of ids of each."""
        written = self.written
        last_N = np.array([not chunk.more for chunk in batch.chunks])
        byte_counts, written.open_bytes = _document_sizes(batch.bytes, last_N, written.open_bytes)
        character_counts, written.open_characters = _document_sizes(batch.characters, last_N, written.open_characters)
        names = json.dumps([chunk.name for chunk in batch.chunks if not chunk.more], separators=("\n", ":"))[1:-1]
        self._write("ids.bin", ids.astype(self._dtype, copy=False))
        self._write("offsets.bin", (written.tokens + np.cumsum(sizes))[last_N])
        self._write("bytes.bin", byte_counts)
        self._write("characters.bin", character_counts)
        self._write("names.jsonl", f"{names}\n".encode() if names else b"")
        written.chunks += len(batch.chunks)
        written.documents += int(last_N.sum())
        written.tokens += len(ids)
        written.bytes += len(batch.utf8)
        written.characters += len(batch.text)
        if self._uncommitted >= COMMIT_BYTES:
            journal = {"format": [FORMAT, CHUNK_CHARACTERS], "written": asdict(written), "sizes": self._flush()}
            atomic_text(self._folder / JOURNAL, json.dumps(journal))
            self._uncommitted = 0

    def finish(self) -> None:
        """Flush everything to the disk and describe it. The description comes last: with it the cache is complete."""
        sizes = self._flush()
        totals = {name: getattr(self.written, name) for name in ("documents", "tokens", "bytes", "characters")}
        meta = {"format": FORMAT, "dtype": self._dtype.name, **totals, "sizes": sizes}
        atomic_text(self._folder / META, json.dumps(meta, indent=1))
        (self._folder / JOURNAL).unlink(missing_ok=True)

    def _write(self, name: str, values: npt.NDArray[Any] | bytes) -> None:
        self._uncommitted += self._files[name].write(values if isinstance(values, bytes) else values.data)

    def _flush(self) -> dict[str, int]:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}


def _document_sizes(sizes: Counts, last_N: npt.NDArray[np.bool_], open_size: int) -> tuple[Counts, int]:
    """Return the sizes of the documents that end in these chunks, and the size so far of one that does not."""
    total = open_size + np.cumsum(sizes)
    ends = total[last_N]
    return np.diff(ends, prepend=0), int(total[-1] - (ends[-1] if len(ends) else 0))
