"""Zstandard files, unpacked as they are read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError

CHUNK = 1 << 15
LARGEST_WINDOW = 1 << 31  # what `zstd --long=31` writes


def open_zst(path: Path) -> io.RawIOBase:
    """The unpacked bytes of a file."""
    try:
        import zstandard
    except ImportError as error:
        raise UnmaskError(f"{path} needs the package zstandard; run: pip install 'unmask[data]'.") from error
    return _ZstFile(path, zstandard)


class _ZstFile(io.RawIOBase):
    """Frame after frame. Unlike zstandard's own reader it notices a file that ends within a frame."""

    def __init__(self, path: Path, zstandard: Any) -> None:
        self._file = io.FileIO(path)
        self._error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._ready = memoryview(b"")
        self._offset = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready and (packed := self._packed()):
            try:
                self._ready = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise OSError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        self._offset += count
        return count

    def _packed(self) -> bytes:
        """The next bytes of the file; none at its end."""
        if not self._frame.eof:
            if packed := self._file.read(CHUNK):
                return packed
            raise EOFError("it ends too soon")
        packed = self._frame.unused_data or self._file.read(CHUNK)
        if packed:
            self._frame = self._unpacker.decompressobj()
        return packed
