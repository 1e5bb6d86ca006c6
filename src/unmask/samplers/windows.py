"""Canvases longer than a network sees: window after window, the tail of one the frozen beginning of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.random import Purpose, bits
from unmask.samplers.base import Canvas, Sampler, State

Walk = Callable[[Canvas], Iterator[State]]


@dataclass(frozen=True)
class Windows:
    """Windows of `size` tokens, each `stride` behind the one before; the last ends with the canvas.

    A sequence is done with the window in which the token `end` stands, if a text ends so.
    """

    size: int
    stride: int
    end: int | None = None

    def starts(self, length: int) -> list[int]:
        """Where the windows over so many tokens begin."""
        return [*range(0, length - self.size, self.stride), max(0, length - self.size)]


@torch.no_grad()
def run_windows(walk: Walk, sampler: Sampler, canvas: Canvas, windows: Windows) -> Iterator[State]:
    """Every state of the whole canvas. `walk` is one of the sampler, over the canvas of a window.

    Until a sequence has come to an end, its calls are those of all its windows; then those that were made.
    """
    starts = windows.starts(canvas.ids.shape[1])
    calls = _planned(sampler, canvas, windows, starts)
    state = State.start(canvas, calls.sum(dim=0), _longest(calls), None)
    walking = torch.arange(len(canvas.ids), device=canvas.ids.device)
    yield state
    for number, start in enumerate(starts):
        here, before = slice(start, start + windows.size), state
        for inner in walk(_window(before, walking, here, number)) if len(walking) else ():
            state = _embed(before, inner, walking, here, calls[:number].sum(dim=0))
            if inner.call >= inner.total:
                calls[number, walking] = inner.calls
                walking, calls, state = _closed(state, walking, calls, number, here.stop, windows.end)
            if inner.call:
                yield state


def _planned(sampler: Sampler, canvas: Canvas, windows: Windows, starts: list[int]) -> Tensor:
    """[W, B] the calls that each sequence needs in each window; which tokens stand before it does not matter."""
    position, device = torch.arange(canvas.ids.shape[1], device=canvas.ids.device), canvas.ids.device
    every, known, calls = torch.arange(len(canvas.ids), device=device), int(canvas.mask_token_id == 0), []
    for number, start in enumerate(starts):
        behind = position >= (starts[number - 1] + windows.size if number else 0)
        state = State.start(replace(canvas, ids=canvas.ids.where(behind, known)), every, 0, None)
        calls.append(sampler.begin(_window(state, every, slice(start, start + windows.size), number)).calls)
    return torch.stack(calls)


def _longest(calls: Tensor) -> int:
    """The calls of a batch that walks its windows together, from those [W, B] of its sequences."""
    return int(calls.max(dim=1).values.sum())


def _window(state: State, walking: Tensor, here: slice, number: int) -> Canvas:
    """The canvas of a window as it is now. The first has the sequences' own random numbers, others have new ones."""
    part = replace(state.canvas, ids=state.ids, has_pads=False).select(walking, here)
    return part if number == 0 else replace(part, seeds=bits(part.seeds, Purpose.WINDOW, step=number))


def _embed(base: State, inner: State, walking: Tensor, here: slice, done: Tensor) -> State:
    """The whole canvas when a window looks like this; calls go on counting from those `done` [B] before it."""
    at = (walking[:, None], torch.arange(here.start, here.stop, device=walking.device))
    fresh = inner.order >= 0
    order, trust = base.order[at], base.confidence[at]
    order = torch.where(fresh, inner.order + done[walking][:, None], order)
    trust = torch.where(fresh, inner.confidence, trust)
    return replace(
        base,
        ids=base.ids.index_put(at, inner.ids),
        order=base.order.index_put(at, order),
        confidence=base.confidence.index_put(at, trust),
        call=base.call + inner.call,
        idle_calls=base.call + inner.call - done.index_add(0, walking, inner.calls_made),
    )


def _closed(
    state: State, walking: Tensor, calls: Tensor, number: int, stop: int, end: int | None
) -> tuple[Tensor, Tensor, State]:
    """After a window: the sequences that go on, the calls [W, B] of all, and the canvas without what is not needed."""
    ended = (state.ids[walking, :stop] == end).any(dim=1) if end is not None else torch.zeros_like(walking).bool()
    finished, calls, real = walking[ended], calls.clone(), state.canvas.attention_mask.clone()
    calls[number + 1 :, finished] = 0
    real[finished, stop:] = False
    canvas = replace(state.canvas, attention_mask=real, has_pads=not bool(real.all()))
    return walking[~ended], calls, replace(state, canvas=canvas, calls=calls.sum(dim=0), total=_longest(calls))
