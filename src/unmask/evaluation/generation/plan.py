"""What a run will do, known from the cards of the checkpoints before one of them is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask import shelf
from unmask.checkpoint import read_card
from unmask.errors import UnmaskError

ONE_BY_ONE = "none"
"""How one token a call, the exact law, is asked for."""


@dataclass(frozen=True)
class Part:
    """A checkpoint, what to call it, its numbers of steps and the most network calls that a text takes in each."""

    name: str
    path: str
    steps: tuple[int | None, ...]
    calls: tuple[int, ...]

    @property
    def work(self) -> int:
        """Passes a text takes: to be written, and once to be judged."""
        return sum(self.calls) + len(self.calls)


def make_plan(paths: Sequence[str], steps: Sequence[int | None], length: int | None = None) -> list[Part]:
    """One part a checkpoint. A left-to-right model writes one token a call whatever `steps` says.

    Checkpoints are called by their folders; those of one name are told apart by the path before it.
    """
    names = [Path(path).resolve().name for path in paths]
    unique = [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]
    return [_part(name, path, steps, length) for name, path in zip(unique, paths, strict=True)]


def _part(name: str, path: str, steps: Sequence[int | None], length: int | None) -> Part:
    card = read_card(shelf.find(path))
    own = (None,) if card.objective.causal else tuple(steps)
    longest = length or card.length
    return Part(name, path, own, tuple(min(step or longest, longest) for step in own))


def parse_steps(words: Sequence[str]) -> list[int | None]:
    """Numbers of steps as a user writes them; `none` is one token a call. Each comes once."""
    return [None if word == ONE_BY_ONE else _number(word) for word in dict.fromkeys(words)]


def _number(word: str) -> int:
    if word.isdecimal() and int(word) >= 1:
        return int(word)
    raise UnmaskError(
        f"--steps {word} is no number of steps; give a number of 1 or more, or '{ONE_BY_ONE}' for one token a call."
    )
