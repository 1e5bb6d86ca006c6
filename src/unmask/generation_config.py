"""The options of generation: validated once (`GenerationConfig`), turned into a sampler (`choose_sampler`) and into its
run with constraints, particles, guidance and windows (`configure_sampler`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, model_validator
from torch import Tensor

from unmask.constraints.automaton import Automaton
from unmask.constraints.members import Constraint, as_constraints
from unmask.constraints.particles import Score, ScoredTokenSampler, repeat_canvas, run_particles
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.errors import UnmaskError, did_you_mean
from unmask.random import MAX_SEED, MIN_SEED, is_integer
from unmask.registry import build, check_options, explain, get
from unmask.samplers.base import AnyTokenSampler, Canvas, JointTokenSampler, Sampler, State, run_sampler
from unmask.samplers.eos import EosTokenSampler
from unmask.samplers.guidance import GuidedDenoiser, NoEosDenoiser, SourceDenoiser
from unmask.samplers.token_sampling import TokenSampler
from unmask.samplers.windows import Windows, run_windows
from unmask.schedules import Schedule

if TYPE_CHECKING:
    from unmask.text_processor import TextProcessor

Order = Literal[
    "confidence", "margin", "entropy", "planner", "left_to_right", "uniform", "threshold", "entropy_bounded"
]
SamplerSpec = str | Mapping[str, Any] | Sampler
"""The name of a sampler, `{name: ..., option: ...}`, or the sampler itself."""

TOKEN_FIELDS = frozenset(TokenSampler.model_fields)
SAMPLER_FIELDS = frozenset({"steps", "order", "sampler"})
MAX_BATCH = 64
CPU_TOKENS_PER_CALL = 4096
"""More tokens leave the cache of a CPU: 64 rows of 256 took 1.35 times as long in one call as in four."""
MAX_AUTOMATON_STATES = 1 << 26
"""Automaton states, over all positions and sequences, that one call may keep in memory."""
MAX_COUNT = 1_000_000
"""Largest number of texts, of tokens in a text, or of particles."""

# Strict types that also take the scalars of numpy and torch.
IntOption = Annotated[int, BeforeValidator(lambda value: value.__index__() if is_integer(value) else value)]
FloatOption = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, Real) else value)]


class GenerationConfig(BaseModel):
    """The options of generation, which `MaskedDiffusionLM.generate` explains.

    Texts longer than `window` tokens (default: the model's length) are generated in windows, each `stride` tokens
    after the last one (default: half a window).

    A model with learned padding fills the row after a text with EOS. `eos_rule` draws tokens such that only EOS follows
    EOS. Without it every token is drawn as the network predicts it, which with one token per call is the law of
    infinitely many steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    temperature: FloatOption = 1.0
    top_k: IntOption | None = None
    top_p: FloatOption | None = None
    min_p: FloatOption | None = None
    greedy_tail: FloatOption | None = None
    greedy_above: FloatOption | None = None
    rule: InstanceOf[TokenSampler] | None = None
    constraint: Any = None
    particles: IntOption = Field(default=1, ge=1, le=MAX_COUNT)
    guidance: FloatOption = Field(default=0.0, ge=0, allow_inf_nan=False)
    best_of: IntOption = Field(default=1, ge=1, le=MAX_COUNT)
    score: Callable[[str], float] | None = None
    window: IntOption | None = Field(default=None, ge=1)
    stride: IntOption | None = Field(default=None, ge=1)
    steps: Any = None
    order: Any = None
    sampler: Any = None
    exact: bool = False
    eos_rule: bool = True
    seed: IntOption = Field(default=0, ge=MIN_SEED, le=MAX_SEED)
    batch_size: IntOption | None = Field(default=None, ge=1)

    @classmethod
    def select(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a method that are fields of the config."""
        return {name: value for name, value in arguments.items() if name in cls.model_fields}

    @classmethod
    def parse(
        cls, options: dict[str, Any], method: Callable[..., Any], defaults: Mapping[str, Any] | None = None
    ) -> GenerationConfig:
        """Validate the options of a method; the error for an unknown name suggests the closest option.

        An option of tokens or of the sampler that is None has its default: that of `defaults` unless the options are
        `exact`. A `rule` replaces all defaults of tokens, an `order` or a `sampler` also the number of steps.
        """
        known = set(cls.model_fields)
        for name in options:
            if name not in known:
                own = {one.name for one in signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD}
                raise UnmaskError(f"There is no option '{name}'.{did_you_mean(name, known | own - {'self'})}")
        unset = {name for name in TOKEN_FIELDS | SAMPLER_FIELDS if options.get(name) is None}
        given = {name: value for name, value in options.items() if name not in unset}
        replaced = TOKEN_FIELDS if given.get("rule") is not None else frozenset()
        replaced |= SAMPLER_FIELDS if given.keys() & {"order", "sampler"} else frozenset()
        if given.get("exact") is not True:
            given = {name: value for name, value in (defaults or {}).items() if name not in replaced} | given
        try:
            return cls(**given)
        except ValidationError as error:
            raise UnmaskError(explain(error)) from error

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationConfig:
        if self.rule is not None and self.token_options != TokenSampler().model_dump():
            raise UnmaskError("rule replaces temperature, top_k, top_p and so on; give one or the other.")
        try:
            self.token_sampler  # noqa: B018  (validates the options)
        except ValidationError as error:
            raise UnmaskError(explain(error)) from error
        if self.constraint is not None:
            as_constraints(self.constraint)
            if not self.eos_rule:
                raise UnmaskError("A constraint needs the rule that only EOS follows EOS; leave out eos_rule=False.")
        if self.score is None and self.best_of > 1:
            raise UnmaskError(f"best_of={self.best_of} needs a score to compare the texts; give score=.")
        if self.best_of > 1 and self.particles > 1:
            raise UnmaskError("score selects the best of several texts or weights particles; give one of them.")
        if self.score is not None and self.best_of == self.particles == 1:
            raise UnmaskError("score needs several texts to compare; give best_of= or particles= above 1.")
        return self

    def check_sampler(self, sampler: Sampler, length: int, max_length: int) -> None:
        """Raise `UnmaskError` if `sampler` cannot write rows of `length` tokens with these options.

        `max_length` is the number of tokens that the model sees at once.
        """
        constrained, scored = self.constraint is not None, self.score is not None
        if sampler.causal:
            unsupported = {
                f"window={self.window}": self.window is not None,
                f"stride={self.stride}": self.stride is not None,
                "a constraint": constrained,
                f"guidance={self.guidance}": self.guidance > 0,
                f"particles={self.particles}": self.particles > 1,
            }
            for option, given in unsupported.items():
                if given:
                    raise UnmaskError(
                        f"An autoregressive model cannot use {option}; leave it out, or use a masked model."
                    )
            if length > max_length:
                raise UnmaskError(f"length must be at most {max_length} for this autoregressive model, got {length}.")
            return
        if self.window is not None and self.window > max_length:
            raise UnmaskError(f"window must be from 1 to {max_length}, the length of the model, got {self.window}.")
        window = self.window or max_length
        if self.stride is not None and self.stride > window:
            raise UnmaskError(f"stride must be from 1 to {window}, the length of a window, got {self.stride}.")
        if self.particles > 1:
            if constrained == scored:
                raise UnmaskError(
                    f"particles={self.particles} needs a constraint or a score to weight them, and only one of them."
                )
            if not sampler.can_resample:
                raise UnmaskError(f"The sampler {type(sampler).__name__} does not support particles; use particles=1.")
            if self.token_sampler.temperature == 0:
                raise UnmaskError(
                    "particles are all the same at temperature 0; use a higher temperature or particles=1."
                )
        if length > window and (constrained or self.particles > 1):
            raise UnmaskError(
                f"A constraint or score applies to a canvas that the model sees at once; length must be at most "
                f"{window}, got {length}."
            )

    @property
    def token_options(self) -> dict[str, Any]:
        """The options of a `TokenSampler` by name."""
        return {name: getattr(self, name) for name in TokenSampler.model_fields}

    @cached_property
    def token_sampler(self) -> TokenSampler:
        """How tokens are drawn from logits."""
        return self.rule or TokenSampler(**self.token_options)

    def bind(self, processor: TextProcessor, rows: list[list[int]]) -> SamplingOptions:
        """The options of a run that writes these rows of token ids: constraints compiled for them, and windows."""
        mask, eos = processor.mask_token_id, processor.eos_token_id
        if self.guidance and not all(any(token not in (mask, eos) for token in row) for row in rows):
            raise UnmaskError(f"guidance={self.guidance} needs a prompt or a suffix; give one.")
        size, windows = self.window or processor.max_length, None
        shortest = min(size, *map(len, rows))
        if max(map(len, rows)) > size:
            windows = Windows(size, self.stride or max(1, size // 2), processor.end_token_id)

        def score(ids: Tensor, attention_mask: Tensor) -> Tensor:
            """[B] the scores of finished canvases [B, L]."""
            sizes = attention_mask.sum(dim=1).tolist()
            texts = [processor.decode(row[:size]) for row, size in zip(ids.tolist(), sizes, strict=True)]
            return torch.tensor([self.score_text(text) for text in texts], dtype=torch.float64)

        return SamplingOptions(
            token_sampler=self.token_sampler,
            automaton=processor.compile_constraints(self.constraint, rows),
            particles=self.particles,
            guidance=self.guidance,
            score=score if self.score is not None and self.particles > 1 else None,
            windows=windows,
            eos=processor.end_token_id,
            eos_padding=processor.config.policy.supervises_padding and self.eos_rule,
            as_trained=processor.as_trained if shortest < processor.row_length else None,
        )

    def with_constraints(self, others: Sequence[Constraint]) -> GenerationConfig:
        """The same config with further constraints."""
        own = [] if self.constraint is None else as_constraints(self.constraint)
        return self.model_copy(update={"constraint": [*own, *others] or None})

    def score_text(self, text: str) -> float:
        """The score of a text, which must be a finite number."""
        value: Any = self.score(text) if self.score is not None else None
        if not hasattr(value, "__float__") or not math.isfinite(value):
            raise UnmaskError(f"score must return a finite number, got {value!r} for {text[:40]!r}.")
        return float(value)


def check_count(name: str, value: Any) -> None:
    """Raise `UnmaskError` unless a value is an integer from 1 to `MAX_COUNT`."""
    if not is_integer(value):
        raise UnmaskError(f"{name} must be an integer, got {value!r}.")
    if not 1 <= value <= MAX_COUNT:
        raise UnmaskError(f"{name} must be from 1 to {MAX_COUNT}, got {value}.")


def greedy_temperature(greedy: bool, temperature: float | None) -> float | None:
    """Temperature 0 if `greedy`, which excludes another temperature."""
    if greedy and temperature not in (None, 0, 1):
        raise UnmaskError(f"greedy means temperature=0, got temperature={temperature}; give one of them.")
    return 0.0 if greedy else temperature


# ---- the choice of a sampler -----------------------------------------------------------------------------------------


def choose_sampler(
    schedule: Schedule,
    steps: int | None = None,
    order: str | None = None,
    sampler: SamplerSpec | None = None,
    predicts_scores: bool = False,
) -> Sampler:
    """The sampler of a masked model: a named `order`, a `sampler` by its options, or ancestral sampling.

    Options of the sampler that are not given default to `steps` and to the `schedule` of the model.
    `predicts_scores`: whether the network was trained to output scores (SEDD).
    """
    if order is not None and sampler is not None:
        raise UnmaskError(f"order='{order}' and sampler={sampler!r} exclude each other; give one of them.")
    spec = sampler if sampler is not None else "ancestral" if order is None else _spec_of_order(order)
    chosen: Sampler = spec if isinstance(spec, Sampler) else build("sampler", _with_defaults(spec, schedule, steps))
    if chosen.causal:
        raise UnmaskError("The sampler 'ar' needs an autoregressive model, and this one is masked; choose another.")
    if chosen.needs_scores and not predicts_scores:
        raise UnmaskError(
            "The sampler 'analytic' needs scores, which only the objective 'sedd' trains; use 'ancestral', which is "
            "the same for normalised predictions."
        )
    if steps is not None and chosen.adaptive:
        raise UnmaskError(f"The network decides the number of calls of this sampler; leave out steps={steps}.")
    if steps is not None and (own := getattr(chosen, "steps", steps)) != steps:
        raise UnmaskError(f"steps={steps} contradicts steps={own} of the sampler; leave out one of them.")
    return chosen


def _spec_of_order(order: str) -> dict[str, Any]:
    if order not in get_args(Order):
        raise UnmaskError(f"There is no order named '{order}'.{did_you_mean(str(order), get_args(Order))}")
    ordered = get_args(get("sampler", "ordered").model_fields["order"].annotation)
    return {"name": "ordered", "order": order} if order in ordered else {"name": order}


def _with_defaults(spec: str | Mapping[str, Any], schedule: Schedule, steps: int | None) -> dict[str, Any]:
    given = check_options("sampler", spec)
    defaults = {"schedule": schedule} if steps is None else {"schedule": schedule, "steps": steps}
    fields = get("sampler", given["name"]).model_fields
    return {**{name: value for name, value in defaults.items() if name in fields}, **given}


# ---- the run of a sampler --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingOptions:
    """How a sampler runs. `particles` are weighted by the `automaton` or by the `score`; `guidance` is a weight.

    `eos` is the token that ends a text, if any; with `eos_padding` it also fills the row after the text. The automaton
    does not read an EOS that is given. `as_trained` wraps the denoiser for rows shorter than in training.
    """

    token_sampler: TokenSampler = field(default_factory=TokenSampler)
    automaton: Automaton | None = None
    particles: int = 1
    guidance: float = 0.0
    score: Score | None = None
    windows: Windows | None = None
    eos: int | None = None
    eos_padding: bool = False
    as_trained: Callable[[Any], Any] | None = None

    def batch_size(self, length: int, device: torch.device) -> int:
        """The default number of sequences of `length` tokens to sample at a time."""
        states = 1 if self.automaton is None else self.automaton.states * length
        rows = CPU_TOKENS_PER_CALL // length if device.type == "cpu" else MAX_BATCH
        return max(1, min(rows, MAX_BATCH, MAX_AUTOMATON_STATES // states) // self.particles)


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
    """The denoiser for one canvas: with an encoded source, rows as trained, guidance, no EOS before given text."""
    encode_source = None if options.guidance else getattr(denoiser, "encode_source", None)
    if encode_source is not None:
        source = encode_source(canvas.ids, canvas.attention_mask if canvas.has_pads else None)
        denoiser = denoiser if source is None else SourceDenoiser(denoiser, source)
    if options.as_trained is not None:
        denoiser = options.as_trained(denoiser)
    if options.guidance and canvas.condition is not None and bool(canvas.condition.any()):
        denoiser = GuidedDenoiser(denoiser, canvas.condition, options.guidance)
    if options.eos is not None and canvas.no_eos is not None and bool(canvas.no_eos.any()):
        denoiser = NoEosDenoiser(denoiser, canvas.no_eos, options.eos)
    return denoiser
