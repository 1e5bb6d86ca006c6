"""Denoisers small enough to be written down as tables, so that every expectation over them can be enumerated.

A `Table` holds a row of logits for every position of every canvas. Random tables contradict themselves, as networks do:
nothing ties p(x_1 | x_2) to p(x_2 | x_1). Oracles are tables made from an explicit law of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class TableConfig:
    """What a table says about itself, as every denoiser does."""

    vocab_size: int
    mask_token_id: int
    max_length: int
    conditioned: bool = False
    bos_token_id: int | None = None


class _Rows(nn.Module):
    """A denoiser whose hidden rows are its logits already."""

    config: TableConfig

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Rows [..., V] as they are; the mask token's is minus infinity unless ``mask_logit``."""
        if mask_logit:
            return rows
        closed = torch.arange(rows.shape[-1]) == self.config.mask_token_id
        return rows.masked_fill(closed, -torch.inf)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """[...] log-odds that have little to do with how sure the rows [..., V] are: another order than any other."""
        return odds(self.head(rows).softmax(dim=-1))


class Table(_Rows):
    """`logits` [V^L, L, V]: a row for every position of every canvas; `slope`, of the same shape, times alpha is added.

    Over the tokens without the mask, exp(logits) sums to `mass` (V - 1): as SEDD reads it, a score of that total mass.
    Pads are not seen, and a canvas shorter than L is one whose end is padded.
    """

    def __init__(self, logits: Tensor, mask_token_id: int, slope: Tensor | None = None, mass: float = 1.0) -> None:
        super().__init__()
        self.logits, self.slope, self.mass = logits, slope, mass
        self.config = TableConfig(logits.shape[-1], mask_token_id, logits.shape[1], conditioned=slope is not None)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Rows [B, L, V] for a canvas [B, L]."""
        seen = input_ids if attention_mask is None else input_ids * attention_mask.long()
        code = (seen * self.config.vocab_size ** torch.arange(input_ids.shape[1])).sum(dim=1)
        rows = self.logits[code]
        if self.slope is not None and alpha is not None:
            rows = rows + alpha.to(rows.dtype)[:, None, None] * self.slope[code]
        return self._scaled(rows)[:, : input_ids.shape[1]]

    def _scaled(self, rows: Tensor) -> Tensor:
        tokens = self.head(rows).logsumexp(dim=-1, keepdim=True)
        return rows - tokens + math.log(self.mass * (self.config.vocab_size - 1))


class CausalTable(_Rows):
    """`logits` [(V + 1)^(L + 1), V]: a row for every prefix of a sequence that begins with the token `bos_token_id`."""

    def __init__(self, logits: Tensor, mask_token_id: int, length: int, bos_token_id: int | None) -> None:
        super().__init__()
        self.logits = logits
        self.config = TableConfig(logits.shape[-1], mask_token_id, length + 1, bos_token_id=bos_token_id)

    def new_cache(self, capacity: int | None = None) -> list[Tensor]:
        """The tokens read so far, none yet."""
        return []

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, past_key_values: Any = None) -> Tensor:
        """Rows [B, L, V]; row i has seen the tokens of the cache and `input_ids` [B, L] up to i."""
        past = [] if past_key_values is None else past_key_values
        past.append(input_ids)
        prefix = torch.cat(past, dim=1)
        codes = prefix_codes(prefix, self.config.vocab_size)
        return self.logits[codes[:, -input_ids.shape[1] :]]


class ConstantDenoiser(_Rows):
    """The same row of logits [V] at every position of every canvas, whether it is walked left to right or not."""

    def __init__(self, row: Tensor, mask_token_id: int) -> None:
        super().__init__()
        self.row = row
        self.config = TableConfig(len(row), mask_token_id, max_length=1 << 20, bos_token_id=mask_token_id)

    def new_cache(self, capacity: int | None = None) -> list[Tensor]:
        """Nothing is remembered."""
        return []

    def hidden(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Rows [B, L, V]."""
        return self.row.expand(*input_ids.shape, len(self.row))


def odds(p: Tensor) -> Tensor:
    """[...] what the planner of a table says where the chances of tokens are p [..., V]: 4 sum_v p_v sin(2 v + 1)."""
    return 4.0 * (p * torch.sin(2.0 * torch.arange(p.shape[-1], dtype=p.dtype) + 1.0)).sum(dim=-1)


def prefix_codes(ids: Tensor, vocab_size: int) -> Tensor:
    """[B, L] a number for every prefix of ids [B, L], different for different prefixes."""
    return ((ids + 1) * (vocab_size + 1) ** torch.arange(ids.shape[1])).cumsum(dim=1)


def all_canvases(vocab_size: int, length: int) -> Tensor:
    """[V^L, L] all canvases; canvas number sum_l z_l V^l is the one in that row."""
    code = torch.arange(vocab_size**length)
    return code[:, None] // vocab_size ** torch.arange(length) % vocab_size


