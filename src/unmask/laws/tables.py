"""Denoisers that are lookup tables, so that every expectation over them can be enumerated.

A table holds a row of logits for every position of every canvas. Random tables are inconsistent, as networks are:
nothing ties p(x_1 | x_2) to p(x_2 | x_1). Oracles are tables of the conditionals of an explicit data distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


def all_canvases(vocab_size: int, length: int) -> Tensor:
    """[V^L, L] all canvases, in the order of `canvas_index`."""
    index = torch.arange(vocab_size**length)
    return index[:, None] // vocab_size ** torch.arange(length) % vocab_size


def canvas_index(ids: Tensor, vocab_size: int) -> Tensor:
    """[...] the index sum_l z_l V^l of canvases [..., L] in `all_canvases`."""
    return (ids * vocab_size ** torch.arange(ids.shape[-1])).sum(dim=-1)


# ---- denoisers ------------------------------------------------------------------------------------------------------


@dataclass
class TableConfig:
    vocab_size: int
    mask_token_id: int
    max_length: int
    conditioned: bool = False
    bos_token_id: int | None = None


class LogitDenoiser(nn.Module):
    """A denoiser whose hidden states are logits."""

    config: TableConfig

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Rows [..., V] unchanged; the logit of the mask token is -inf unless ``mask_logit``."""
        if mask_logit:
            return rows
        return rows.masked_fill(torch.arange(rows.shape[-1]) == self.config.mask_token_id, -torch.inf)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """[...] log-odds for rows [..., V] that are unrelated to confidence."""
        return planner_log_odds(self.head(rows).softmax(dim=-1))


class TableDenoiser(LogitDenoiser):
    """`logits` [V^L, L, V], a row for every position of every canvas, plus alpha times `slope`, of the same shape.

    Logits are shifted so that exp(logits) sums to `mass` (V - 1) over all tokens but the mask: in SEDD, a score of that
    total mass. Padding is ignored, and a canvas shorter than L counts as padded.
    """

    def __init__(self, logits: Tensor, mask_token_id: int, slope: Tensor | None = None, mass: float = 1.0) -> None:
        super().__init__()
        self.logits, self.slope, self.mass = logits, slope, mass
        self.config = TableConfig(logits.shape[-1], mask_token_id, logits.shape[1], conditioned=slope is not None)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Rows [B, L, V] for canvases [B, L]."""
        seen = input_ids if attention_mask is None else input_ids * attention_mask.long()
        index = canvas_index(seen, self.config.vocab_size)
        rows = self.logits[index]
        if self.slope is not None and alpha is not None:
            rows = rows + alpha.to(rows.dtype)[:, None, None] * self.slope[index]
        log_mass = self.head(rows).logsumexp(dim=-1, keepdim=True)
        rows = rows - log_mass + math.log(self.mass * (self.config.vocab_size - 1))
        return rows[:, : input_ids.shape[1]]


class CausalTableDenoiser(LogitDenoiser):
    """`logits` [(V + 1)^(L + 1), V], a row for every prefix of a sequence that begins with `bos_token_id`."""

    def __init__(self, logits: Tensor, mask_token_id: int, length: int, bos_token_id: int | None) -> None:
        super().__init__()
        self.logits = logits
        self.config = TableConfig(logits.shape[-1], mask_token_id, length + 1, bos_token_id=bos_token_id)

    def new_cache(self, capacity: int | None = None) -> list[Tensor]:
        """An empty list of the tokens seen."""
        return []

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, past_key_values: Any = None) -> Tensor:
        """Rows [B, L, V]; row i has seen the tokens in the cache and `input_ids` [B, L] up to i."""
        past = [] if past_key_values is None else past_key_values
        past.append(input_ids)
        index = _prefix_index(torch.cat(past, dim=1), self.config.vocab_size)
        return self.logits[index[:, -input_ids.shape[1] :]]


class ConstantDenoiser(LogitDenoiser):
    """The same row of logits [V] at every position of every canvas, for bidirectional and causal samplers alike."""

    def __init__(self, row: Tensor, mask_token_id: int) -> None:
        super().__init__()
        self.row = row
        self.config = TableConfig(len(row), mask_token_id, max_length=1 << 20, bos_token_id=mask_token_id)

    def new_cache(self, capacity: int | None = None) -> list[Tensor]:
        return []

    def hidden(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.row.expand(*input_ids.shape, len(self.row))


class RecordingDenoiser:
    """A denoiser that records the ids and alpha of every call of `hidden`."""

    def __init__(self, denoiser: Any) -> None:
        self.denoiser = denoiser
        self.calls: list[Tensor] = []
        self.alphas: list[Tensor | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def hidden(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.calls.append(input_ids)
        self.alphas.append(kwargs.get("alpha"))
        return self.denoiser.hidden(input_ids, *args, **kwargs)


def planner_log_odds(p: Tensor) -> Tensor:
    """[...] the planner of a table at token probabilities p [..., V]: 4 sum_v p_v sin(2 v + 1)."""
    return 4.0 * (p * torch.sin(2.0 * torch.arange(p.shape[-1], dtype=p.dtype) + 1.0)).sum(dim=-1)


def _prefix_index(ids: Tensor, vocab_size: int) -> Tensor:
    """[B, L] a distinct number for every prefix of ids [B, L]."""
    return ((ids + 1) * (vocab_size + 1) ** torch.arange(ids.shape[1])).cumsum(dim=1)


# ---- random tables --------------------------------------------------------------------------------------------------


def random_table(
    seed: int = 0,
    vocab_size: int = 4,
    length: int = 3,
    mask_token_id: int = 1,
    conditioned: bool = False,
    mass: float = 1,
) -> TableDenoiser:
    """An inconsistent table of random logits; the mask is not the last token."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, vocab_size**length, length, vocab_size)
    logits, slope = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
    return TableDenoiser(logits, mask_token_id, slope if conditioned else None, mass)


