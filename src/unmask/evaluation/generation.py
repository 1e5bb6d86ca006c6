"""Judging what models write: a causal language model as `judge`, `measures` of its tokens, `bootstrap`, `frontier`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.checkpoint import CheckpointConfig, find_checkpoint, read_checkpoint_config
from unmask.errors import UnmaskError
from unmask.evaluation.judge import Judge
from unmask.evaluation.perplexity import documents_in, held_out_rows
from unmask.evaluation.statistics import (
    LEVEL,
    RESAMPLES,
    Estimate,
    Values,
    distinct,
    exponential,
    ratio,
    repetition,
    resamples,
    unigram_entropy,
)
from unmask.likelihood import Progress
from unmask.models.build import read_config
from unmask.models.dit import missing_planner_error
from unmask.pipeline import MaskedDiffusionLM
from unmask.plots.frontier import Curve, Interval, Point, draw_frontier
from unmask.samplers.base import Sampler
from unmask.samplers.options import SamplerSpec, choose_sampler
from unmask.samplers.token_sampling import TokenSampler

ONE_BY_ONE = "none"
"""How one token a call, the exact law, is asked for."""


@dataclass(frozen=True)
class Way:
    """How masked models unmask: an order or a sampler by the words of a user, and what to call it."""

    order: str | None = None
    sampler: SamplerSpec | None = None
    name: str | None = None


@dataclass(frozen=True)
class Course:
    """Texts that a checkpoint writes: how, in how many steps, and the most network calls that one takes."""

    name: str
    steps: int | None
    calls: int
    sampler: Sampler | None = None
    """None for a model that has no choice."""


@dataclass(frozen=True)
class Part:
    """A checkpoint, what to call it, and what it is to write."""

    name: str
    path: str
    courses: tuple[Course, ...]

    @property
    def work(self) -> int:
        """Passes a text takes: to be written, and once to be judged."""
        return sum(course.calls + 1 for course in self.courses)


def make_plan(
    paths: Sequence[str], steps: Sequence[int | None], length: int | None = None, ways: Sequence[Way] = (Way(),)
) -> list[Part]:
    """One part a checkpoint, in every way and number of steps. A left-to-right model writes one token a call whatever
    these say, and so does a way that decides by itself how many calls it takes.

    Checkpoints are called by their folders; those of one name are told apart by the path before it.
    """
    names = told_apart([Path(path).resolve().name for path in paths], paths)
    return [_part(name, path, steps, length, ways) for name, path in zip(names, paths, strict=True)]


def told_apart(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """What to call things by: the name of each, or its path where another has the same name."""
    return [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


def _part(name: str, path: str, steps: Sequence[int | None], length: int | None, ways: Sequence[Way]) -> Part:
    card = read_checkpoint_config(find_checkpoint(path))
    longest = length or card.length
    if card.objective.causal:
        return Part(name, path, (Course(name, None, longest),))
    courses = tuple(course for way in ways for course in _courses(name, card, way, steps, longest))
    if any(course.sampler.needs_planner for course in courses if course.sampler) and not _has_planner(path):
        raise missing_planner_error(path)
    return Part(name, path, courses)


def _courses(
    name: str, card: CheckpointConfig, way: Way, steps: Sequence[int | None], longest: int
) -> Iterator[Course]:
    """One way in each number of steps, or once where they are its own affair."""
    called = name if way.name is None else f"{name}, {way.name}"
    for number in (None,) if _has_own_steps(card, way) else steps:
        sampler = choose_sampler(card.schedule, number, way.order, way.sampler, card.objective.predicts_scores)
        planned = getattr(sampler, "steps", None) or longest
        yield Course(called, number, planned if sampler.rewrites else min(planned, longest), sampler)


def _has_own_steps(card: CheckpointConfig, way: Way) -> bool:
    says = isinstance(way.sampler, Mapping) and "steps" in way.sampler
    return says or choose_sampler(card.schedule, None, way.order, way.sampler, card.objective.predicts_scores).adaptive


def _has_planner(path: str) -> bool:
    return read_config(find_checkpoint(path)).planner_width is not None


def parse_steps(words: Sequence[str]) -> list[int | None]:
    """Numbers of steps as a user writes them; `none` is one token a call. Each comes once."""
    return [None if word == ONE_BY_ONE else _number(word) for word in dict.fromkeys(words)]


def _number(word: str) -> int:
    if word.isdecimal() and int(word) >= 1:
        return int(word)
    raise UnmaskError(
        f"--steps {word} is no number of steps; give a number of 1 or more, or '{ONE_BY_ONE}' for one token a call."
    )


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
    rule: TokenSampler | None = None
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


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows that have a perplexity."""
    draw_frontier(curves(rows), path)


def curves(rows: Sequence[Row]) -> list[Curve]:
    """Rows of one name stand together and become one curve; those without a token are left out."""
    shown = [row for row in rows if row.figures["perplexity"] is not None]
    grouped = groupby(shown, key=lambda row: (row.name, row.kind))
    return [Curve(name, [_point(row) for row in group], kind == "data") for (name, kind), group in grouped]


def _point(row: Row) -> Point:
    perplexity, entropy, calls = (row.figures[name] for name in ("perplexity", "entropy", "calls"))
    assert perplexity is not None
    assert entropy is not None
    label = "" if row.steps is None else f"T={row.steps}"
    return Point(_interval(perplexity), _interval(entropy), None if calls is None else _interval(calls), label)


def _interval(estimate: Estimate) -> Interval:
    return estimate.value, estimate.low, estimate.high
