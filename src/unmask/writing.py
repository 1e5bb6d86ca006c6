"""How rows with masks become texts: in batches, in windows, as the best of several, or shown as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.samplers.base import Sampler, State
from unmask.samplers.control import Control, check_walk, walks
from unmask.samplers.particles import crowd
from unmask.samplers.windows import Windows
from unmask.scribe import Frame, Generation, Scribe
from unmask.streaming import relay
from unmask.tally import Progress
from unmask.wishes import Wish

Rows = list[list[int]]
Moment = TypeVar("Moment", State, Frame)


class Writer:
    """Writes rows with masks as a user wishes; `ready` gives the network, told how many tokens it will see.

    `length` is how much of a row was asked for, where it may be framed for the network.
    """

    def __init__(
        self,
        scribe: Scribe,
        sampler: Sampler,
        wish: Wish,
        rows: Rows,
        device: torch.device,
        ready: Callable[[int], Any],
        length: int | None = None,
    ) -> None:
        self.scribe, self.wish, self.rows, self.device = scribe, wish, rows, device
        self.length = length
        check_wish(wish, scribe, sampler, max(map(len, rows)))
        self._rewrites = sampler.rewrites
        self.control = self._control()
        begin = walks(sampler, self.control, device)
        self._walk = partial(begin, ready(self._work(getattr(sampler, "steps", None))))

    def states(self, rows: Rows, seed: int, several: int = 1) -> Iterator[State]:
        """Every state of the canvas of some rows, each of them several times."""
        canvas = self.scribe.canvas(rows, seed, self.device)
        yield from self._walk(crowd(canvas, several) if several > 1 else canvas)

    def write(
        self,
        seed: int,
        batch_size: int | None,
        progress: Progress | None = None,
        trajectories: bool = False,
        batches: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """What is written into all rows, some rows at a time."""
        several = self.wish.best_of
        longest = max(len(row) for row in self.rows)
        at_once = batch_size or max(1, self.control.batch_size(longest) // several)
        done: list[Generation] = []
        for start in range(0, len(self.rows), at_once):
            part = self.rows[start : start + at_once]
            states = followed(self.states(part, seed + start, several), len(part), progress)
            written = self._finished(states, trajectories)
            groups = [written[i : i + several] for i in range(0, len(written), several)]
            done += [replace(self._best(group), seed=seed + start + i) for i, group in enumerate(groups)]
            if batches is not None:
                batches(len(part))
        return done

    def tell(self, seed: int, streamer: Any, trajectories: bool = False) -> list[Generation]:
        """What is written into the one row, told to a streamer of `transformers` on the way."""
        return self._finished(relay(self.show(seed), self.scribe, streamer, self._rewrites), trajectories)

    def show(self, seed: int) -> Iterator[State]:
        """Every state of the one row."""
        return self.states(self.rows, seed)

    def _finished(self, states: Iterator[State], trajectories: bool) -> list[Generation]:
        """What a walk wrote, with all that it looked like on the way if that is asked for."""
        seen: list[list[list[int]]] = []
        for state in states:
            last = state
            if trajectories:
                _remember(seen, state)
        done = self.scribe.finish(last, self.length)
        if not trajectories:
            return done
        return [
            replace(one, trajectory=[ids[: len(one.ids)] for ids in all_ids])
            for one, all_ids in zip(done, seen, strict=True)
        ]

    def _best(self, group: list[Generation]) -> Generation:
        """The one with the highest score."""
        return group[0] if len(group) == 1 else max(group, key=lambda one: self.wish.score_of(one.text))

    def _control(self) -> Control:
        wish, scribe = self.wish, self.scribe
        automaton = scribe.bind(wish.constraint, self.rows)
        if wish.guidance and not all(_given(row, scribe) for row in self.rows):
            raise UnmaskError(f"guidance={wish.guidance} has nothing to hold to; give a prompt or a suffix.")
        score = self._score_of_canvases if wish.score is not None and wish.particles > 1 else None
        windows, ends_fill = self._windows(), scribe.card.policy.learnt_pads
        asked = (wish.rule, automaton, wish.particles, wish.guidance, score)
        return Control(*asked, windows, scribe.ends_with, ends_fill)

    def _windows(self) -> Windows | None:
        """How rows that are longer than the model are cut."""
        limit = self.scribe.limit
        if max(map(len, self.rows)) <= limit:
            return None
        return Windows(limit, self.wish.stride or max(1, limit // 2), self.scribe.ends_with)

    def _score_of_canvases(self, ids: Tensor, real: Tensor) -> Tensor:
        """[B] the scores of the texts of finished canvases [B, L]."""
        sizes = real.sum(dim=1).tolist()
        texts = [self.scribe.decode(row[:size]) for row, size in zip(ids.tolist(), sizes, strict=True)]
        return torch.tensor([self.wish.score_of(text) for text in texts], dtype=torch.float64)

    def _work(self, steps: int | None) -> int:
        """Tokens that the network will see in all calls together."""
        wish, limit = self.wish, self.scribe.limit
        calls = [min(steps or len(row), row.count(self.scribe.mask)) for row in self.rows]
        seen = sum(min(len(row), limit) * n for row, n in zip(self.rows, calls, strict=True))
        return wish.particles * wish.best_of * (2 if wish.guidance else 1) * seen


def followed(states: Iterator[Moment], texts: int, progress: Progress | None) -> Iterator[Moment]:
    """The same moments of a walk, of so many texts; with each, `progress` is told what share of the texts is new."""
    told = 0.0
    for state in states:
        if progress is not None:
            total = state.calls if isinstance(state, Frame) else state.total
            share = texts * state.call / total if total else texts
            progress(share - told)
            told = share
        yield state


def check_wish(wish: Wish, scribe: Scribe, sampler: Sampler, longest: int) -> None:
    """Refuse what cannot be done with rows of at most so many tokens, whatever they hold."""
    stride, limit = wish.stride, scribe.limit
    if stride is not None and scribe.card.objective.causal:
        raise UnmaskError(f"An autoregressive model is not written window by window; leave out stride={stride}.")
    if stride is not None and not 1 <= stride <= limit:
        raise UnmaskError(f"stride={stride} is not possible; give 1 to {limit}, the length of this model.")
    constrained, scored = wish.constraint is not None, wish.score is not None and wish.particles > 1
    check_walk(sampler, wish.rule, wish.particles, wish.guidance, constrained, scored)
    if longest > limit and (constrained or scored):
        raise UnmaskError(
            f"A constraint or score of a whole canvas of {longest} tokens needs a model that sees it, "
            f"and this one sees {limit}; ask for at most that."
        )


def check_streamer(streamer: Any, count: int) -> None:
    """Whether a streamer can be told of so many texts."""
    check_alone(count, "streamer")
    if not all(hasattr(streamer, verb) for verb in ("put", "end")):
        raise UnmaskError(f"streamer={streamer!r} has no put and end; give one of transformers, as TextStreamer.")


def check_alone(count: int, who: str) -> None:
    """Whether there is one text to be shown."""
    if count != 1:
        raise UnmaskError(f"A {who} shows one text and {count} are to be written; ask for one.")


def _given(row: Sequence[int], scribe: Scribe) -> bool:
    return any(token not in (scribe.mask, scribe.end_token) for token in row)


def _remember(seen: list[list[list[int]]], state: State) -> None:
    """Add canvases to what each sequence has looked like: before its first call, and after each of its own."""
    seen += [[] for _ in range(len(state.ids) - len(seen))]
    for past, ids, made in zip(seen, state.ids.tolist(), state.made.tolist(), strict=True):
        if made == len(past):
            past.append(ids)
