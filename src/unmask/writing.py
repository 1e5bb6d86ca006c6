"""How rows with masks become texts: in batches, in windows, as the best of several, or shown as they come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unmask.constraints import Constraint
from unmask.errors import UnmaskError
from unmask.samplers.base import Sampler, State
from unmask.samplers.control import Control, walks
from unmask.samplers.draws import TokenRule
from unmask.samplers.particles import crowd
from unmask.samplers.windows import Windows
from unmask.scribe import Generation, Scribe
from unmask.streaming import relay
from unmask.tally import Progress

Constraints = Constraint | Sequence[Constraint] | None
TextScore = Callable[[str], float]
Rows = list[list[int]]


@dataclass(frozen=True)
class Wish:
    """What a user asks of texts. Every text satisfies the `constraint`; with `guidance` it holds closer to its prompt.

    `score`, any function of a text, chooses the `best_of` several or weighs `particles`. Texts longer than the model
    are written in windows, each `stride` tokens behind the one before (half of the model's length).
    """

    rule: TokenRule = field(default_factory=TokenRule)
    constraint: Constraints = None
    particles: int = 1
    guidance: float = 0.0
    best_of: int = 1
    score: TextScore | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.best_of < 1:
            raise UnmaskError(f"best_of={self.best_of} chooses among nothing; give at least 1.")
        if self.best_of > 1 and self.score is None:
            raise UnmaskError(f"best_of={self.best_of} needs a score to choose by; give score=, a function of a text.")
        if self.best_of > 1 and self.particles > 1:
            raise UnmaskError("A score chooses the best of several texts or weighs particles; give one of them.")
        if self.score is not None and self.best_of == self.particles == 1:
            raise UnmaskError("A score needs several texts to compare; give best_of= or particles= above 1.")


class Writer:
    """Writes rows with masks as a user wishes; `ready` gives the network, told how many tokens it will see."""

    def __init__(
        self,
        scribe: Scribe,
        sampler: Sampler,
        wish: Wish,
        rows: Rows,
        device: torch.device,
        ready: Callable[[int], Any],
    ) -> None:
        self.scribe, self.wish, self.rows, self.device = scribe, wish, rows, device
        self._rewrites = sampler.rewrites
        self.control = self._control()
        begin = walks(sampler, self.control, device)
        self._walk = partial(begin, ready(self._work(getattr(sampler, "steps", None))))

    def states(self, rows: Rows, seed: int, several: int = 1) -> Iterator[State]:
        """Every state of the canvas of some rows, each of them several times."""
        canvas = self.scribe.canvas(rows, seed, self.device)
        yield from self._walk(crowd(canvas, several) if several > 1 else canvas)

    def write(
        self, seed: int, batch_size: int | None, progress: Progress | None = None, trajectories: bool = False
    ) -> list[Generation]:
        """What is written into all rows, some rows at a time."""
        several = self.wish.best_of
        longest = max(len(row) for row in self.rows)
        at_once = batch_size or max(1, self.control.batch_size(longest) // several)
        done: list[Generation] = []
        for start in range(0, len(self.rows), at_once):
            part = self.rows[start : start + at_once]
            written = self._finished(self.states(part, seed + start, several), trajectories)
            groups = [written[i : i + several] for i in range(0, len(written), several)]
            done += [replace(self._best(group), seed=seed + start + i) for i, group in enumerate(groups)]
            if progress is not None:
                progress(len(part))
        return done

    def tell(self, seed: int, streamer: Any, trajectories: bool = False) -> list[Generation]:
        """What is written into the one row, told to a streamer of `transformers` on the way."""
        if len(self.rows) != 1 or self.wish.best_of > 1:
            raise UnmaskError(f"A streamer shows one text and {self._count()} are to be written; ask for one.")
        states = relay(self.states(self.rows, seed), self.scribe, streamer, self._rewrites)
        return self._finished(states, trajectories)

    def _count(self) -> int:
        return len(self.rows) * self.wish.best_of

    def _finished(self, states: Iterator[State], trajectories: bool) -> list[Generation]:
        """What a walk wrote, with all that it looked like on the way if that is asked for."""
        seen: list[list[list[int]]] = []
        for state in states:
            last = state
            if trajectories:
                _remember(seen, state.ids.tolist())
        done = self.scribe.finish(last)
        if not trajectories:
            return done
        return [
            replace(one, trajectory=[ids[: len(one.ids)] for ids in all_ids])
            for one, all_ids in zip(done, seen, strict=True)
        ]

    def _best(self, group: list[Generation]) -> Generation:
        """The one with the highest score."""
        score = self.wish.score
        if len(group) == 1 or score is None:
            return group[0]
        return max(group, key=lambda one: _checked(score, one.text))

    def _control(self) -> Control:
        wish, scribe = self.wish, self.scribe
        windows = self._windows()
        automaton = scribe.bind(wish.constraint, self.rows)
        if windows is not None and (automaton is not None or wish.particles > 1):
            raise UnmaskError(
                f"A constraint or score of a whole canvas of {len(self.rows[0])} tokens needs a model that sees it, "
                f"and this one sees {scribe.limit}; ask for at most that."
            )
        if wish.guidance and not all(_given(row, scribe) for row in self.rows):
            raise UnmaskError(f"guidance={wish.guidance} has nothing to hold to; give a prompt or a suffix.")
        score = self._score_of_canvases if wish.score is not None and wish.particles > 1 else None
        ends_fill = scribe.card.policy.learnt_pads
        return Control(wish.rule, automaton, wish.particles, wish.guidance, score, windows, scribe.ends_with, ends_fill)

    def _windows(self) -> Windows | None:
        """How rows that are longer than the model are cut."""
        limit = self.scribe.limit
        stride = max(1, limit // 2) if self.wish.stride is None else self.wish.stride
        if not 1 <= stride <= limit:
            raise UnmaskError(f"stride={stride} is not possible; give 1 to {limit}, the length of this model.")
        if max(len(row) for row in self.rows) <= limit:
            return None
        return Windows(limit, stride, self.scribe.ends_with)

    def _score_of_canvases(self, ids: Tensor, real: Tensor) -> Tensor:
        """[B] the scores of the texts of finished canvases [B, L]."""
        assert self.wish.score is not None
        sizes = real.sum(dim=1).tolist()
        texts = [self.scribe.decode(row[:size]) for row, size in zip(ids.tolist(), sizes, strict=True)]
        return torch.tensor([_checked(self.wish.score, text) for text in texts], dtype=torch.float64)

    def _work(self, steps: int | None) -> int:
        """Tokens that the network will see in all calls together."""
        wish, limit = self.wish, self.scribe.limit
        calls = [min(steps or len(row), row.count(self.scribe.mask)) for row in self.rows]
        seen = sum(min(len(row), limit) * n for row, n in zip(self.rows, calls, strict=True))
        return wish.particles * wish.best_of * (2 if wish.guidance else 1) * seen


def _checked(score: TextScore, text: str) -> float:
    value = float(score(text))
    if not math.isfinite(value):
        raise UnmaskError(f"The score of {text[:40]!r} is {value}; return a finite number.")
    return value


def _given(row: Sequence[int], scribe: Scribe) -> bool:
    return any(token not in (scribe.mask, scribe.end_token) for token in row)


def _remember(seen: list[list[list[int]]], now: list[list[int]]) -> None:
    """Add canvases to what each sequence has looked like, where something has changed."""
    if not seen:
        seen += [[ids] for ids in now]
        return
    for past, ids in zip(seen, now, strict=True):
        if ids != past[-1]:
            past.append(ids)
