"""The protocol of samplers: begin with a canvas, step until no call is left. A sampler knows no files, no training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.registry import Component
from unmask.samplers.token_sampling import TokenSampler


class Prospect(NamedTuple):
    """By what an order judges N positions: their predictions `log_p` [N, V], whether all is `settled` [N] whatever the
    network says, and the chance [N] of `text`, beside which a planner's word is for nothing."""

    log_p: Tensor
    settled: Tensor
    text: Tensor


Outlook = Callable[[Tensor, "Positions"], Prospect]
"""Predictions [N, V], in logs, at positions of a canvas to what an order may make of them."""


def as_predicted(log_p: Tensor, at: Positions) -> Prospect:
    """An order goes by the predictions themselves."""
    return Prospect(log_p, torch.zeros_like(at.rows, dtype=torch.bool), log_p.new_ones(len(at.rows)))


def text_first(state: State, eos: int) -> Outlook:
    """An end that is only foreseen says nothing about the text: its chance is spread over the vocabulary.

    Of all tokens of a blank row the last EOS is the surest, and the surest first would be no text at all.
    """
    return partial(_foreseen, Known.of(state, eos), eos)


class Known(NamedTuple):
    """[B] each: the last place that is text and the first that is EOS, as far as is known; `torn` rows have text behind
    EOS, and there every position is for itself."""

    last_text: Tensor
    first_end: Tensor
    torn: Tensor

    @classmethod
    def of(cls, state: State, eos: int) -> Known:
        """What the canvas says of texts and their ends."""
        place = torch.arange(state.ids.shape[1], device=state.ids.device)
        there = ~state.masked & state.canvas.attention_mask
        ends = state.ids == eos
        last_text = place.where(there & ~ends, -1).amax(dim=1)
        first_end = place.where(there & ends, len(place)).amin(dim=1)
        return cls(last_text, first_end, last_text > first_end)

    def settled(self, at: Positions) -> tuple[Tensor, Tensor]:
        """[N] whether positions must be text, and whether they must be EOS."""
        row, place = at
        return (place < self.last_text[row]) & ~self.torn[row], (place > self.first_end[row]) & ~self.torn[row]


def _foreseen(known: Known, eos: int, log_p: Tensor, at: Positions) -> Prospect:
    text, over = known.settled(at)
    torn, size = known.torn[at.rows], log_p.shape[1]
    is_eos = torch.arange(size, device=log_p.device) == eos
    words = log_p.masked_fill(is_eos, -torch.inf)
    seen = torch.logaddexp(words, log_p[:, eos, None] - math.log(size))
    seen = words.log_softmax(-1).where(text[:, None], seen)
    seen = torch.zeros_like(log_p).masked_fill(~is_eos, -torch.inf).where(over[:, None], seen)
    chance = (1.0 - log_p[:, eos].exp()).masked_fill(text | torn, 1.0)
    return Prospect(log_p.where(torn[:, None], seen), over, chance)


