"""Sources of text: their base class, and the source that an argument of the command line names.

The sources are in `text` (files and folders in many formats, standard input), `huggingface`, `parallel` (pairs),
`fasta`, `genome` and `stdlib`; those of made-up puzzles are in `unmask.data.puzzles`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from unmask.data.documents import Document
from unmask.registry import Component

HUB_PREFIX = "hf:"


class Source(Component):
    """Base class of the sources. A source yields the same documents in the same order each time it is read."""

    persistent: ClassVar[bool] = True
    """Whether a later process can read the same documents again."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield all documents from the start, in a fixed order."""

    def check(self) -> None:
        """Raise `UnmaskError` if something is wrong that is found quickly, such as a missing file or field."""

    def held_out(self, name: str) -> bool | None:
        """Return whether a document is for validation; None leaves the choice to the split."""
        return None

    def split_key(self, name: str) -> str:
        """Return the key of a document; documents with the same key go to the same side of the split."""
        return name

    def bits_per_character(self) -> float | None:
        """Return the entropy of the text, a lower bound for every model, where it is known."""
        return None

    def skipped_files(self) -> dict[str, int]:
        """Return the number of files of each suffix in the source's folders that are not read."""
        return {}


def is_saved_dataset(folder: Path) -> bool:
    """Return whether a folder was written by a dataset's ``save_to_disk``."""
    single = all((folder / name).is_file() for name in ("dataset_info.json", "state.json"))
    return single or (folder / "dataset_dict.json").is_file()


def is_pattern(path: str | Path) -> bool:
    """Return whether a path has a wildcard."""
    return any(wildcard in str(path) for wildcard in "*?[")


def source_spec(argument: str) -> dict[str, Any]:
    """Return the recipe's form of the source for ``-``, ``hf:NAME``, a file, a folder or a pattern."""
    if argument == "-":
        return {"name": "stdin"}
    if argument.startswith(HUB_PREFIX):
        return {"name": "huggingface", "path": argument.removeprefix(HUB_PREFIX)}
    if is_saved_dataset(Path(argument).expanduser()):
        return {"name": "huggingface", "path": argument}
    return {"name": "text", "paths": [argument]}
