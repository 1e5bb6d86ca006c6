"""What a checkpoint was trained on, for evaluations that ask about just that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from unmask.config import DataConfig
from unmask.data.cache import TokenCache
from unmask.data.length_policies import SpecialTokens
from unmask.data.rows import Rows
from unmask.data.sources import Document, Source, source_spec
from unmask.data.split import Corpus, prepare
from unmask.errors import UnmaskError
from unmask.pipeline import MaskedDiffusionLM
from unmask.registry import build


def held_out_rows(
    lm: MaskedDiffusionLM,
    texts: Sequence[str] | None = None,
    separator: str | None = None,
    count: int | None = None,
    field: str | None = None,
    length: int | None = None,
) -> Rows:
    """Rows of the named texts, or of the validation split of the training data; `count` of them.

    texts: what ``unmask train`` takes as text: files, folders, ``hf:NAME`` or ``-``. separator, field: options of
    their sources. length: tokens of a row, the model's own unless told.
    """
    length = length or lm.row_length
    if texts:
        tokens = TokenCache.build(documents_in(texts, separator=separator, field=field), lm.text_processor.tokenizer)
        rows = lm.config.policy.rows(tokens, length, SpecialTokens.of(lm.text_processor.tokenizer))
    else:
        _, rows = _corpus(lm).rows(lm.config.policy, length)
    return rows if count is None else rows.spread(count)


def documents_in(texts: Sequence[str], **options: str | None) -> Callable[[], Iterator[Document]]:
    """The documents of files, folders, datasets or standard input; `options` are those of their sources."""
    given = {name: value for name, value in options.items() if value is not None}
    sources = [build("source", {**source_spec(text), **given}) for text in texts]
    return lambda: chain.from_iterable(source.documents() for source in sources)


def _corpus(lm: MaskedDiffusionLM) -> Corpus:
    described = lm.config.protocol.get("data")
    if described is None:
        raise UnmaskError("This checkpoint does not say what it was trained on; name texts with --data.")
    data = DataConfig(**described)
    if not data.source.persistent:
        raise UnmaskError("This checkpoint was trained on standard input, which is gone; name texts with --data.")
    try:
        return prepare(data.source, lm.text_processor.tokenizer, data.validation, data.seed)
    except UnmaskError as error:
        reason = str(error).partition(". ")[0].removesuffix(".")
        raise UnmaskError(
            f"The text that this checkpoint was trained on cannot be read ({reason}); name texts with --data."
        ) from error


S = TypeVar("S", bound=Source)


def trained_on(lm: MaskedDiffusionLM, kind: type[S], words: str, recipes: str) -> S:
    """The source of a checkpoint's training data, which must be of a kind; `words` for it and `recipes` that train on
    it are for the error otherwise."""
    described: dict[str, Any] = lm.config.protocol.get("data", {}).get("source", {})
    source = build("source", described) if described else None
    if isinstance(source, kind):
        return source
    was = f"was trained on the source '{described['name']}'" if described else "does not say what it was trained on"
    raise UnmaskError(f"The checkpoint '{lm.path}' {was}, not on {words}; make one with {recipes}.")
