"""Walks under control: which rule chooses the tokens, under which constraint, by how many particles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from unmask.constraints import Automaton
from unmask.errors import UnmaskError
from unmask.samplers.base import Canvas, Sampler, State, walk
from unmask.samplers.conditioned import Conditioned
from unmask.samplers.draws import TokenRule
from unmask.samplers.particles import walk_together

Walks = Callable[[Any, Canvas], Iterator[State]]
"""(denoiser, canvas): every state of a walk."""


BATCH = 64
STATES_AT_ONCE = 1 << 26
"""States of automata at positions of sequences that one call may keep in memory."""


def batch_size(automaton: Automaton | None, particles: int, length: int) -> int:
    """How many sequences are walked at once unless a user says so."""
    states = 1 if automaton is None else automaton.states * length
    return max(1, min(BATCH, STATES_AT_ONCE // states) // particles)


def walks(
    sampler: Sampler, rule: TokenRule, automaton: Automaton | None, particles: int, device: torch.device
) -> Walks:
    """The walks of a sampler over canvases that an automaton, if there is one, accepts in the end."""
    _check(sampler, rule, automaton, particles)
    if automaton is None:
        return lambda denoiser, canvas: walk(sampler, denoiser, canvas, rule)
    joint = Conditioned(rule, automaton, device, weigh=particles > 1)
    if particles == 1:
        return lambda denoiser, canvas: walk(sampler, denoiser, canvas, joint)
    return lambda denoiser, canvas: walk_together(sampler, denoiser, canvas, joint, particles)


def _check(sampler: Sampler, rule: TokenRule, automaton: Automaton | None, particles: int) -> None:
    if sampler.causal and automaton is not None:
        raise UnmaskError("An autoregressive model does not see the rest of its canvas; constrain a masked one.")
    if particles < 1:
        raise UnmaskError(f"particles={particles} draws nothing; give at least 1.")
    if particles > 1 and automaton is None:
        raise UnmaskError(f"particles={particles} have nothing to be weighed by; give a constraint as well.")
    if particles > 1 and not sampler.can_resample:
        raise UnmaskError(f"The sampler {type(sampler).__name__} cannot resample its walks; give one particle.")
    if particles > 1 and rule.temperature == 0:
        raise UnmaskError("Particles at temperature 0 are all the same; give a higher temperature or one particle.")
