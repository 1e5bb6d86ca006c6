"""The choice of a sampler and the options of its run (token sampling, constraint, particles, guidance)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from unmask.constraints import Automaton
from unmask.constraints.particles import Score, ScoredTokenSampler, repeat_canvas, run_particles
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.errors import UnmaskError, did_you_mean
from unmask.registry import build, get
from unmask.samplers.base import AnyTokenSampler, Canvas, JointTokenSampler, Sampler, State, run_sampler
from unmask.samplers.ending import EosTokenSampler
from unmask.samplers.guidance import GuidedDenoiser, NoEosDenoiser
from unmask.samplers.token_sampling import TokenSampler
from unmask.samplers.windows import Windows, run_windows
from unmask.schedules import Schedule

Order = Literal[
    "confidence", "margin", "entropy", "planner", "left_to_right", "uniform", "threshold", "entropy_bounded"
]
SamplerSpec = str | Mapping[str, Any] | Sampler
"""The name of a sampler, `{name: ..., option: ...}`, or the sampler itself."""
MAX_BATCH = 64
MAX_AUTOMATON_STATES = 1 << 26
"""Automaton states, over all positions and sequences, that one call may keep in memory."""


@dataclass(frozen=True)
class SamplingOptions:
    """How a sampler runs. `particles` are weighted by the `automaton` or by the `score`; `guidance` is a weight.

    `eos` is the token that ends a text, if any; with `eos_padding` it also fills the row after the text. The automaton
    does not read an EOS that is given.
    """

    token_sampler: TokenSampler = field(default_factory=TokenSampler)
    automaton: Automaton | None = None
    particles: int = 1
    guidance: float = 0.0
    score: Score | None = None
    windows: Windows | None = None
    eos: int | None = None
    eos_padding: bool = False

    def batch_size(self, length: int) -> int:
        """The default number of sequences to sample at a time."""
        states = 1 if self.automaton is None else self.automaton.states * length
        return max(1, min(MAX_BATCH, MAX_AUTOMATON_STATES // states) // self.particles)


def configure_sampler(
    sampler: Sampler, options: SamplingOptions, device: torch.device
) -> Callable[[Any, Canvas], Iterator[State]]:
    """A function of (denoiser, canvas) that yields every state of the sampler run with these options."""
    token_sampler = choose_token_sampler(sampler, options, device)

    def run_window(denoiser: Any, canvas: Canvas) -> Iterator[State]:
        if isinstance(token_sampler, JointTokenSampler) and options.particles > 1:
            wrapped = wrap_denoiser(denoiser, repeat_canvas(canvas, options.particles), options)
            return run_particles(sampler, wrapped, canvas, token_sampler, options.particles)
        return run_sampler(sampler, wrap_denoiser(denoiser, canvas, options), canvas, token_sampler)

    def run(denoiser: Any, canvas: Canvas) -> Iterator[State]:
        windows = options.windows
        if windows is None or canvas.ids.shape[1] <= windows.size:
            return run_window(denoiser, canvas)
        return run_windows(lambda window: run_window(denoiser, window), sampler, canvas, windows)

    return run


def choose_token_sampler(sampler: Sampler, options: SamplingOptions, device: torch.device) -> AnyTokenSampler:
    """How the sampler draws tokens with these options."""
    eos = options.eos if options.eos_padding else None
    if options.automaton is not None:
        particles = options.particles if options.particles > 1 else 0
        return ConstrainedTokenSampler(options.token_sampler, options.automaton, device, particles, eos, options.eos)
    if sampler.causal:
        return options.token_sampler
    token_sampler = options.token_sampler if eos is None else EosTokenSampler(options.token_sampler, eos)
    return token_sampler if options.score is None else ScoredTokenSampler(token_sampler, options.score)


def wrap_denoiser(denoiser: Any, canvas: Canvas, options: SamplingOptions) -> Any:
    """The denoiser with guidance, and without EOS before given text, for one canvas."""
    if options.guidance and canvas.condition is not None and bool(canvas.condition.any()):
        denoiser = GuidedDenoiser(denoiser, canvas.condition, options.guidance)
    if options.eos is not None and canvas.no_eos is not None and bool(canvas.no_eos.any()):
        denoiser = NoEosDenoiser(denoiser, canvas.no_eos, options.eos)
    return denoiser


def choose_sampler(
    schedule: Schedule,
    steps: int | None = None,
    order: str | None = None,
    sampler: SamplerSpec | None = None,
    scores: bool = False,
) -> Sampler:
    """The sampler of a masked model: a named `order`, a `sampler` by its options, or ancestral sampling.

    Options of the sampler that are not given default to `steps` and to the `schedule` of the model. `scores`: whether
    the network was trained to output scores.
    """
    if order is not None and sampler is not None:
        raise UnmaskError(f"order='{order}' and sampler={sampler!r} exclude each other; give one of them.")
    spec = sampler if sampler is not None else "ancestral" if order is None else _spec_of_order(order)
    chosen: Sampler = spec if isinstance(spec, Sampler) else build("sampler", _with_defaults(spec, schedule, steps))
    if chosen.causal:
        raise UnmaskError("The sampler 'ar' needs an autoregressive model, and this one is masked; choose another.")
    if chosen.needs_scores and not scores:
        raise UnmaskError(
            "The sampler 'analytic' needs scores, which only the objective 'sedd' trains; use 'ancestral', which is "
            "the same for normalised predictions."
        )
    if steps is not None and chosen.adaptive:
        raise UnmaskError(f"The network decides the number of calls of this sampler; leave out steps={steps}.")
    if steps is not None and getattr(chosen, "steps", steps) != steps:
        own = getattr(chosen, "steps", None)
        raise UnmaskError(f"steps={steps} contradicts steps={own} of the sampler; leave out one of them.")
    return chosen


def _spec_of_order(order: str) -> dict[str, Any]:
    if order not in get_args(Order):
        raise UnmaskError(f"There is no order named '{order}'.{did_you_mean(str(order), get_args(Order))}")
    ordered = get_args(get("sampler", "ordered").model_fields["order"].annotation)
    return {"name": "ordered", "order": order} if order in ordered else {"name": order}


def _with_defaults(spec: str | Mapping[str, Any], schedule: Schedule, steps: int | None) -> Any:
    given = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        return spec  # `build` reports the error
    defaults = {"schedule": schedule} if steps is None else {"schedule": schedule, "steps": steps}
    fields = get("sampler", given["name"]).model_fields
    return {**{name: value for name, value in defaults.items() if name in fields}, **given}
