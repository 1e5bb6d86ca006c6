"""A file as a stream of bytes or text, unpacked on the way; what is wrong with it is said in one sentence."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from unmask.data.sources.zst import open_zst
from unmask.errors import UnmaskError

BUFFER = 1 << 18
PACKINGS: dict[str, Callable[[Path], Any]] = {
    "": partial(open, mode="rb", buffering=0),
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": open_zst,
}


@dataclass(frozen=True)
class File:
    """A file to read. name: that of its documents. where: what to call the file in a message."""

    path: Path
    name: str
    where: str

    @property
    def kind(self) -> str:
        """The suffix that names the format, below that of a packing."""
        return suffixes(self.path)[0]

    @property
    def packing(self) -> str:
        """``.gz``, ``.bz2``, ``.xz``, ``.zst`` or nothing."""
        return suffixes(self.path)[1]

    @contextlib.contextmanager
    def bytes(self) -> Iterator[BinaryIO]:
        """Its unpacked bytes."""
        try:
            with io.BufferedReader(PACKINGS[self.packing](self.path), BUFFER) as stream:
                yield stream
        except (EOFError, lzma.LZMAError, zlib.error) as error:
            raise self._broken(error) from error
        except OSError as error:
            if error.errno is None:
                raise self._broken(error) from error
            raise UnmaskError(
                f"{self.where} cannot be read ({error.strerror}); check the file and its permissions."
            ) from error

    @contextlib.contextmanager
    def text(self, errors: str, newline: str = "\n") -> Iterator[TextIO]:
        """Its text, which is UTF-8 and kept as it is but for a byte-order mark at the start.

        errors: ``'strict'`` or ``'replace'``. newline: ``"\\n"``, lines end there; ``""``, also at a lone ``"\\r"``.
        """
        with self.bytes() as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors, newline=newline)
            try:
                yield text
            except UnicodeDecodeError as error:
                offset = stream.tell() - len(error.object) + error.start
                raise UnmaskError(
                    f"{self.where} is not valid UTF-8 at byte {offset} ({error.reason}); "
                    "convert it to UTF-8 or set encoding_errors=replace."
                ) from error
            finally:
                text.detach()

    def _broken(self, error: Exception) -> UnmaskError:
        return UnmaskError(f"{self.where} is not a complete {self.packing} file ({error}); fetch or pack it again.")


def suffixes(path: Path) -> tuple[str, str]:
    """The format's suffix and that of the packing, in small letters: ``('.txt', '.gz')``, ``('.md', '')``."""
    last = path.suffix.lower()
    return (path.with_suffix("").suffix.lower(), last) if last in PACKINGS else (last, "")
