"""What a user means by a word on the command line: text in some file, folder, dataset or on standard input."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from unmask.data.sources.base import Document, Source, numbered
from unmask.data.sources.readers import text_field, texts_of
from unmask.errors import UnmaskError

ROWS = 256


class HuggingFaceSource(Source):
    """A Hugging Face dataset: a name on the hub, a folder of data files or a saved dataset; no code from it is run.

    path: the name or folder. config: one of a dataset's several configurations. split: one of its parts. field: the
    column with the text; without it ``text``, else the only one that holds strings. streaming: read without making a
    copy in the cache first. revision: a branch, tag or commit on the hub. Documents are named ``split#number``.
    """

    name: Literal["huggingface"] = "huggingface"
    path: str
    config: str | None = None
    split: str = "train"
    field: str | None = None
    streaming: bool = False
    revision: str | None = None

    def documents(self) -> Iterator[Document]:
        """A document for each row of the split; null is no text."""
        column = text_field(self._where, _fields(self._rows), self.field)
        rows = enumerate(self._values(column), start=1)
        return numbered(self.split, texts_of(self._where, "row", rows, wanted=None))

    @property
    def _where(self) -> str:
        return f"The dataset '{self.path}'"

    @cached_property
    def _rows(self) -> Any:
        """The Dataset or IterableDataset, opened once."""
        try:
            import datasets
        except ImportError as error:
            raise UnmaskError(f"{self._where} needs the package datasets; run: pip install 'unmask[data]'.") from error
        with self._sentences():
            return self._open(datasets)

    def _values(self, column: str) -> Iterator[Any]:
        with self._sentences():
            for batch in self._rows.select_columns([column]).iter(ROWS):
                yield from batch[column]

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        """Whatever goes wrong in the library, in one sentence."""
        try:
            yield
        except Exception as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise UnmaskError(
                f"{self._where} could not be read ({reason}); check path, config and split, and the network if it is "
                "on the Hugging Face hub."
            ) from error

    def _open(self, datasets: Any) -> Any:
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        folder = Path(self.path).expanduser()
        if is_saved(folder):
            saved = datasets.load_from_disk(str(folder))
            if isinstance(saved, dict) and self.split not in saved:
                raise ValueError(f"it has no split '{self.split}' but {', '.join(saved)}")
            return saved[self.split] if isinstance(saved, dict) else saved
        path = str(folder) if folder.exists() else self.path
        return datasets.load_dataset(
            path, self.config, split=self.split, revision=self.revision, streaming=self.streaming
        )


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by a dataset's ``save_to_disk``."""
    one = all((folder / name).is_file() for name in ("dataset_info.json", "state.json"))
    return one or (folder / "dataset_dict.json").is_file()


def _fields(rows: Any) -> dict[str, bool]:
    """The columns and whether each holds strings; a stream may not say before its first row."""
    if rows.features is not None:
        return {
            name: getattr(kind, "dtype", None) in ("string", "large_string") for name, kind in rows.features.items()
        }
    return {name: value is None or isinstance(value, str) for name, value in next(iter(rows), {}).items()}


HUB = "hf:"
"""What stands before the name of a dataset on the Hugging Face hub."""


def source_spec(what: str) -> dict[str, Any]:
    """The source for ``-``, ``hf:NAME``, a file or a folder (whether it is there or not), as a recipe writes it."""
    if what == "-":
        return {"name": "stdin"}
    if what.startswith(HUB):
        return {"name": "huggingface", "path": what.removeprefix(HUB)}
    if is_saved(Path(what).expanduser()):
        return {"name": "huggingface", "path": what}
    return {"name": "text", "paths": [what]}