def random_table(
    seed: int = 0,
    vocab_size: int = 4,
    length: int = 3,
    mask_token_id: int = 1,
    conditioned: bool = False,
    mass: float = 1,
) -> Table:
    """A table of random logits that contradicts itself; the mask is not the last token, as it need not be."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, vocab_size**length, length, vocab_size)
    logits, slope = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
    return Table(logits, mask_token_id, slope if conditioned else None, mass)


def random_causal_table(
    seed: int = 0, vocab_size: int = 4, length: int = 3, mask_token_id: int = 1, begin: bool = True
) -> CausalTable:
    """A causal table of random logits; with `begin` the mask token begins every sequence, as in the causal twin."""
    generator = torch.Generator().manual_seed(seed)
    shape = ((vocab_size + 1) ** (length + 1), vocab_size)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
    return CausalTable(logits, mask_token_id, length, mask_token_id if begin else None)


def random_joint(seed: int = 0, vocab_size: int = 4, length: int = 3, mask_token_id: int = 1) -> Tensor:
    """[V^L] a random law of the data over canvases, 0 where one holds a mask."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(vocab_size**length, generator=generator, dtype=torch.float64) + 0.02
    return _normalised(weight, vocab_size, length, mask_token_id)


def markov_joint(seed: int = 0, vocab_size: int = 3, length: int = 6, mask_token_id: int = 2) -> Tensor:
    """[V^L] the law of a Markov chain with a random transition matrix that seldom changes state."""
    generator = torch.Generator().manual_seed(seed)
    transition = torch.rand(vocab_size, vocab_size, generator=generator, dtype=torch.float64) + 3 * torch.eye(
        vocab_size
    )
    ids = all_canvases(vocab_size, length)
    weight = transition[ids[:, :-1], ids[:, 1:]].prod(dim=1)
    return _normalised(weight, vocab_size, length, mask_token_id)


def oracle(joint: Tensor, vocab_size: int, length: int, mask_token_id: int) -> Table:
    """The table of the true conditionals p(x_l | visible tokens) of a law [V^L] of the data."""
    ids = all_canvases(vocab_size, length)
    agrees = ((ids[:, None] == ids[None]) | (ids[:, None] == mask_token_id)).all(dim=-1)
    token = nn.functional.one_hot(ids, vocab_size).to(joint.dtype)
    marginal = torch.einsum("zx,x,xlv->zlv", agrees.to(joint.dtype), joint, token)
    return Table(marginal.log(), mask_token_id)


def causal_oracle(joint: Tensor, vocab_size: int, length: int, mask_token_id: int) -> CausalTable:
    """The causal table of the true conditionals p(x_l | x_<l), beginning with the mask token."""
    ids = all_canvases(vocab_size, length)
    before = torch.cat([torch.full_like(ids[:, :1], mask_token_id), ids[:, :-1]], dim=1)
    table = torch.zeros((vocab_size + 1) ** (length + 1), vocab_size, dtype=joint.dtype)
    weight = joint[:, None].expand(ids.shape)
    table.index_put_((prefix_codes(before, vocab_size), ids), weight, accumulate=True)
    return CausalTable(table.log(), mask_token_id, length, mask_token_id)


@dataclass(frozen=True)
class Data:
    """A law [V^L] of the data that can be summed over."""

    joint: Tensor
    vocab_size: int
    length: int
    mask: int

    def oracle(self, causal: bool) -> Table | CausalTable:
        """The denoiser that knows the law."""
        return (causal_oracle if causal else oracle)(self.joint, self.vocab_size, self.length, self.mask)

    def texts(self) -> Tensor:
        """[K, L] all texts of a probability above 0."""
        return all_canvases(self.vocab_size, self.length)[self.joint > 0]

    def nll(self, text: Tensor, open_: Tensor) -> float:
        """-log p(open tokens | the others)."""
        ids = all_canvases(self.vocab_size, self.length)
        fits = ((ids == text) | open_).all(dim=1)
        return -math.log(float(self.joint[(ids == text).all(dim=1)].sum() / self.joint[fits].sum()))

    def mean(self, values: Sequence[Any]) -> float:
        """The expectation of a function whose value at each of `texts()` is given."""
        return float(self.joint[self.joint > 0] @ torch.tensor([float(value) for value in values], dtype=torch.float64))


class RecordingDenoiser:
    """A denoiser that keeps what its trunk was asked: the ids and alpha of every call."""

    def __init__(self, denoiser: Any) -> None:
        self.denoiser = denoiser
        self.calls: list[Tensor] = []
        self.alphas: list[Tensor | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def hidden(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The denoiser's own rows."""
        self.calls.append(input_ids)
        self.alphas.append(kwargs.get("alpha"))
        return self.denoiser.hidden(input_ids, *args, **kwargs)


def _normalised(weight: Tensor, vocab_size: int, length: int, mask_token_id: int) -> Tensor:
    masked = (all_canvases(vocab_size, length) == mask_token_id).any(dim=1)
    weight = weight.masked_fill(masked, 0.0)
    return weight / weight.sum()
