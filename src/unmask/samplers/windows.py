"""Canvases longer than the network's rows, sampled window by window; each continues the end of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.random import Purpose, bits
from unmask.samplers.base import Canvas, Sampler, State


@dataclass(frozen=True)
class Windows:
    """Windows of `size` tokens, each starting `stride` tokens after the one before; the last ends with the canvas.

    A sequence ends with the first window that contains the token `end`, if one is given.
    """

    size: int
    stride: int
    end: int | None = None

    def starts(self, length: int) -> list[int]:
        """The first positions of the windows over `length` tokens."""
        return [*range(0, length - self.size, self.stride), max(0, length - self.size)]


@torch.no_grad()
def run_windows(
    run: Callable[[Canvas], Iterator[State]], sampler: Sampler, canvas: Canvas, windows: Windows
) -> Iterator[State]:
    """Yield every state of the whole canvas; `run` runs the sampler on the canvas of one window.

    The calls of a sequence are those of all its windows, or once it has ended those that were made.
    """
    starts = windows.starts(canvas.ids.shape[1])
    calls = _planned_calls(sampler, canvas, windows, starts)
    state = State.start(canvas, calls.sum(dim=0), _total(calls), None)
    active = torch.arange(len(canvas.ids), device=canvas.ids.device)
    yield state
    for number, start in enumerate(starts):
        columns, before = slice(start, start + windows.size), state
        for inner in run(_window(before, active, columns, number)) if len(active) else ():
            state = _embed(before, inner, active, columns, calls[:number].sum(dim=0))
            if inner.call >= inner.total:
                calls[number, active] = inner.calls
                active, calls, state = _finish_window(state, active, calls, number, columns.stop, windows.end)
            if inner.call:
                yield state


def _planned_calls(sampler: Sampler, canvas: Canvas, windows: Windows, starts: list[int]) -> Tensor:
    """[W, B] the calls that each sequence needs in each window, with everything before the window already written."""
    every, position = (torch.arange(size, device=canvas.ids.device) for size in canvas.ids.shape)
    any_token, calls = int(canvas.mask_token_id == 0), []
    for number, start in enumerate(starts):
        open_ = position >= (starts[number - 1] + windows.size if number else 0)
        state = State.start(replace(canvas, ids=canvas.ids.where(open_, any_token)), every, 0, None)
        calls.append(sampler.begin(_window(state, every, slice(start, start + windows.size), number)).calls)
    return torch.stack(calls)


def _total(calls: Tensor) -> int:
    """The calls of the batch, from those [W, B] of its sequences: all finish a window together."""
    return int(calls.max(dim=1).values.sum())


def _window(state: State, active: Tensor, columns: slice, number: int) -> Canvas:
    """The canvas of a window. The first window has the seeds of the sequences, later ones have new seeds."""
    window = replace(state.canvas, ids=state.ids, has_pads=False).select(active, columns)
    return window if number == 0 else replace(window, seeds=bits(window.seeds, Purpose.WINDOW, step=number))


def _embed(base: State, inner: State, active: Tensor, columns: slice, calls_before: Tensor) -> State:
    """The state of the whole canvas for the state of a window; `calls_before` [B] were made for earlier windows."""
    at = (active[:, None], torch.arange(columns.start, columns.stop, device=active.device))
    written = inner.order >= 0
    order = torch.where(written, inner.order + calls_before[active][:, None], base.order[at])
    confidence = torch.where(written, inner.confidence, base.confidence[at])
    return replace(
        base,
        ids=base.ids.index_put(at, inner.ids),
        order=base.order.index_put(at, order),
        confidence=base.confidence.index_put(at, confidence),
        call=base.call + inner.call,
        idle_calls=base.call + inner.call - calls_before.index_add(0, active, inner.calls_made),
    )


def _finish_window(
    state: State, active: Tensor, calls: Tensor, number: int, stop: int, end: int | None
) -> tuple[Tensor, Tensor, State]:
    """The sequences that continue, the calls [W, B] and the state, with padding after texts that have ended."""
    ended = (state.ids[active, :stop] == end).any(dim=1) if end is not None else torch.zeros_like(active).bool()
    finished, calls, attention = active[ended], calls.clone(), state.canvas.attention_mask.clone()
    calls[number + 1 :, finished] = 0
    attention[finished, stop:] = False
    canvas = replace(state.canvas, attention_mask=attention, has_pads=not bool(attention.all()))
    return active[~ended], calls, replace(state, canvas=canvas, calls=calls.sum(dim=0), total=_total(calls))
