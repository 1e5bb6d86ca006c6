"""What samplers share that make T calls of every sequence, by a plan that no canvas changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.random import Purpose, uniform
from unmask.samplers.base import Canvas, State
from unmask.samplers.looking import Look, look


def start(canvas: Canvas, steps: int, plan: Any) -> State:
    """The state before the first of `steps` calls; a sequence without masks needs none."""
    calls = steps * canvas.masked.any(dim=1).long()
    return State.start(canvas, calls, int(calls.max()), plan)


def look_at_time(denoiser: Any, state: State, alpha_T: Tensor) -> Look:
    """One network call, told the alpha that the plan has for it."""
    return look(denoiser, state, alpha_T[state.call].float().to(state.ids.device).expand(len(state.ids)))


def lots(state: State, purpose: Purpose) -> Tensor:
    """[B, L] uniform numbers of this call, one for each position."""
    position = torch.arange(state.ids.shape[1], device=state.ids.device)
    return uniform(state.canvas.seeds[:, None], purpose, state.call, position=position[None])