def random_causal_table(begin: bool = True) -> CausalTableDenoiser:
    """A causal table of random logits for sequences of 3 out of 4 tokens; the mask is 1.

    With `begin` every sequence begins with the mask token.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((5**4, 4), generator=generator, dtype=torch.float64) * 1.5
    return CausalTableDenoiser(logits, mask_token_id=1, length=3, bos_token_id=1 if begin else None)


# ---- data distributions and their oracles ---------------------------------------------------------------------------


@dataclass(frozen=True)
class DataDistribution:
    """A data distribution with enumerated probabilities `joint` [V^L]."""

    joint: Tensor
    vocab_size: int
    length: int
    mask_token_id: int

    @classmethod
    def of(cls, weight: Tensor, vocab_size: int, length: int, mask_token_id: int) -> DataDistribution:
        """The distribution proportional to `weight` [V^L] at canvases without a mask."""
        masked = (all_canvases(vocab_size, length) == mask_token_id).any(dim=1)
        weight = weight.masked_fill(masked, 0.0)
        return cls(weight / weight.sum(), vocab_size, length, mask_token_id)

    def oracle(self) -> TableDenoiser:
        """The table of the true conditionals p(x_l | visible tokens)."""
        ids = all_canvases(self.vocab_size, self.length)
        agrees = ((ids[:, None] == ids[None]) | (ids[:, None] == self.mask_token_id)).all(dim=-1)
        token = nn.functional.one_hot(ids, self.vocab_size).to(self.joint.dtype)
        marginal = torch.einsum("zx,x,xlv->zlv", agrees.to(self.joint.dtype), self.joint, token)
        return TableDenoiser(marginal.log(), self.mask_token_id)

    def causal_oracle(self) -> CausalTableDenoiser:
        """The causal table of the true conditionals p(x_l | x_<l), beginning with the mask token."""
        ids = all_canvases(self.vocab_size, self.length)
        before = torch.cat([torch.full_like(ids[:, :1], self.mask_token_id), ids[:, :-1]], dim=1)
        table = torch.zeros((self.vocab_size + 1) ** (self.length + 1), self.vocab_size, dtype=self.joint.dtype)
        weight = self.joint[:, None].expand(ids.shape)
        table.index_put_((_prefix_index(before, self.vocab_size), ids), weight, accumulate=True)
        return CausalTableDenoiser(table.log(), self.mask_token_id, self.length, self.mask_token_id)

    def texts(self) -> Tensor:
        """[K, L] all texts of positive probability."""
        return all_canvases(self.vocab_size, self.length)[self.joint > 0]

    def nll(self, text: Tensor, target_mask: Tensor) -> float:
        """-log p(tokens at the target positions | the others)."""
        ids = all_canvases(self.vocab_size, self.length)
        fits = ((ids == text) | target_mask).all(dim=1)
        return -math.log(float(self.joint[canvas_index(text, self.vocab_size)] / self.joint[fits].sum()))

    def mean(self, values: Sequence[Any]) -> float:
        """The expectation of a function with these values at `texts()`."""
        return float(self.joint[self.joint > 0] @ torch.tensor([float(value) for value in values], dtype=torch.float64))


def random_data() -> DataDistribution:
    """Random probabilities of all texts of three tokens out of 0, 2 and 3; the mask is 1."""
    generator = torch.Generator().manual_seed(0)
    return DataDistribution.of(torch.rand(4**3, generator=generator, dtype=torch.float64) + 0.02, 4, 3, 1)


def markov_data() -> DataDistribution:
    """A Markov chain of five tokens out of 0 and 1 that rarely changes state; the mask is 2."""
    generator = torch.Generator().manual_seed(0)
    transition = torch.rand(3, 3, generator=generator, dtype=torch.float64) + 3 * torch.eye(3)
    ids = all_canvases(3, 5)
    return DataDistribution.of(transition[ids[:, :-1], ids[:, 1:]].prod(dim=1), 3, 5, 2)
