"""Which sampler a user means: an order by its name, a sampler by its options, or the uniform order if neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from unmask.constraints import Automaton
from unmask.constraints.particles import Score, Scored, repeat_canvas, run_particles
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.errors import UnmaskError, did_you_mean
from unmask.registry import build, get
from unmask.samplers.base import Canvas, JointTokenSampler, Sampler, State, run_sampler
from unmask.samplers.ending import Ending
from unmask.samplers.guidance import GuidedDenoiser, NoEosDenoiser
from unmask.samplers.token_sampling import TokenSampler
from unmask.samplers.windows import Windows, run_windows
from unmask.schedules import Schedule

Walks = Callable[[Any, Canvas], Iterator[State]]
"""(denoiser, canvas): every state of a walk."""


MOST_GUIDANCE = 1e30
"""The largest weight by which float32 can multiply logits."""
BATCH = 64
STATES_AT_ONCE = 1 << 26
"""States of automata at positions of sequences that one call may keep in memory."""


@dataclass(frozen=True)
class SamplingOptions:
    """What is asked of a walk. The canvas must satisfy the `automaton`; `guidance` is the weight of the prompt.

    Several `particles` are weighed by the automaton or by a `score`. A text ends with the token `end`, if it has one,
    which with `ends_fill` also fills what is behind the text; the automaton does not speak of one that is given.
    """

    rule: TokenSampler = field(default_factory=TokenSampler)
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


def configure_sampler(sampler: Sampler, control: SamplingOptions, device: torch.device) -> Walks:
    """The walks of a sampler over canvases, as a control asks for them."""
    constrained, scored = control.automaton is not None, control.score is not None
    check_sampling_options(sampler, control.rule, control.particles, control.guidance, constrained, scored)
    rule = control.rule if sampler.causal else _rule(control, device)

    def plain(denoiser: Any, canvas: Canvas) -> Iterator[State]:
        if isinstance(rule, JointTokenSampler) and control.particles > 1:
            view = _view(denoiser, repeat_canvas(canvas, control.particles), control)
            return run_particles(sampler, view, canvas, rule, control.particles)
        return run_sampler(sampler, _view(denoiser, canvas, control), canvas, rule)

    def whole(denoiser: Any, canvas: Canvas) -> Iterator[State]:
        windows = control.windows
        if windows is None or canvas.ids.shape[1] <= windows.size:
            return plain(denoiser, canvas)
        return run_windows(lambda window: plain(denoiser, window), sampler, canvas, windows)

    return whole


def _rule(control: SamplingOptions, device: torch.device) -> TokenSampler | JointTokenSampler:
    eos = control.end if control.ends_fill else None
    if control.automaton is not None:
        particles = control.particles if control.particles > 1 else 0
        return ConstrainedTokenSampler(control.rule, control.automaton, device, particles, eos, control.end)
    rule = control.rule if eos is None else Ending(control.rule, eos)
    return rule if control.score is None else Scored(rule, control.score)


def _view(denoiser: Any, canvas: Canvas, control: SamplingOptions) -> Any:
    """The denoiser as the sequences of a canvas see it."""
    if control.guidance and canvas.condition is not None and bool(canvas.condition.any()):
        denoiser = GuidedDenoiser(denoiser, canvas.condition, control.guidance)
    if control.end is not None and canvas.no_eos is not None and bool(canvas.no_eos.any()):
        denoiser = NoEosDenoiser(denoiser, canvas.no_eos, control.end)
    return denoiser


def check_sampling_options(
    sampler: Sampler, rule: TokenSampler, particles: int, guidance: float, constrained: bool, scored: bool
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


def _check_particles(sampler: Sampler, rule: TokenSampler, particles: int, constrained: bool, scored: bool) -> None:
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


Order = Literal[
    "confidence", "margin", "entropy", "planner", "left_to_right", "uniform", "threshold", "entropy_bounded"
]
SamplerSpec = str | Mapping[str, Any] | Sampler
"""A sampler's name, `{name: ..., option: ...}`, or the sampler itself."""


def choose_sampler(
    schedule: Schedule,
    steps: int | None = None,
    order: str | None = None,
    sampler: SamplerSpec | None = None,
    scores: bool = False,
) -> Sampler:
    """The sampler of a masked model; where it has these options and nothing is said of them, in `steps` and with the
    `schedule` of the model. `scores`: whether its objective teaches it scores."""
    if order is not None and sampler is not None:
        raise UnmaskError(f"order='{order}' and sampler={sampler!r} are two ways to unmask; give one of them.")
    spec = sampler if sampler is not None else _ordered(order) if order is not None else "ancestral"
    chosen: Sampler = spec if isinstance(spec, Sampler) else build("sampler", _completed(spec, schedule, steps))
    if chosen.causal:
        raise UnmaskError("The sampler 'ar' reads from left to right, and this model does not; give another.")
    if chosen.needs_scores and not scores:
        raise UnmaskError(
            "The sampler 'analytic' goes by the mass of scores, which only the objective 'sedd' teaches; take "
            "'ancestral', which is the same walk for predictions."
        )
    if steps is not None and getattr(chosen, "steps", steps) != steps:
        raise UnmaskError(
            f"The sampler has steps={getattr(chosen, 'steps', None)} of its own; leave out steps={steps}."
        )
    if steps is not None and chosen.adaptive:
        raise UnmaskError(f"The network decides how many calls this order takes; leave out steps={steps}.")
    return chosen


def _ordered(order: str) -> dict[str, Any]:
    """Orders that write as many positions as they like are samplers of their own."""
    orders = get_args(Order)
    if order not in orders:
        raise UnmaskError(f"There is no order named '{order}'.{did_you_mean(str(order), orders)}")
    planned = get_args(get("sampler", "ordered").model_fields["order"].annotation)
    return {"name": "ordered", "order": order} if order in planned else {"name": order}


def _completed(spec: str | Mapping[str, Any], schedule: Schedule, steps: int | None) -> Any:
    """What is said of a sampler, with the model's schedule and the number of steps where nothing is said of them."""
    said = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str):
        return spec
    known = {"schedule": schedule} if steps is None else {"schedule": schedule, "steps": steps}
    fields = get("sampler", said["name"]).model_fields
    return {**{name: value for name, value in known.items() if name in fields}, **said}
