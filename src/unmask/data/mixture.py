"""Several sources at once, each with a weight."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from unmask.data.sources import Document, Source
from unmask.registry import field


class MixturePart(BaseModel):
    """A source of a mixture, and its share of the training samples in proportion to the other weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: field("source")  # type: ignore[valid-type]
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class MixtureSource(Source):
    """A weighted mixture: ``{name: mixture, parts: [{source: {...}, weight: 3}, {source: {...}, weight: 1}]}``.

    parts: each is split and encoded on its own with one tokenizer for all, so that a changed weight encodes nothing
    again. Weights count samples of training, whatever the sizes of the parts: a small part is repeated sooner.
    Validation goes through the validation documents of all parts, as they are. A part may be a mixture itself.
    """

    name: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(min_length=1)

    @property
    def lasting(self) -> bool:  # type: ignore[override]
        """Whether every part can be read again."""
        return all(part.source.lasting for part in self.parts)

    def documents(self) -> Iterator[Document]:
        """All documents, part by part."""
        return chain.from_iterable(part.source.documents() for part in self.parts)


def weighted_parts(source: Source) -> list[tuple[Source, float]]:
    """The sources of a mixture, mixtures inside it taken apart, with weights that add up to 1; of others themselves."""
    if not isinstance(source, MixtureSource):
        return [(source, 1.0)]
    total = sum(part.weight for part in source.parts)
    return [
        (inner, share * part.weight / total) for part in source.parts for inner, share in weighted_parts(part.source)
    ]
