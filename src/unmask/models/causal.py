"""The autoregressive twin: the same trunk, each token seeing only those before it, with a key-value cache."""

from __future__ import annotations

from torch import Tensor
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from unmask.models.attention import StaticCache, causal_mask
from unmask.models.config import CausalConfig
from unmask.models.dit import Transformer, label_loss


class CausalLM(Transformer, GenerationMixin):
    """A causal language model. Row i of its output has seen tokens 0..i and predicts token i + 1."""

    config: CausalConfig
    config_class = CausalConfig

    def __init__(self, config: CausalConfig) -> None:
        super().__init__(config)
        # `generate` would set this against the `max_new_tokens` that its caller gives.
        self.generation_config.max_length = None

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | StaticCache | None = None,
    ) -> Tensor:
        """The rows that `head` takes, [B, L, D].

        Args:
            input_ids: Tokens, [B, L], the begin token first where the model has one; with a cache, only the new ones.
            attention_mask: True (or 1) at tokens and False at pads, [B, cached + L]. Pads on the right need none, since
                no token sees what comes after it.
            past_key_values: The cache of the tokens before these; it grows by L. A `StaticCache` was told where these
                stand, and takes no attention mask.
        """
        if isinstance(past_key_values, StaticCache):
            scope = past_key_values.open(input_ids.shape[1])
            return self._run(input_ids, scope, past=past_key_values.position, past_key_values=past_key_values)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        self._check_lengths(input_ids, attention_mask, past)
        scope = causal_mask(input_ids.shape[1], past, attention_mask, input_ids.device)
        return self._run(input_ids, scope, past=past, past_key_values=past_key_values)

    def new_cache(self, capacity: int | None = None) -> Cache | StaticCache:
        """An empty cache for `hidden` to fill: one that grows, or one that is allocated once for `capacity` tokens."""
        if capacity is None:
            return DynamicCache()
        self._check_length(capacity)
        return StaticCache(self.config.num_hidden_layers, capacity, self.vocab_embed.embedding.device)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **unused: object,
    ) -> CausalLMOutputWithPast:
        """Logits [B, L, V], as every Hugging Face causal LM gives them; row i predicts token i + 1.

        ``labels`` [B, L] are the input ids again, or -100 where a token is not counted; they are shifted here.
        ``use_cache`` starts a cache where none is given (by default, outside training), and ``logits_to_keep`` keeps
        that many last rows (0: all). What else ``generate`` passes (positions, say) is not needed: rotary positions are
        relative.
        """
        if past_key_values is None and (not self.training if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        rows = self.hidden(input_ids, attention_mask, past_key_values)
        logits = self.head(rows[:, -logits_to_keep:])
        loss = None if labels is None else label_loss(logits[:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)  # type: ignore[arg-type]
