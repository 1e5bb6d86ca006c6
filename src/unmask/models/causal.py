"""Autoregressive networks, and the transformer with a causal mask and a key-value cache."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from transformers import GenerationMixin, PretrainedConfig
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from unmask.models.attention import StaticCache, causal_mask
from unmask.models.config import AutoregressiveConfig, CausalConfig
from unmask.models.dit import Network, Transformer
from unmask.models.layers import check_input, check_length


class AutoregressiveNetwork(Network, GenerationMixin):
    """A causal language model. Row i of its output has seen tokens 0..i and predicts token i + 1.

    Subclasses define `hidden` and `new_cache`.
    """

    config: AutoregressiveConfig
    config_class: type[PretrainedConfig] | None = AutoregressiveConfig

    def __init__(self, config: AutoregressiveConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"
        # `generate` would report a conflict with the `max_new_tokens` of the caller
        self.generation_config.max_length = None

    @abstractmethod
    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """The hidden states [B, L, D], the input of `head`.

        Args:
            input_ids: Tokens, [B, L], starting with the begin token if the model has one; with a cache, the new ones.
            attention_mask: True (or 1) at tokens and False at padding, [B, cached + L]. Right padding needs none.
            past_key_values: The cache of the earlier tokens, to which these are added.
            states: A list that the hidden states of all layers are appended to.
        """

    @abstractmethod
    def new_cache(self, capacity: int | None = None) -> Any:
        """An empty cache for `hidden`: one that grows, or one for `capacity` tokens."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **unused: object,
    ) -> CausalLMOutputWithPast:
        """Logits [B, L, V], as in every Hugging Face causal LM; row i predicts token i + 1.

        ``labels`` [B, L] are the input ids, or -100 at tokens that are not counted; they are shifted here. The loss
        is their mean cross-entropy, or their sum divided by ``num_items_in_batch``. ``use_cache`` creates a cache if
        none is given (by default outside training). ``logits_to_keep`` returns only that many of the last rows (0:
        all). Other arguments of ``generate``, such as position ids, are ignored: rotary positions are relative.
        """
        if past_key_values is None and (not self.training if use_cache is None else use_cache):
            past_key_values = self.new_cache()
        states = self._requested_states(output_hidden_states, output_attentions)
        rows = self.hidden(input_ids, attention_mask, past_key_values, states)
        logits = self.head(rows[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            # the begin token of a row that is padded on the left; it has no logit
            labels = labels.masked_fill(labels == self.config.mask_token_id, -100)
            loss = self.loss_function(logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,  # type: ignore[arg-type]
            past_key_values=past_key_values,
            hidden_states=None if states is None else tuple(states),  # type: ignore[arg-type]
        )

    def _prepare_generated_length(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Let `generate` stop at the longest sequence of the network, however many new tokens are asked for."""
        prepared = super()._prepare_generated_length(generation_config, *args, **kwargs)  # type: ignore[misc]
        prepared.max_length = min(prepared.max_length, self.config.max_length)
        return prepared


class RecurrentCache:
    """The states of all layers of a network without attention after the tokens read so far."""

    def __init__(self, layers: int) -> None:
        self.states: list[tuple[Tensor, ...] | None] = [None] * layers
        self.length = 0

    def get_seq_length(self) -> int:
        return self.length

    def reorder_cache(self, rows: Tensor) -> None:
        """Continue from the sequences ``rows`` [B], as beam search does."""
        self.states = [None if state is None else tuple(part[rows] for part in state) for state in self.states]


class RecurrentNetwork(AutoregressiveNetwork):
    """An autoregressive network without attention, whose blocks read and write the state of a `RecurrentCache`."""

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """See `AutoregressiveNetwork.hidden`."""
        past = 0 if past_key_values is None else past_key_values.length
        check_input(input_ids, attention_mask, self.config.max_length, past)
        mask = None if attention_mask is None else attention_mask[:, past:].bool()
        rows = self._run(input_ids, (mask,), past_key_values=past_key_values, states=states)
        if past_key_values is not None:
            past_key_values.length += input_ids.shape[1]
        return rows

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        check_length(capacity or 0, self.config.max_length)
        return RecurrentCache(self.config.num_hidden_layers)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Let `forward` make the cache of `generate`."""
        return False


class CausalLM(AutoregressiveNetwork, Transformer):
    """The autoregressive transformer."""

    config: CausalConfig
    config_class = CausalConfig

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | StaticCache | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """See `AutoregressiveNetwork.hidden`.

        A `StaticCache` must have been moved to the position of the tokens with `seek`, and takes no attention mask.
        """
        length = input_ids.shape[1]
        if isinstance(past_key_values, StaticCache):
            inputs = self._rotary(length, past_key_values.position), past_key_values.begin_pass(length)
            return self._run(input_ids, inputs, past_key_values=past_key_values)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        check_input(input_ids, attention_mask, self.config.max_length, past)
        inputs = self._rotary(length, past), causal_mask(length, past, attention_mask, input_ids.device)
        return self._run(input_ids, inputs, past_key_values=past_key_values, states=states)

    def new_cache(self, capacity: int | None = None) -> Cache | StaticCache:
        if capacity is None:
            return DynamicCache()
        check_length(capacity, self.config.max_length)
        return StaticCache(self.config.num_hidden_layers, capacity, self.vocab_embed.embedding.device)
