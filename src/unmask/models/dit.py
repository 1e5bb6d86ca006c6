"""The diffusion transformer: a canvas with masks in, logits of the clean tokens out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from unmask.models.attention import see_all, waves
from unmask.models.config import EPSILON, DiTConfig
from unmask.models.planner import PlannerHead, no_planner
from unmask.models.trunk import Trunk, label_loss


class PositionEmbedding(nn.Module):
    """Waves that tell every position from all others, [L, D], each channel as loud as it has learnt to be."""

    def __init__(self, hidden_size: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.gain = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Silent."""
        nn.init.zeros_(self.gain)

    def forward(self, length: int) -> Tensor:
        return self.gain * waves(length, len(self.gain), self.base, self.gain.device)


class DiT(Trunk):
    """The bidirectional denoiser, conditioned on alpha as published or, by default, not at all."""

    config: DiTConfig
    config_class = DiTConfig
    _keys_to_ignore_on_load_unexpected = [r"^planner\."]  # noqa: RUF012

    def __init__(self, config: DiTConfig) -> None:
        super().__init__(config, cond_dim=config.cond_dim if config.conditioned else None)
        self.position_embed: PositionEmbedding | None = None
        if config.absolute_positions:
            self.tell_positions()
        width = config.planner_width
        self.planner = None if width is None else PlannerHead(config.hidden_size, width)

    def tell_positions(self) -> None:
        """Add absolute positions, which the network does not look at at first, where it has none."""
        self.config.absolute_positions = True
        self.position_embed = self.position_embed or PositionEmbedding(self.config.hidden_size, self.config.rope_base)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """The rows that `head` takes, [B, L, D].

        Args:
            input_ids: Tokens and masks, [B, L].
            alpha: The probability that the noise has kept a token, [B]. A conditioned network takes None for sigma = 0
                (time conditioning off, as published); an unconditioned one does not look at it.
            attention_mask: True (or 1) at tokens and False at pads, [B, L]; None when there are no pads.
        """
        self._check_lengths(input_ids, attention_mask)
        return self._run(input_ids, see_all(attention_mask), self._condition(alpha, input_ids.device))

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence alone, [B, K, D], for less work."""
        self._check_lengths(input_ids, attention_mask)
        cond = self._condition(alpha, input_ids.device)
        return self._run(input_ids, see_all(attention_mask), cond, positions=positions)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> MaskedLMOutput:
        """Logits [B, L, V] at every position, as every Hugging Face masked LM gives them.

        ``labels`` [B, L] adds the mean cross-entropy of the positions whose label is not -100. ``token_type_ids`` is
        there for tokenizers that make them; the network has no segments and does not look at it.
        """
        logits = self.head(self.hidden(input_ids, alpha, attention_mask), self.config.mask_logit)
        return MaskedLMOutput(loss=label_loss(logits, labels), logits=logits)  # type: ignore[arg-type]

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """[...] log-odds that the most likely tokens at hidden rows [..., D], of log-probability [...], are right."""
        if self.planner is None:
            raise no_planner()
        return self.planner(rows, log_top)

    def _embedded(self, input_ids: Tensor) -> Tensor:
        x = self.vocab_embed(input_ids)
        return x if self.position_embed is None else x + self.position_embed(x.shape[1]).to(x.dtype)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEmbedding):
            module.reset_parameters()
        super()._init_weights(module)

    def _condition(self, alpha: Tensor | None, device: torch.device) -> Tensor | None:
        """The conditioning vector, [B, C], or [1, C] when it is the same for all; None in an unconditioned network."""
        if self.sigma_map is None:
            return None
        sigma = torch.zeros(1, device=device) if alpha is None else -torch.log(EPSILON + (1 - EPSILON) * alpha.float())
        return F.silu(self.sigma_map(sigma))
