"""The files of a token cache while they are written: appended to, and after a crash gone on with from a journal."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from unmask.data.partial import JOURNAL
from unmask.data.pieces import LONG, Counts, Joined
from unmask.data.tokenizers.tables import Ids
from unmask.files import atomic_text

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
