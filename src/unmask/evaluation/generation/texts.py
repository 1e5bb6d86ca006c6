"""The texts that are judged: what a model writes, held-out data in the same form, and texts that exist already."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.evaluation.generation.measures import Values
from unmask.evaluation.perplexity import documents_in, held_out_rows
from unmask.generation import MaskedDiffusionLM
from unmask.samplers.base import Sampler
from unmask.samplers.draws import TokenRule
from unmask.tally import Progress


@dataclass(frozen=True)
class Texts:
    """Texts to judge. `calls`, `seconds` [n]: what each took to write, None where nobody wrote it here.

    The seconds of a batch are shared out evenly among its texts; `batches` says how many there were.
    """

    texts: list[str]
    calls: Values | None = None
    seconds: Values | None = None
    batches: int = 0


@dataclass(frozen=True)
class Draw:
    """How texts are drawn from a model: how many, from which seed on, by which rule, of how many tokens."""

    n: int
    seed: int = 0
    rule: TokenRule | None = None
    length: int | None = None
    batch_size: int | None = None


def write(lm: MaskedDiffusionLM, sampler: Sampler | None, draw: Draw, progress: Progress | None = None) -> Texts:
    """Let a model write `draw.n` texts by a sampler, or by its own; text i has the seed `draw.seed + i`."""
    clock = _Clock()
    done = lm.sample(
        draw.n,
        length=draw.length,
        seed=draw.seed,
        rule=draw.rule,
        batch_size=draw.batch_size,
        progress=progress,
        batches=clock,
        sampler=sampler,
    )
    calls = np.array([one.calls for one in done], dtype=np.float64)
    return Texts([one.text for one in done], calls, np.array(clock.seconds), clock.batches)


class _Clock:
    """Notes how long each batch took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.batches = 0
        self._since = time.perf_counter()

    def __call__(self, size: int) -> None:
        now = time.perf_counter()
        self.seconds += [(now - self._since) / size] * size
        self.batches += 1
        self._since = now


def held_out_texts(
    lm: MaskedDiffusionLM | None,
    count: int,
    data: Sequence[str] | None = None,
    separator: str | None = None,
    field: str | None = None,
    length: int | None = None,
) -> Texts:
    """At most `count` held-out texts, spread evenly over all there are.

    With a model they are rows, cut and decoded as its own texts are, so that both have the same form; without one they
    are the documents themselves.
    """
    if lm is None:
        return Texts(_spread(_documents(data or (), separator=separator, field=field), count))
    rows = held_out_rows(lm, data, separator, count, field, length)
    read = rows[:]
    kept = [ids[mask].tolist() for ids, mask in zip(read.input_ids, read.attention_mask, strict=True)]
    return Texts([lm.decode(ids) for ids in kept])


def read_texts(path: Path) -> Texts:
    """Texts of a file: one JSON list of strings (or of objects with a `text`, or under `texts`), or a line a text."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnmaskError(f"The texts in '{path}' cannot be read ({error}); give a file of UTF-8 text.") from error
    texts = _listed(content, path) if path.suffix.lower() == ".json" else content.splitlines()
    if not texts:
        raise UnmaskError(f"There are no texts in '{path}'; give a JSON list of strings, or a text on each line.")
    return Texts(texts)


def _listed(content: str, path: Path) -> list[str]:
    """What `unmask sample --json` prints is read too."""
    try:
        found: Any = json.loads(content)
    except json.JSONDecodeError as error:
        raise UnmaskError(
            f"'{path}' is no JSON ({error}); give a list of strings, or a .txt with a text a line."
        ) from error
    if isinstance(found, dict):
        found = found.get("texts")
    if isinstance(found, list):
        found = [one.get("text") if isinstance(one, dict) else one for one in found]
        if all(isinstance(one, str) for one in found):
            return found
    raise UnmaskError(f"'{path}' holds no list of strings; give one, or a .txt with a text a line.")


def _documents(data: Sequence[str], **options: str | None) -> list[str]:
    texts = [""]
    for document in documents_in(data, **options)():
        texts[-1] += document.text
        if not document.more:
            texts.append("")
    return texts[:-1]


def _spread(texts: list[str], count: int) -> list[str]:
    return texts if len(texts) <= count else [texts[i * len(texts) // count] for i in range(count)]
