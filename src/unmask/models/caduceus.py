"""Caduceus (arXiv 2403.03234): denoisers of DNA whose predictions do not depend on the strand that is read.

The reverse complement R of a sequence of bases is the sequence read on the opposite strand: reversed, with A and T, and
C and G, exchanged. A denoiser f is equivariant if f(R z) = R f(z), where R exchanges the logits of the bases too.

Both networks run a bidirectional Mamba on z and on R z, with the same weights, and read both results at a position:

    logits(z) = s (W h(z) + P W (R h)(z)),    h = BiMamba, R h: h(R z) reversed, P: the exchange of the bases

which is equivariant for every h and W. The blocks of Caduceus-PS split the channels in two halves that are never mixed,
one for each strand; here the halves are two rows of the batch, and `hidden` joins them to 2 D channels.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from unmask.data.tokenizers import complement_map
from unmask.errors import UnmaskError
from unmask.models.mamba import AttentionFreeSize, BiMamba, BiMambaConfig, BiMambaSpec

DNA_COMPLEMENTS = (3, 2, 1, 0)
"""The complements of the tokens A, C, G, T of the tokenizer `dna`."""


class CaduceusConfig(BiMambaConfig):
    """A reverse-complement equivariant denoiser.

    Args:
        complement_map: The token on the opposite strand for every token of the vocabulary. Tokens without a complement,
            such as N and the mask, map to themselves.
        symmetry: "ps" (parameter sharing): both strands are read in training and inference. "ph" (post hoc): training
            reads one strand, as a `BiMamba`, and inference averages the logits of both.
        kwargs: The fields of `BiMambaConfig`.
    """

    model_type = "unmask-caduceus"

    def __init__(
        self, complement_map: list[int] | None = None, symmetry: Literal["ps", "ph"] = "ps", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        size = self.vocab_size
        if complement_map is None:  # of a vocabulary that begins with A, C, G, T
            complement_map = [*DNA_COMPLEMENTS[:size], *range(len(DNA_COMPLEMENTS), size)]
        self.complement_map = list(complement_map)
        self.symmetry = symmetry
        known = self.complement_map
        if len(known) != size or any(not 0 <= token < size or known[token] != i for i, token in enumerate(known)):
            raise UnmaskError(
                f"complement_map must list the complement of each of the {size} tokens, and the complement of a "
                f"complement must be the token itself, got {known!r:.80}."
            )
        if known[self.mask_token_id] != self.mask_token_id:
            raise UnmaskError(
                f"complement_map must map the mask token {self.mask_token_id} to itself, got "
                f"{known[self.mask_token_id]}."
            )

    @property
    def row_size(self) -> int:
        """Width of the rows that the head takes: both strands."""
        return 2 * self.hidden_size


class Caduceus(BiMamba):
    """A bidirectional Mamba that reads both strands with the same weights."""

    config: CaduceusConfig
    config_class = CaduceusConfig

    def __init__(self, config: CaduceusConfig) -> None:
        super().__init__(config)
        self._complement: Tensor | None = None

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:  # type: ignore[override]
        """See `Network.resize_token_embeddings`; new tokens are their own complements."""
        resized = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        known, size = self.config.complement_map, self.config.vocab_size
        self.config.complement_map = [*known[:size], *range(len(known), size)]
        self._complement = None
        return resized

    def _run(
        self,
        input_ids: Tensor,
        inputs: tuple[Any, ...],
        cond: Tensor | None = None,
        past_key_values: Any = None,
        positions: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Ids [B, L] to rows [B, L, 2 D]: those of the given strand and those of the opposite one."""
        if self._reads_one_strand():
            return super()._run(input_ids, inputs, cond, positions=positions, states=states)
        (mask,) = inputs
        ids = torch.cat([input_ids, self._complements(input_ids.device)[input_ids].flip(1)])
        if mask is not None:
            mask = torch.cat([mask, mask.flip(1)])
        if cond is not None and len(cond) > 1:
            cond = cond.repeat(2, 1)
        if positions is not None:
            positions = torch.cat([positions, input_ids.shape[1] - 1 - positions])
        strands: list[Tensor] = []
        rows = super()._run(ids, (mask,), cond, positions=positions, states=None if states is None else strands)
        if states is not None:
            states += [_join_strands(state, reverse=True) for state in strands]
        return _join_strands(rows, reverse=positions is None)

    def _output_weights(self, excluded_token: int | None) -> tuple[Tensor, Tensor]:
        weight, bias = super()._output_weights(excluded_token)
        if self._reads_one_strand():
            return weight, bias
        complement = self._complements(weight.device)
        scale = 1.0 if self.config.symmetry == "ps" else 0.5
        return scale * torch.cat([weight, weight[complement]], dim=1), scale * (bias + bias[complement])

    def _reads_one_strand(self) -> bool:
        """Whether the hidden states [B, L, D] are those of the given strand alone."""
        return self.config.symmetry == "ph" and self.training and self.planner is None

    def _complements(self, device: torch.device) -> Tensor:
        """[V] the complement of every token, copied to a device once."""
        if self._complement is None or self._complement.device != device:
            self._complement = torch.tensor(self.config.complement_map, device=device)
        return self._complement


def _join_strands(rows: Tensor, reverse: bool) -> Tensor:
    """[2 B, L, D] to [B, L, 2 D]; `reverse` if the rows of the opposite strand are in its own order."""
    given, opposite = rows.chunk(2)
    return torch.cat([given, opposite.flip(1) if reverse else opposite], dim=-1)


class CaduceusPSSpec(BiMambaSpec):
    """A fresh denoiser of DNA that reads both strands with shared weights (Caduceus-PS)."""

    equivariant: ClassVar[bool] = True
    """Whether its predictions are the same for both strands."""
    symmetry: ClassVar[Literal["ps", "ph"]] = "ps"

    name: Literal["caduceus-ps"] = "caduceus-ps"  # type: ignore[assignment]
    size: AttentionFreeSize = Field(default="dna")

    def token_options(self, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """The options of `build` that depend on the tokenizer."""
        return {"complement_map": complement_map(tokenizer)}

    def build(
        self,
        vocab_size: int,
        mask_token_id: int,
        length: int,
        mask_logit: bool = False,
        complement_map: list[int] | None = None,
    ) -> Caduceus:
        """A network for a vocabulary whose complements are given; without them it begins with A, C, G, T."""
        fields = self._masked_fields(vocab_size, mask_token_id, length, mask_logit)
        return Caduceus(CaduceusConfig(complement_map=complement_map, symmetry=self.symmetry, **fields))


class CaduceusPHSpec(CaduceusPSSpec):
    """A fresh denoiser of DNA that averages both strands after training on one (Caduceus-PH).

    Train it with `data.reverse_complement=0.5`, so that it knows both.
    """

    symmetry: ClassVar[Literal["ps", "ph"]] = "ph"

    name: Literal["caduceus-ph"] = "caduceus-ph"  # type: ignore[assignment]
