"""Small random causal language models with byte tokenizers, saved to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from unmask import registry

CONTEXT = 24


def save_judge(folder: Path) -> Path:
    """A Llama of two layers with a context of 24 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = registry.build("tokenizer", "byte").build()
    tokenizer.add_special_tokens({"bos_token": "[BOS]"})
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(**shape, **tokens, max_position_embeddings=CONTEXT)
    return save_random(folder, LlamaForCausalLM(config), tokenizer)


def save_random(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Save a model with weights large enough for uneven predictions."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
