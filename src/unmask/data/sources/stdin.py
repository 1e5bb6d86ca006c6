"""Standard input as a source."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, Literal

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.readers.options import Reading
from unmask.data.sources.readers.plain import read_plain
from unmask.data.sources.text import SeparatedText
from unmask.errors import UnmaskError


class StdinSource(SeparatedText):
    """Standard input, kept in a temporary file until the program ends, so that it can be walked again."""

    name: Literal["stdin"] = "stdin"
    lasting: ClassVar[bool] = False

    def documents(self) -> Iterator[Document]:
        """The documents of standard input; an empty one is an error."""
        file = File(Path(_kept(sys.stdin).name, "text"), "stdin", "Standard input")
        documents = read_plain(file, Reading(separator=self.separator, encoding_errors=self.encoding_errors))
        first = next(documents, None)
        if first is None:
            raise UnmaskError("Standard input is empty; pipe a text into it or name a file.")
        yield first
        yield from documents


@cache
def _kept(stream: IO[str]) -> tempfile.TemporaryDirectory[str]:
    """A folder that holds what came in as the file 'text'; it is removed when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="unmask-")
    try:
        with open(Path(folder.name, "text"), "wb") as copy:
            shutil.copyfileobj(stream.buffer, copy)  # type: ignore[attr-defined]
    except OSError as error:
        folder.cleanup()
        raise UnmaskError(
            f"Standard input could not be kept in {tempfile.gettempdir()} ({error.strerror}); "
            "free space there or set the environment variable TMPDIR."
        ) from error
    return folder
