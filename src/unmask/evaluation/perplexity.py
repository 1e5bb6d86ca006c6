"""The rows a perplexity is measured on: validation data of a checkpoint, or any text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.checkpoint import SHIPPED
from unmask.config import DataConfig
from unmask.data.cache import TokenCache
from unmask.data.documents import Document
from unmask.data.length_policies import SpecialTokens
from unmask.data.rows import Rows
from unmask.data.sources import Source, source_spec
from unmask.data.split import Corpus, prepare
from unmask.errors import UnmaskError
from unmask.registry import build

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM


def evaluation_rows(
    lm: MaskedDiffusionLM,
    texts: Sequence[str] | None = None,
    separator: str | None = None,
    count: int | None = None,
    field: str | None = None,
    length: int | None = None,
) -> Rows:
    """Rows of the given texts, or of the validation split of the training data.

    texts: as for ``unmask train``: files, folders, ``hf:NAME`` or ``-``. separator, field: options of their sources.
    count: take this many rows, evenly spaced. length: tokens per row, the model's by default.
    """
    length, tokenizer = length or lm.row_length, lm.text_processor.tokenizer
    if texts:
        tokens = TokenCache.build(open_documents(texts, separator=separator, field=field), tokenizer)
        rows = lm.config.policy.rows(tokens, length, SpecialTokens.of(tokenizer))
    else:
        _, rows = _training_corpus(lm).rows(lm.config.policy, length)
    return rows if count is None else rows.spread(count)


def open_documents(texts: Sequence[str], **options: str | None) -> Callable[[], Iterator[Document]]:
    """A function that reads the documents of files, folders, datasets or standard input."""
    sources = open_sources(texts, **options)
    return lambda: chain.from_iterable(source.documents() for source in sources)


def open_sources(texts: Sequence[str], **options: str | None) -> list[Source]:
    """The source of each text, with the options that are not None."""
    given = {name: value for name, value in options.items() if value is not None}
    return [build("source", {**source_spec(text), **given}) for text in texts]


def _relocated(source: Any, checkpoint: Path | None) -> Any:
    """A source whose relative paths, if they do not exist from here, start at a folder above the checkpoint."""
    paths = source.get("paths") if isinstance(source, dict) else None
    paths = [paths] if isinstance(paths, str) else paths
    if not paths or checkpoint is None or all(map(os.path.exists, paths)):
        return source
    for folder in checkpoint.resolve().parents:
        if all((folder / path).exists() for path in paths):
            return {**source, "paths": [str(folder / path) for path in paths]}
    return source


def _training_corpus(lm: MaskedDiffusionLM) -> Corpus:
    config = lm.config.protocol.get("data")
    if config is None:
        raise UnmaskError("This checkpoint does not record its training data; name texts with --data.")
    if lm.path is not None and lm.path.is_relative_to(SHIPPED):
        raise UnmaskError(f"The model '{lm.path.name}' ships without its training data; name texts with --data.")
    data = DataConfig(**{**config, "source": _relocated(config.get("source"), lm.path)})
    if not data.source.persistent:
        raise UnmaskError("This checkpoint was trained on standard input, which is gone; name texts with --data.")
    try:
        return prepare(data.source, lm.text_processor.tokenizer, data.validation, data.seed)
    except UnmaskError as error:
        reason = str(error).partition(". ")[0].removesuffix(".")
        raise UnmaskError(
            f"The training data of this checkpoint cannot be read ({reason}); name texts with --data."
        ) from error
