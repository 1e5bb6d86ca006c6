"""The frontier: what models write in some numbers of steps, held-out data and other texts, judged by one judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from unmask.evaluation.generation.bootstrap import LEVEL, RESAMPLES, Estimate, exponential, ratio, resamples
from unmask.evaluation.generation.judge import Judge
from unmask.evaluation.generation.measures import Values, distinct, repetition, unigram_entropy
from unmask.evaluation.generation.plan import Part
from unmask.evaluation.generation.texts import Draw, Texts, write
from unmask.generation import MaskedDiffusionLM
from unmask.tally import Progress

Kind = Literal["data", "samples", "texts"]
Figures = dict[str, Estimate | None]


@dataclass(frozen=True)
class Row:
    """One line of the table. `figures` are None where they do not apply, or where there are no tokens to count."""

    name: str
    kind: Kind
    texts: int
    empty: int
    figures: Figures
    checkpoint: str | None = None
    steps: int | None = None
    sampler: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = {name: None if one is None else one.as_dict() for name, one in self.figures.items()}
        written = {"checkpoint": self.checkpoint, "steps": self.steps, "sampler": self.sampler}
        return {"name": self.name, "kind": self.kind, **written, "texts": self.texts, "empty": self.empty, **figures}


@dataclass
class Frontier:
    """A judge and the rows it has judged so far."""

    judge: Judge
    draw: Draw
    rows: list[Row] = field(default_factory=list)

    def add_model(self, part: Part, lm: MaskedDiffusionLM, progress: Progress | None = None) -> None:
        """Let a model write all that is planned, and judge it. `progress` counts passes, as `part.work`."""
        for course in part.courses:
            written = write(lm, course.sampler, self.draw, None if progress is None else _times(course.calls, progress))
            sampler = (course.sampler or lm.sampler()).model_dump()
            how = {"checkpoint": part.path, "steps": course.steps, "sampler": sampler}
            self._add(written, progress, name=course.name, kind="samples", **how)

    def add_texts(self, name: str, kind: Kind, texts: Texts, progress: Progress | None = None) -> None:
        """Judge texts that are there; `progress` counts them."""
        self._add(texts, progress, name=name, kind=kind)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: how it was measured, and the rows."""
        rule = self.draw.rule
        return {
            "judge": self.judge.as_dict(),
            "n": self.draw.n,
            "seed": self.draw.seed,
            "length": self.draw.length,
            "rule": None if rule is None else rule.model_dump(),
            "interval": {"level": LEVEL, "resamples": RESAMPLES},
            "rows": [row.as_dict() for row in self.rows],
        }

    def _add(self, texts: Texts, progress: Progress | None, **about: Any) -> None:
        ids = self.judge.encode(texts.texts)
        nats = self.judge.nats(ids, self.draw.batch_size, progress)
        empty = sum(not one for one in ids)
        self.rows.append(Row(texts=len(ids), empty=empty, figures=measure(texts, ids, nats), **about))


def measure(texts: Texts, ids: list[list[int]], nats: Values) -> Figures:
    """Every figure of some texts, whose judge tokens and nats are given, with its interval.

    Perplexity, repetition and distinct n-grams are ratios of sums over all texts, the others means over texts.
    """
    weights = resamples(len(ids))
    one = np.ones(len(ids))
    tokens = np.array([len(row) for row in ids], dtype=np.float64)
    characters = np.array([len(text) for text in texts.texts], dtype=np.float64)
    entropy = np.array([unigram_entropy(row) for row in ids])
    return {
        "perplexity": exponential(ratio(nats, tokens, weights)),
        "entropy": ratio(entropy, one, weights),
        "repetition": ratio(*repetition(ids), weights),
        "distinct_1": ratio(*distinct(ids, 1), weights),
        "distinct_2": ratio(*distinct(ids, 2), weights),
        "distinct_3": ratio(*distinct(ids, 3), weights),
        "tokens": ratio(tokens, one, weights),
        "characters": ratio(characters, one, weights),
        "calls": None if texts.calls is None else ratio(texts.calls, one, weights),
        "seconds": None if texts.seconds is None else _seconds(texts.seconds, texts.batches, weights),
    }


def _times(calls: int, progress: Progress) -> Progress:
    return lambda texts: progress(calls * texts)


def _seconds(seconds: Values, batches: int, weights: Values) -> Estimate | None:
    """Seconds a text; one batch alone says nothing of their spread."""
    estimate = ratio(seconds, np.ones(len(seconds)), weights)
    return estimate if batches > 1 or estimate is None else Estimate(estimate.value)
