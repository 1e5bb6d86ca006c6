"""What a run will do, known from the cards of the checkpoints before one of them is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask import shelf
from unmask.checkpoint import Card, read_card
from unmask.errors import UnmaskError
from unmask.models.opening import read_config
from unmask.models.planner import no_planner
from unmask.samplers.base import Sampler
from unmask.samplers.choice import Spec, choose_sampler

ONE_BY_ONE = "none"
"""How one token a call, the exact law, is asked for."""


@dataclass(frozen=True)
class Way:
    """How masked models unmask: an order or a sampler by the words of a user, and what to call it."""

    order: str | None = None
    sampler: Spec | None = None
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
    card = read_card(shelf.find(path))
    longest = length or card.length
    if card.objective.causal:
        return Part(name, path, (Course(name, None, longest),))
    courses = tuple(course for way in ways for course in _courses(name, card, way, steps, longest))
    if any(course.sampler.needs_planner for course in courses if course.sampler) and not _has_planner(path):
        raise no_planner(path)
    return Part(name, path, courses)


def _courses(name: str, card: Card, way: Way, steps: Sequence[int | None], longest: int) -> Iterator[Course]:
    """One way in each number of steps, or once where they are its own affair."""
    called = name if way.name is None else f"{name}, {way.name}"
    for number in (None,) if _has_own_steps(card, way) else steps:
        sampler = choose_sampler(card.schedule, number, way.order, way.sampler, card.objective.scores)
        planned = getattr(sampler, "steps", None) or longest
        yield Course(called, number, planned if sampler.rewrites else min(planned, longest), sampler)


def _has_own_steps(card: Card, way: Way) -> bool:
    says = isinstance(way.sampler, Mapping) and "steps" in way.sampler
    return says or choose_sampler(card.schedule, None, way.order, way.sampler, card.objective.scores).adaptive


def _has_planner(path: str) -> bool:
    return read_config(shelf.find(path)).planner_width is not None


def parse_steps(words: Sequence[str]) -> list[int | None]:
    """Numbers of steps as a user writes them; `none` is one token a call. Each comes once."""
    return [None if word == ONE_BY_ONE else _number(word) for word in dict.fromkeys(words)]


def _number(word: str) -> int:
    if word.isdecimal() and int(word) >= 1:
        return int(word)
    raise UnmaskError(
        f"--steps {word} is no number of steps; give a number of 1 or more, or '{ONE_BY_ONE}' for one token a call."
    )
