"""Tiny encoders, made and saved by transformers, for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

TEXT = "the cat sat on the mat . a dog ran in the sun and it was a very good day for a walk .\n"
WORDS = [*dict.fromkeys(TEXT.split())]
VOCABULARY, POSITIONS = 40, 24
BERT_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
ROBERTA_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
ROBERTA_TOKENS |= {"cls_token": "<s>", "sep_token": "</s>"}
SIZES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3},
    "electra": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "legacy": False},
}
"""The architectures, and what their configurations need besides the sizes that all share."""


def make_tokenizer(kind: str = "bert", mask: bool = True) -> PreTrainedTokenizerFast:
    """A word tokenizer that frames rows as the published one of an architecture does."""
    special = dict(ROBERTA_TOKENS if kind == "roberta" else BERT_TOKENS)
    if mask:
        special["mask_token"] = "<mask>" if kind == "roberta" else "[MASK]"
    words = [*dict.fromkeys(special.values()), *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = special["cls_token"], special["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, "$B", last],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def make_encoder(folder: Path, kind: str = "bert", noise: float = 0.2, **options: Any) -> Any:
    """Save an encoder with random weights and its tokenizer; returns the model of transformers."""
    tokenizer = make_tokenizer(kind)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = SIZES[kind] if kind == "distilbert" else {**sizes, **SIZES[kind]}
    tokens = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": None}
    shared = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, **tokens, **sizes, **options}
    network = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **shared)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return network
