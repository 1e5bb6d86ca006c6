"""Perplexity on the data sets of other protocols: Table 3 of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from unmask.data.cache import TokenCache
from unmask.data.documents import Document
from unmask.data.length_policies import SpecialTokens
from unmask.data.protocols import PartName, Protocol, get_protocol
from unmask.data.rows import spread_indices
from unmask.errors import UnmaskError, did_you_mean
from unmask.likelihood import Evaluation, Progress

if TYPE_CHECKING:
    from unmask.data.rows import Rows
    from unmask.pipeline import MaskedDiffusionLM


@dataclass(frozen=True)
class ProtocolPart:
    """A part of a protocol's data, written ``name`` (the test part) or ``name:validation``."""

    protocol: Protocol
    part: PartName = "test"

    @property
    def name(self) -> str:
        return self.protocol.name if self.part == "test" else f"{self.protocol.name}:{self.part}"

    @property
    def label(self) -> str:
        stand_in = self.protocol.stand_in
        return self.name if stand_in is None else f"{self.name} (stand-in for {stand_in})"


def evaluation_part(protocol: Protocol) -> ProtocolPart:
    """The test part of a protocol, or the validation part of one whose test part is kept back."""
    try:
        protocol.locate("test")
    except UnmaskError:
        return ProtocolPart(protocol, "validation")
    return ProtocolPart(protocol)


def parse_parts(text: str) -> list[ProtocolPart]:
    """Read names separated by commas."""
    parts = []
    for name in filter(None, (one.strip() for one in text.split(","))):
        protocol, _, part = name.partition(":")
        if part and part not in get_args(PartName):
            raise UnmaskError(f"A protocol has no part named '{part}'.{did_you_mean(part, get_args(PartName))}")
        parts.append(ProtocolPart(get_protocol(protocol), part or "test"))  # type: ignore[arg-type]
    if not parts:
        raise UnmaskError(f"--on must name at least one protocol, got '{text}'.")
    return list(dict.fromkeys(parts))


@dataclass(frozen=True)
class ZeroShotResult:
    """The bounds of one checkpoint on one data set."""

    checkpoint: str
    part: ProtocolPart
    documents: int
    evaluation: Evaluation
    trained_on_it: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "checkpoint": self.checkpoint,
            "protocol": self.part.protocol.name,
            "part": self.part.part,
            "stand_in": self.part.protocol.stand_in,
            "documents": self.documents,
            "trained_on_it": self.trained_on_it,
            **self.evaluation.as_dict(),
        }


def evaluate_zero_shot(
    lm: MaskedDiffusionLM,
    checkpoint: str,
    part: ProtocolPart,
    documents: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> ZeroShotResult:
    """The bounds of a data set under a model; `documents` of it, evenly spaced, or all."""
    rows, count = protocol_rows(lm, part, documents)
    evaluation = lm.evaluate(rows, seed=seed, batch_size=batch_size, progress=progress)
    trained_on = lm.config.protocol.get("data", {}).get("source", {}).get("protocol")
    return ZeroShotResult(checkpoint, part, count, evaluation, trained_on == part.protocol.name)


def protocol_rows(lm: MaskedDiffusionLM, part: ProtocolPart, documents: int | None = None) -> tuple[Rows, int]:
    """Rows of a data set for a model, by its own tokenizer and length policy, and the number of documents in them."""
    total = sum(1 for _ in part.protocol.documents(part.part))
    if total == 0:
        raise UnmaskError(
            f"The {part.part} part of '{part.protocol.name}' has no text; give more text or download it again."
        )
    chosen = set(spread_indices(total, documents))

    def read() -> Iterator[Document]:
        return (one for index, one in enumerate(part.protocol.documents(part.part)) if index in chosen)

    tokenizer = lm.text_processor.tokenizer
    tokens = TokenCache.build(read, tokenizer)
    return lm.config.policy.rows(tokens, lm.row_length, SpecialTokens.of(tokenizer)), len(chosen)
