"""Wrappers of a denoiser for one canvas: classifier-free guidance, no EOS inside a text, context around short rows, and
a source that is encoded once.

A wrapper may append columns to the hidden states that its `head` reads, so a sampler uses it like any denoiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from unmask.models.layers import continue_with_masks
from unmask.samplers.base import hidden_rows, select_sequences


@dataclass(eq=False)
class DenoiserWrapper(ABC):
    """Changes the predictions of a denoiser for the sequences of one canvas."""

    denoiser: Any

    def __getattr__(self, name: str) -> Any:
        """`config`, `device`, `fused` and so on are those of the denoiser."""
        return getattr(self.denoiser, name)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Token ids [B, L] to hidden states [B, L, D'], the input of `head`."""
        return self._hidden(input_ids, None, alpha, attention_mask)

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """The hidden states [B, K, D'] at `positions` [B, K]."""
        return self._hidden(input_ids, positions, alpha, attention_mask)

    def select_sequences(self, rows: Tensor) -> Self:
        """The same wrapper for some sequences [B'] of the canvas."""
        return replace(self, denoiser=select_sequences(self.denoiser, rows))

    @abstractmethod
    def _hidden(
        self, input_ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor: ...

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Hidden states [..., D'] to logits [..., V]."""
        return self.denoiser.head(rows, mask_logit)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """The planner's logits [...] for hidden states [..., D'] and the log-probabilities of their top tokens."""
        return self.denoiser.plan(rows, log_top)


@dataclass(eq=False)
class GuidedDenoiser(DenoiserWrapper):
    """Classifier-free guidance: logits (1 + w) l(prompt) - w l(masked prompt).

    `condition` [B, L] marks the tokens masked for the second prediction; both come from one call on 2 B rows.
    """

    condition: Tensor
    weight: float

    def select_sequences(self, rows: Tensor) -> Self:
        return replace(super().select_sequences(rows), condition=self.condition[rows])

    def _hidden(
        self, input_ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor:
        def twice(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else torch.cat([tensor, tensor])

        unconditional = input_ids.masked_fill(self.condition, self.config.mask_token_id)
        both = torch.cat([input_ids, unconditional])
        hidden = hidden_rows(self.denoiser, both, twice(positions), twice(alpha), twice(attention_mask))
        return torch.cat(hidden.chunk(2), dim=-1)  # [B, ..., 2 D]

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        conditional, unconditional = (self.denoiser.head(half, mask_logit) for half in rows.chunk(2, dim=-1))
        guided = conditional + self.weight * (conditional - unconditional)
        return torch.where(conditional.isneginf(), conditional, guided)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        return self.denoiser.plan(rows.chunk(2, dim=-1)[0], log_top)


@dataclass(eq=False)
class NoEosDenoiser(DenoiserWrapper):
    """Gives EOS (the token `eos`) no probability where `no_eos` [B, L] is set, as before given text."""

    no_eos: Tensor
    eos: int

    def select_sequences(self, rows: Tensor) -> Self:
        return replace(super().select_sequences(rows), no_eos=self.no_eos[rows])

    def _hidden(
        self, input_ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor:
        hidden = hidden_rows(self.denoiser, input_ids, positions, alpha, attention_mask)
        no_eos = self.no_eos if positions is None else self.no_eos.gather(1, positions)
        return torch.cat([hidden, no_eos[..., None].to(hidden.dtype)], dim=-1)

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        logits = self.denoiser.head(rows[..., :-1], mask_logit)
        is_eos = torch.arange(logits.shape[-1], device=logits.device) == self.eos
        return logits.masked_fill((rows[..., -1:] > 0) & is_eos, -torch.inf)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        return self.denoiser.plan(rows[..., :-1], log_top)


@dataclass(eq=False)
class SourceDenoiser(DenoiserWrapper):
    """Keeps the encoded source [B, S, D] of an encoder-decoder, which does not change while a canvas is unmasked."""

    source: Tensor

    def select_sequences(self, rows: Tensor) -> Self:
        return replace(super().select_sequences(rows), source=self.source[rows])

    def _hidden(
        self, input_ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor:
        return hidden_rows(self.denoiser, input_ids, positions, alpha, attention_mask, source=self.source)


@dataclass(eq=False)
class MaskPaddedDenoiser(DenoiserWrapper):
    """Shows masks to the network after a short row and at its pads, up to `length`: the text may continue there."""

    length: int

    def _hidden(
        self, input_ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor:
        padded = continue_with_masks(input_ids, attention_mask, self.length, self.config.mask_token_id)
        hidden = hidden_rows(self.denoiser, padded, positions, alpha)
        return hidden[:, : input_ids.shape[1]] if positions is None else hidden


@dataclass(eq=False)
class BosDenoiser(DenoiserWrapper):
    """Shows the network the token `bos` before rows that are shorter than `max_length`."""

    bos: int
    max_length: int

    def _hidden(
        self, input_ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor:
        if input_ids.shape[1] >= self.max_length:
            return hidden_rows(self.denoiser, input_ids, positions, alpha, attention_mask)
        begun = torch.nn.functional.pad(input_ids, (1, 0), value=self.bos)
        if attention_mask is not None:
            attention_mask = torch.nn.functional.pad(attention_mask, (1, 0), value=1)
        after = None if positions is None else positions + 1
        hidden = hidden_rows(self.denoiser, begun, after, alpha, attention_mask)
        return hidden[:, 1:] if positions is None else hidden
