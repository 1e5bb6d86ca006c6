"""The sampler protocol: `begin` plans the calls for a canvas, `step` makes one of them, `run_sampler` is the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.random import Purpose, uniform
from unmask.registry import Component
from unmask.samplers.token_sampling import TokenSampler, rows_per_chunk

Head = Callable[[Tensor], Tensor]
"""Hidden states [N, D] to logits [N, V]."""


class Positions(NamedTuple):
    """N positions of a canvas [B, L], as an index: the sequences [N] and the positions [N] in them."""

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True)
class Canvas:
    """Token ids [B, L] with the mask token wherever a token is to be written; all other tokens are given and kept.

    `attention_mask` [B, L] is False at pads. `seeds` [B] are the seeds of the sequences. `no_eos` [B, L] marks
    positions that must not become EOS, `condition` [B, L] the given tokens that guidance acts on.
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
        """A canvas with the seeds `seed`, `seed + 1`, ... for its sequences."""
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
        """The sequences `rows` [B'] of the canvas, whole or cut to `columns`."""

        def cut(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor[rows][:, columns]

        return replace(
            self,
            ids=cut(self.ids),
            attention_mask=cut(self.attention_mask),
            seeds=self.seeds[rows],
            no_eos=cut(self.no_eos),
            condition=cut(self.condition),
        )

    @classmethod
    def join(cls, canvases: Sequence[Canvas]) -> Canvas:
        """The sequences of several canvases of one length and one model."""

        fields = ("ids", "attention_mask", "seeds", "no_eos", "condition")
        joined = {name: cat_optional([getattr(canvas, name) for canvas in canvases]) for name in fields}
        return replace(canvases[0], **joined, has_pads=any(canvas.has_pads for canvas in canvases))


def cat_optional(tensors: Sequence[Any]) -> Any:
    """The concatenation of tensors; None if they are None."""
    return None if tensors[0] is None else torch.cat(tensors)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ParticleWeights:
    """Log importance weights of sequences drawn as particles.

    `log_weight` [B] is the weight so far. It contains `log_potential` [B] of the last call, the log-probability of a
    match or the score, which the next call replaces by its own.
    """

    log_weight: Tensor
    log_potential: Tensor


@dataclass(frozen=True)
class State:
    """A partly written canvas, `ids` [B, L], before the network call number `call`.

    `calls` [B] is the number of network calls that each sequence needs, `total` that of the batch. With an `adaptive`
    sampler they are upper limits, which fall to the number of calls that were made.
    """

    ids: Tensor
    canvas: Canvas
    calls: Tensor
    total: int
    call: int
    order: Tensor
    """[B, L] the call of its sequence that wrote each position; -1 where the token is given or still masked."""
    confidence: Tensor
    """[B, L] the probability of each written token under the denoiser; 1 for given tokens, 0 for masks."""
    plan: Any
    particle_weights: ParticleWeights | None = None
    idle_calls: Tensor | None = None
    """[B] how many calls of the batch, up to the last one of a sequence, are not for that sequence; None if all are.
    Negative for a sequence that had made calls before it joined the batch."""

    @classmethod
    def start(cls, canvas: Canvas, calls: Tensor, total: int, plan: Any) -> State:
        """The state before the first call."""
        order = torch.full_like(canvas.ids, -1)
        confidence = torch.ones(canvas.ids.shape, dtype=torch.float32, device=canvas.ids.device)
        return cls(canvas.ids, canvas, calls, total, 0, order, confidence.masked_fill(canvas.masked, 0.0), plan)

    @property
    def masked(self) -> Tensor:
        """[B, L] the positions still to be written."""
        return (self.ids == self.canvas.mask_token_id) & self.canvas.attention_mask

    @property
    def written(self) -> Tensor:
        """[B, L] the positions written so far."""
        return self.canvas.masked & ~self.masked

    @property
    def own_call(self) -> int | Tensor:
        """The index of this call among those of each sequence: [B], or one number if all sequences began together."""
        return self.call if self.idle_calls is None else self.call - self.idle_calls

    @property
    def calls_made(self) -> Tensor:
        """[B] the calls made for each sequence so far."""
        own = self.own_call
        return self.calls.clamp_max(own if isinstance(own, int) else own.clamp_min(0))

    def own_call_of(self, rows: Tensor) -> int | Tensor:
        """`own_call` of the sequences `rows` [N]: [N], or one number."""
        own = self.own_call
        return own if isinstance(own, int) else own[rows]

    def take_own_call(self, values_BC: Tensor) -> Tensor:
        """[B] the entry for this call of `values_BC`, which has one for every call of each sequence."""
        own = self.own_call
        return values_BC[:, own] if isinstance(own, int) else values_BC.gather(1, own[:, None])[:, 0]

    def at_own_call(self, values: Tensor) -> Tensor:
        """The entry of `values` [T] for this call, in float32: [B, 1], or a scalar if all sequences began together."""
        own = self.own_call
        return values[own].float() if isinstance(own, int) else values.to(own.device)[own].float()[:, None]

    def in_greedy_tail(self, token_sampler: TokenSampler, rows: Tensor) -> Tensor | None:
        """[N] whether the sequences `rows` [N] are in the greedy tail; None if the token sampler has none."""
        first = token_sampler.greedy_from(self.calls)
        return None if first is None else (self.own_call >= first)[rows]

    def uniforms(self, purpose: Purpose) -> Tensor:
        """[B, L] uniform random numbers for this call, one per position."""
        position, own = torch.arange(self.ids.shape[1], device=self.ids.device), self.own_call
        step = own if isinstance(own, int) else own[:, None]
        return uniform(self.canvas.seeds[:, None], purpose, step, position=position[None])

    def write(
        self, at: Positions, tokens: Tensor, confidence: Tensor, particle_weights: ParticleWeights | None = None
    ) -> State:
        """The state after this call, which wrote `tokens` [N] at N positions."""
        ids, order, trust = self.ids.clone(), self.order.clone(), self.confidence.clone()
        ids[at] = tokens
        call = torch.full_like(at.columns, self.call)  # assigning a Python number would synchronise with a GPU
        order[at] = call if self.idle_calls is None else call - self.idle_calls[at.rows]
        trust[at] = confidence
        return replace(
            self, ids=ids, order=order, confidence=trust, call=self.call + 1, particle_weights=particle_weights
        )

    def remask(self, where: Tensor) -> State:
        """The same state with masks at some written positions [B, L]."""
        ids, order = self.ids.masked_fill(where, self.canvas.mask_token_id), self.order.masked_fill(where, -1)
        return replace(self, ids=ids, order=order, confidence=self.confidence.masked_fill(where, 0.0))

    def select(self, rows: Tensor, canvas: Canvas, plan: Any) -> State:
        """The state of the sequences `rows` [B'], on the canvas and with the plan given for them."""
        weights, calls = self.particle_weights, self.calls[rows]
        idle = None if self.idle_calls is None else self.idle_calls[rows]
        return replace(
            self,
            ids=self.ids[rows],
            canvas=canvas,
            calls=calls,
            total=int((calls if idle is None else calls + idle).max()),
            order=self.order[rows],
            confidence=self.confidence[rows],
            plan=plan,
            particle_weights=weights and ParticleWeights(weights.log_weight[rows], weights.log_potential[rows]),
            idle_calls=idle,
        )


class Prediction(NamedTuple):
    """Hidden states [N, D] of the denoiser at N masked positions; `denoiser.head` turns them into logits."""

    at: Positions
    hidden: Tensor

    def hidden_at(self, targets: Positions, shape: torch.Size) -> Tensor:
        """The hidden states at some of the positions, for a canvas of shape [B, L]."""
        index = torch.zeros(shape, dtype=torch.int64, device=self.hidden.device)
        index[self.at] = torch.arange(len(self.hidden), device=index.device)
        return self.hidden[index[targets]]


class TokenDraw(NamedTuple):
    """Tokens [N], their probabilities [N] under the unmodified prediction, and the particle weights if any."""

    tokens: Tensor
    confidence: Tensor
    particle_weights: ParticleWeights | None = None


class JointTokenSampler(ABC):
    """Draws the tokens of a sequence jointly, as constraints require."""

    needs_all_masked: ClassVar[bool] = True
    """Whether it needs the prediction at every masked position, not only at those being written."""
    eos: int | None = None
    """The token that fills a row after its text, if any; ordered samplers then write text before its end."""

    @abstractmethod
    def sample_jointly(self, head: Head, prediction: Prediction, state: State, targets: Positions) -> TokenDraw:
        """Draw tokens at the `targets`, which are among the positions of the prediction."""


AnyTokenSampler = TokenSampler | JointTokenSampler


class Sampler(Component):
    """A way to unmask a canvas. `begin` draws what does not depend on the network, `step` makes one network call."""

    causal: ClassVar[bool] = False
    """Whether it samples from an autoregressive model."""
    rewrites: ClassVar[bool] = False
    """Whether it may mask written tokens again."""
    adaptive: ClassVar[bool] = False
    """Whether the number of calls depends on the network."""
    needs_scores: ClassVar[bool] = False
    """Whether the network must output SEDD scores; their mass sets the probability of unmasking a position."""

    @property
    def one_at_a_time(self) -> bool:
        """Whether a call writes one position per sequence, so that true conditionals give the data distribution."""
        return not self.adaptive and getattr(self, "steps", None) is None

    @property
    def needs_planner(self) -> bool:
        return False

    @property
    def can_resample(self) -> bool:
        """Whether it supports particles."""
        return type(self).select_plan is not Sampler.select_plan

    @property
    def can_join(self) -> bool:
        """Whether sequences at different calls may share a batch."""
        return type(self).join_plans is not Sampler.join_plans

    @abstractmethod
    def begin(self, canvas: Canvas) -> State:
        """Plan the calls for a canvas."""

    @abstractmethod
    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        """Make one network call and write its tokens."""

    def select(self, state: State, rows: Tensor) -> State:
        """Resample particles: sequence i continues from the state of sequence `rows[i]`, with its own seed."""
        return state.select(rows, state.canvas, self.select_plan(state, rows))

    def keep(self, state: State, rows: Tensor) -> State:
        """The state of the sequences `rows` alone, with their own seeds."""
        return state.select(rows, state.canvas.select(rows), self.select_plan(state, rows))

    def join(self, states: Sequence[State]) -> State:
        """Merge states of sequences of one length, which may be at different calls; the next call is call 0.

        Finished sequences must be removed with `keep` before the next call.
        """
        if len(states) == 1:
            return states[0]
        own = torch.cat([torch.as_tensor(s.own_call, device=s.ids.device).expand(len(s.ids)) for s in states])
        ids, calls, order, confidence = (
            torch.cat([getattr(state, field) for state in states]) for field in ("ids", "calls", "order", "confidence")
        )
        canvas, plan = Canvas.join([state.canvas for state in states]), self.join_plans(states)
        return State(ids, canvas, calls, int((calls - own).max()), 0, order, confidence, plan, idle_calls=-own)

    def select_plan(self, state: State, rows: Tensor) -> Any:
        """The plan of the sequences `rows`."""
        raise UnmaskError(f"The sampler {type(self).__name__} does not support particles; use 'ancestral'.")

    def join_plans(self, states: Sequence[State]) -> Any:
        """The plan for the merged state of `join`."""
        raise UnmaskError(f"Sequences of the sampler {type(self).__name__} cannot join a batch; run them on their own.")


@torch.no_grad()
def run_sampler(
    sampler: Sampler, denoiser: Any, canvas: Canvas, token_sampler: AnyTokenSampler | None = None
) -> Iterator[State]:
    """Yield every state from the masked canvas to the finished one."""
    token_sampler = token_sampler or TokenSampler()
    state = sampler.begin(canvas)
    yield state
    while state.call < state.total:
        state = sampler.step(denoiser, state, token_sampler)
        yield state


def sample(sampler: Sampler, denoiser: Any, canvas: Canvas, token_sampler: AnyTokenSampler | None = None) -> State:
    """The finished state."""
    for state in run_sampler(sampler, denoiser, canvas, token_sampler):
        last = state
    return last


def predict_masked(denoiser: Any, state: State, alpha: Tensor) -> Prediction:
    """Make one network call and return its prediction at every masked position; `alpha` is [B], [B, 1] or a scalar.

    Finished sequences are left out once they are half of the batch or more.
    """
    masked, ids, attention = state.masked, state.ids, state.canvas.attention_mask
    at = Positions(*masked.nonzero(as_tuple=True))
    alpha, row = alpha.float().to(ids.device).flatten().expand(len(ids)), at.rows
    active = masked.any(dim=1).nonzero()[:, 0]
    if 0 < 2 * len(active) <= len(ids):
        ids, alpha, attention = ids[active], alpha[active], attention[active]
        row = torch.searchsorted(active, row)
        denoiser = select_sequences(denoiser, active)
    hidden = hidden_rows(denoiser, ids, alpha=alpha, attention_mask=attention if state.canvas.has_pads else None)
    return Prediction(at, hidden[row, at.columns])


def map_positions(
    state: State, prediction: Prediction, vocab_size: int, function: Callable[[Tensor, Positions], Tensor]
) -> Tensor:
    """[B, L] one number per predicted position, computed from hidden states [N, D] in chunks; -inf elsewhere."""
    size = rows_per_chunk(prediction.hidden.device, vocab_size)
    chunks = zip(*(x.split(size) for x in (prediction.hidden, *prediction.at)), strict=True)
    out = torch.full(state.ids.shape, -torch.inf, device=state.ids.device)
    out[prediction.at] = torch.cat([function(hidden, Positions(row, column)) for hidden, row, column in chunks])
    return out


def write_selected(
    denoiser: Any, state: State, prediction: Prediction, selected_BL: Tensor, token_sampler: AnyTokenSampler
) -> State:
    """Draw and write tokens at the `selected_BL` ones of the predicted positions."""
    (index,) = selected_BL[prediction.at].nonzero(as_tuple=True)
    targets = Positions(prediction.at.rows[index], prediction.at.columns[index])
    return write_targets(denoiser, state, prediction, targets, token_sampler, index)


def write_targets(
    denoiser: Any,
    state: State,
    prediction: Prediction,
    targets: Positions,
    token_sampler: AnyTokenSampler,
    index: Tensor | slice = slice(None),
) -> State:
    """Draw and write tokens at the `targets`, the rows `index` of the prediction (all by default)."""
    if isinstance(token_sampler, JointTokenSampler):
        return state.write(targets, *token_sampler.sample_jointly(denoiser.head, prediction, state, targets))
    seeds, greedy = state.canvas.seeds[targets.rows], state.in_greedy_tail(token_sampler, targets.rows)
    hidden = prediction.hidden[index]
    call = state.own_call_of(targets.rows)
    drawn = token_sampler.sample_from_hidden(denoiser, hidden, seeds, call, targets.columns, greedy)
    return state.write(targets, *drawn)


def select_sequences(denoiser: Any, rows: Tensor) -> Any:
    """The denoiser for the sequences `rows` [B'] of the canvas; only wrappers depend on the sequences."""
    return denoiser.select_sequences(rows) if hasattr(denoiser, "select_sequences") else denoiser


def hidden_rows(
    denoiser: Any,
    input_ids: Tensor,
    positions: Tensor | None = None,
    alpha: Tensor | None = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Hidden states [B, L, D] of a denoiser, or [B, K, D] at `positions` [B, K] alone."""
    if positions is not None and hasattr(denoiser, "hidden_at"):
        return denoiser.hidden_at(input_ids, positions, alpha=alpha, attention_mask=attention_mask, **options)
    hidden = denoiser.hidden(input_ids, alpha=alpha, attention_mask=attention_mask, **options)
    return hidden if positions is None else hidden.take_along_dim(positions[..., None], dim=1)
