"""Hugging Face datasets."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from unmask.data.documents import Document, numbered
from unmask.data.sources import Source, is_saved_dataset
from unmask.data.sources.text import ROWS_AT_ONCE, find_text_field, string_fields, texts_of_records
from unmask.errors import UnmaskError
from unmask.io import offline_if_unreachable


class HuggingFaceSource(Source):
    """A Hugging Face dataset; its code is never run. Documents are named ``split#number``.

    path: a name on the hub, a folder of data files, or a folder written by ``save_to_disk``. config: the dataset's
    configuration. split: its split. field: the column with the text; without it ``text``, else the only one that holds
    strings. streaming: read without a copy in the cache. revision: a branch, tag or commit on the hub.
    """

    name: Literal["huggingface"] = "huggingface"
    path: str
    config: str | None = None
    split: str = "train"
    field: str | None = None
    streaming: bool = False
    revision: str | None = None

    def documents(self) -> Iterator[Document]:
        """Yield a document per row; null is skipped."""
        label = f"The dataset '{self.path}'"
        column = find_text_field(label, _columns(self._dataset), self.field)
        rows = enumerate(self._values(column), start=1)
        return numbered(self.split, texts_of_records(label, "row", rows, wanted=None))

    @cached_property
    def _dataset(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise UnmaskError(
                f"The dataset '{self.path}' needs the package datasets; run: pip install 'unmask[data]'."
            ) from error
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        folder = Path(self.path).expanduser()
        with self._report_errors():
            if is_saved_dataset(folder):
                saved = datasets.load_from_disk(str(folder))
                if isinstance(saved, dict) and self.split not in saved:
                    raise ValueError(f"it has no split '{self.split}' but {', '.join(saved)}")
                return saved[self.split] if isinstance(saved, dict) else saved
            local = folder.exists()
            with contextlib.nullcontext() if local else offline_if_unreachable():
                return datasets.load_dataset(
                    str(folder) if local else self.path,
                    self.config,
                    split=self.split,
                    revision=self.revision,
                    streaming=self.streaming,
                )

    def _values(self, column: str) -> Iterator[Any]:
        with self._report_errors():
            for batch in self._dataset.select_columns([column]).iter(ROWS_AT_ONCE):
                yield from batch[column]

    @contextlib.contextmanager
    def _report_errors(self) -> Iterator[None]:
        """Report every error of the library as an `UnmaskError`."""
        try:
            yield
        except Exception as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise UnmaskError(
                f"The dataset '{self.path}' could not be read ({reason}); check path, config and split, and the "
                "network if it is on the Hugging Face hub."
            ) from error


def _columns(dataset: Any) -> dict[str, bool]:
    """Return the columns and whether each holds strings; a stream without features is read up to its first row."""
    if dataset.features is None:
        return string_fields(next(iter(dataset), {}))
    return {name: getattr(kind, "dtype", None) in ("string", "large_string") for name, kind in dataset.features.items()}