@dataclass(frozen=True)
class Canvas:
    """`ids` [B, L] with the mask token where something is to be written; every other token is given and never changes.

    `attention_mask` [B, L] is False at pads; `seeds` [B] gives each sequence its own random numbers. `no_eos` [B, L],
    where there is one, says where the text may not end, `condition` [B, L] which given tokens guidance turns to.
    """

    ids: Tensor
    attention_mask: Tensor
    seeds: Tensor
    mask_token_id: int
    has_pads: bool = True
    no_eos: Tensor | None = None
    condition: Tensor | None = None

    @classmethod
    def of(cls, ids: Tensor, mask_token_id: int, seed: int = 0, attention_mask: Tensor | None = None) -> Canvas:
        """A canvas whose sequences have the seeds `seed`, `seed + 1`, ..."""
        has_pads = attention_mask is not None and not bool(attention_mask.all())
        if attention_mask is None:
            attention_mask = torch.ones_like(ids, dtype=torch.bool)
        seeds = seed + torch.arange(ids.shape[0], device=ids.device)
        return cls(ids, attention_mask.bool(), seeds, mask_token_id, has_pads)

    @property
    def masked(self) -> Tensor:
        """[B, L] the positions to be written."""
        return (self.ids == self.mask_token_id) & self.attention_mask

    def select(self, rows: Tensor, columns: slice = slice(None)) -> Canvas:
        """Some sequences [B'] of it, whole or from one column to another."""

        def cut(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor[rows][:, columns]

        per_position = (cut(x) for x in (self.ids, self.attention_mask, self.no_eos, self.condition))
        ids, attention, no_eos, condition = per_position
        return Canvas(ids, attention, self.seeds[rows], self.mask_token_id, self.has_pads, no_eos, condition)


@dataclass(frozen=True)
class ParticleWeights:
    """What a walk under a constraint is worth, in logs.

    `log_weight` [B]: the model's chance of the walk, times that of a match by its last prediction, over the chance with
    which it was drawn. `log_potential` [B]: the chance of a match by that prediction when what it wrote is known.
    """

    log_weight: Tensor
    log_potential: Tensor


@dataclass(frozen=True)
class State:
    """A canvas on its way. `calls` [B] network calls each sequence needs, `total` those of the batch: known at once.

    A sampler that is `adaptive` knows the most that may be needed: it falls on the way, and is what was made at last.
    """

    ids: Tensor
    canvas: Canvas
    calls: Tensor
    total: int
    call: int
    order: Tensor
    """[B, L] the call of its sequence that wrote each position, -1 where it was given or nothing is written."""
    confidence: Tensor
    """[B, L] the probability the denoiser gave each written token, 1 where it was given."""
    plan: Any
    particle_weights: ParticleWeights | None = None
    idle_calls: Tensor | None = None
    """[B] the calls before a sequence's last one that were made for others alone; None where there is none."""

    @property
    def calls_made(self) -> Tensor:
        """[B] the calls that were made for each sequence until now."""
        own = self.call if self.idle_calls is None else (self.call - self.idle_calls).clamp_min(0)
        return self.calls.clamp_max(own)

    @property
    def masked(self) -> Tensor:
        """[B, L] the positions that are not yet written."""
        return (self.ids == self.canvas.mask_token_id) & self.canvas.attention_mask

    @property
    def written(self) -> Tensor:
        """[B, L] the positions that are."""
        return self.canvas.masked & ~self.masked

    def late(self, rule: TokenSampler, rows: Tensor) -> Tensor | None:
        """[N] whether sequences are in the greedy tail of a rule; None where it has none."""
        late = rule.late_from(self.calls)
        return None if late is None else (self.call >= late)[rows]

    @classmethod
    def start(cls, canvas: Canvas, calls: Tensor, total: int, plan: Any) -> State:
        """The state before the first call."""
        given = torch.ones(canvas.ids.shape, dtype=torch.float32, device=canvas.ids.device)
        order = torch.full_like(canvas.ids, -1)
        return cls(canvas.ids, canvas, calls, total, 0, order, given.masked_fill(canvas.masked, 0.0), plan)

    def select(self, rows: Tensor, canvas: Canvas, plan: Any) -> State:
        """The walks of some sequences [B'], as those of a canvas."""
        ids, calls, order, trust = (x[rows] for x in (self.ids, self.calls, self.order, self.confidence))
        total = int(calls.max())
        particle_weights = self.particle_weights and ParticleWeights(
            self.particle_weights.log_weight[rows], self.particle_weights.log_potential[rows]
        )
        idle_calls = None if self.idle_calls is None else self.idle_calls[rows]
        return State(ids, canvas, calls, total, self.call, order, trust, plan, particle_weights, idle_calls)

    def write(
        self,
        rows: Tensor,
        positions: Tensor,
        tokens: Tensor,
        confidence: Tensor,
        particle_weights: ParticleWeights | None = None,
    ) -> State:
        """The next state: `tokens` [N] written at (rows, positions) by this call."""
        ids, order, trust = self.ids.clone(), self.order.clone(), self.confidence.clone()
        ids[rows, positions] = tokens
        call = torch.full_like(positions, self.call)  # a bare number would be idle_calls for on a GPU
        order[rows, positions] = call if self.idle_calls is None else call - self.idle_calls[rows]
        trust[rows, positions] = confidence
        later = self.call + 1
        return State(
            ids, self.canvas, self.calls, self.total, later, order, trust, self.plan, particle_weights, self.idle_calls
        )

    def remask(self, where: Tensor) -> State:
        """The same moment, with masks at some written positions [B, L]."""
        ids, order = self.ids.masked_fill(where, self.canvas.mask_token_id), self.order.masked_fill(where, -1)
        return replace(self, ids=ids, order=order, confidence=self.confidence.masked_fill(where, 0.0))


class Positions(NamedTuple):
    """Positions of a canvas: the sequences [N] they are in and their places [N] there."""

    rows: Tensor
    places: Tensor


class Drawn(NamedTuple):
    """Tokens [N], the probability [N] the untouched prediction gave each, and what the walk is worth now."""

    tokens: Tensor
    confidence: Tensor
    particle_weights: ParticleWeights | None


class JointTokenSampler(ABC):
    """Chooses the tokens of a sequence together."""

    sees_all: ClassVar[bool] = True
    """Whether it must be shown every masked position, whichever are to be written."""
    eos: int | None = None
    """What ends a text and fills the row behind it; an order then puts text before its end."""

    def outlook(self, state: State) -> Outlook:
        """How an order is to see predictions at the masked positions of a state."""
        return as_predicted if self.eos is None else text_first(state, self.eos)

    @abstractmethod
    def sample_jointly(
        self, head: Callable[[Tensor], Tensor], hidden: Tensor, state: State, at: Positions, wanted: Positions
    ) -> Drawn:
        """Tokens at the `wanted` positions, which are among those `at` which `hidden` [M, D] are the network's rows."""


def write_tokens(
    denoiser: Any,
    state: State,
    hidden_BLD: Tensor,
    rule: TokenSampler | JointTokenSampler,
    row: Tensor,
    position: Tensor,
) -> State:
    """The next state, tokens chosen by any rule at (row, position) [N] from what the network makes of the canvas."""
    wanted = Positions(row, position)
    at = Positions(*state.masked.nonzero(as_tuple=True)) if isinstance(rule, JointTokenSampler) else wanted
    return write_at(denoiser, state, hidden_BLD[at], rule, at, wanted)


def write_at(
    denoiser: Any,
    state: State,
    hidden_MD: Tensor,
    rule: TokenSampler | JointTokenSampler,
    at: Positions,
    wanted: Positions,
    own: Tensor | slice = slice(None),
) -> State:
    """The next state, tokens chosen at the `wanted` positions, by hidden rows `at` these and maybe more.

    `own` [N] says which of the rows are those of the wanted ones, by default all. A joint rule looks at every row.
    """
    row, position = wanted
    if isinstance(rule, JointTokenSampler):
        drawn = rule.sample_jointly(denoiser.head, hidden_MD, state, at, wanted)
        return state.write(row, position, drawn.tokens, drawn.confidence, drawn.particle_weights)
    seeds, late = state.canvas.seeds[row], state.late(rule, row)
    return state.write(row, position, *rule.choose_from(denoiser, hidden_MD[own], seeds, state.call, position, late))


class Sampler(Component):
    """A way to unmask. `begin` draws everything that does not depend on the network; `step` is one network call."""

    causal: ClassVar[bool] = False
    """Whether it walks the causal twin."""
    rewrites: ClassVar[bool] = False
    """Whether what is written may be masked again."""
    adaptive: ClassVar[bool] = False
    """Whether the network decides how many calls there are."""
    needs_scores: ClassVar[bool] = False
    """Whether the network's outputs must be scores, which say by their mass how likely a position is to be written."""

    @property
    def one_at_a_time(self) -> bool:
        """Whether a call writes one position of a sequence, so that true conditionals give the law of the data."""
        return not self.adaptive and getattr(self, "steps", None) is None

    @property
    def needs_planner(self) -> bool:
        """Whether the network must have a planner."""
        return False

    @property
    def can_resample(self) -> bool:
        """Whether it can be walked by particles."""
        return type(self).select is not Sampler.select

    @abstractmethod
    def begin(self, canvas: Canvas) -> State:
        """Plan the walk over a canvas."""

    @abstractmethod
    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        """One network call, and the tokens it writes."""

    def select(self, state: State, rows: Tensor) -> State:
        """The state in which sequence i has walked as sequence `rows[i]` [B] has, and goes on with its own seed."""
        raise UnmaskError(
            f"The sampler {type(self).__name__} cannot resample its walks; use 'ancestral' for particles."
        )


@torch.no_grad()
def run_sampler(
    sampler: Sampler, denoiser: Any, canvas: Canvas, rule: TokenSampler | JointTokenSampler | None = None
) -> Iterator[State]:
    """Every state from the masked canvas to the finished one."""
    rule = rule or TokenSampler()
    state = sampler.begin(canvas)
    yield state
    while state.call < state.total:
        state = sampler.step(denoiser, state, rule)
        yield state


def sample(
    sampler: Sampler, denoiser: Any, canvas: Canvas, rule: TokenSampler | JointTokenSampler | None = None
) -> State:
    """The finished state."""
    for state in run_sampler(sampler, denoiser, canvas, rule):
        last = state
    return last


def select_sequences(denoiser: Any, rows: Tensor) -> Any:
    """The denoiser for some sequences [B'] of the canvas; only a wrapper depends on the sequences."""
    return denoiser.select_sequences(rows) if hasattr(denoiser, "select_sequences") else denoiser


def hidden_rows(
    denoiser: Any,
    input_ids: Tensor,
    positions: Tensor | None = None,
    alpha: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Hidden rows [B, L, D] of a denoiser, or [B, K, D] at `positions` [B, K] alone."""
    if positions is None:
        return denoiser.hidden(input_ids, alpha=alpha, attention_mask=attention_mask)
    if hasattr(denoiser, "hidden_at"):
        return denoiser.hidden_at(input_ids, positions, alpha=alpha, attention_mask=attention_mask)
    hidden = denoiser.hidden(input_ids, alpha=alpha, attention_mask=attention_mask)
    return hidden.take_along_dim(positions[..., None], dim=1)
