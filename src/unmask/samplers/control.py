"""Walks under control: which rule chooses the tokens, and under which constraint, guidance, score and windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from unmask.constraints import Automaton
from unmask.errors import UnmaskError
from unmask.samplers.base import Canvas, JointRule, Sampler, State, walk
from unmask.samplers.conditioned import Conditioned
from unmask.samplers.draws import TokenRule
from unmask.samplers.ending import Ending
from unmask.samplers.guidance import Guided
from unmask.samplers.particles import crowd, walk_together
from unmask.samplers.scored import Score, Scored
from unmask.samplers.views import WithoutEnd
from unmask.samplers.windows import Windows, walk_windows

Walks = Callable[[Any, Canvas], Iterator[State]]
"""(denoiser, canvas): every state of a walk."""


MOST_GUIDANCE = 1e30
"""The largest weight by which float32 can multiply logits."""
BATCH = 64
STATES_AT_ONCE = 1 << 26
"""States of automata at positions of sequences that one call may keep in memory."""


@dataclass(frozen=True)
class Control:
    """What is asked of a walk. The canvas must satisfy the `automaton`; `guidance` is the weight of the prompt.

    Several `particles` are weighed by the automaton or by a `score`. A text ends with the token `end`, if it has one,
    which with `ends_fill` also fills what is behind the text; the automaton does not speak of one that is given.
    """

    rule: TokenRule = field(default_factory=TokenRule)
    automaton: Automaton | None = None
    particles: int = 1
    guidance: float = 0.0
    score: Score | None = None
    windows: Windows | None = None
    end: int | None = None
    ends_fill: bool = False

    def batch_size(self, length: int) -> int:
        """How many sequences are walked at once unless a user says so."""
        states = 1 if self.automaton is None else self.automaton.states * length
        return max(1, min(BATCH, STATES_AT_ONCE // states) // self.particles)


def walks(sampler: Sampler, control: Control, device: torch.device) -> Walks:
    """The walks of a sampler over canvases, as a control asks for them."""
    constrained, scored = control.automaton is not None, control.score is not None
    check_walk(sampler, control.rule, control.particles, control.guidance, constrained, scored)
    rule = control.rule if sampler.causal else _rule(control, device)

    def plain(denoiser: Any, canvas: Canvas) -> Iterator[State]:
        if isinstance(rule, JointRule) and control.particles > 1:
            view = _view(denoiser, crowd(canvas, control.particles), control)
            return walk_together(sampler, view, canvas, rule, control.particles)
        return walk(sampler, _view(denoiser, canvas, control), canvas, rule)

    def whole(denoiser: Any, canvas: Canvas) -> Iterator[State]:
        windows = control.windows
        if windows is None or canvas.ids.shape[1] <= windows.size:
            return plain(denoiser, canvas)
        return walk_windows(lambda window: plain(denoiser, window), sampler, canvas, windows)

    return whole


def _rule(control: Control, device: torch.device) -> TokenRule | JointRule:
    eos = control.end if control.ends_fill else None
    if control.automaton is not None:
        particles = control.particles if control.particles > 1 else 0
        return Conditioned(control.rule, control.automaton, device, particles, eos, control.end)
    rule = control.rule if eos is None else Ending(control.rule, eos)
    return rule if control.score is None else Scored(rule, control.score)


def _view(denoiser: Any, canvas: Canvas, control: Control) -> Any:
    """The denoiser as the sequences of a canvas see it."""
    if control.guidance and canvas.condition is not None and bool(canvas.condition.any()):
        denoiser = Guided(denoiser, canvas.condition, control.guidance)
    if control.end is not None and canvas.closed is not None and bool(canvas.closed.any()):
        denoiser = WithoutEnd(denoiser, canvas.closed, control.end)
    return denoiser


def check_walk(
    sampler: Sampler, rule: TokenRule, particles: int, guidance: float, constrained: bool, scored: bool
) -> None:
    """Refuse what no walk of a sampler does, whatever the canvas."""
    if sampler.causal and constrained:
        raise UnmaskError("An autoregressive model does not see the rest of its canvas; constrain a masked one.")
    if sampler.causal and guidance:
        raise UnmaskError("An autoregressive model cannot read a canvas whose prompt is masked; guide a masked one.")
    if not 0 <= guidance <= MOST_GUIDANCE:
        raise UnmaskError(
            f"guidance={guidance} is no weight; give 0 (none) or a positive number up to {MOST_GUIDANCE:g}."
        )
    if particles < 1:
        raise UnmaskError(f"particles={particles} draws nothing; give at least 1.")
    if particles > 1:
        _check_particles(sampler, rule, particles, constrained, scored)


def _check_particles(sampler: Sampler, rule: TokenRule, particles: int, constrained: bool, scored: bool) -> None:
    if not constrained and not scored:
        raise UnmaskError(f"particles={particles} have nothing to be weighed by; give a constraint or a score as well.")
    if constrained and scored:
        raise UnmaskError("Particles are weighed by a constraint or by a score; give one of them.")
    if sampler.causal:
        raise UnmaskError("An autoregressive model does not see the rest of its canvas; weigh walks of a masked one.")
    if not sampler.can_resample:
        raise UnmaskError(f"The sampler {type(sampler).__name__} cannot resample its walks; give one particle.")
    if rule.temperature == 0:
        raise UnmaskError("Particles at temperature 0 are all the same; give a higher temperature or one particle.")
