"""Published diffusion language models that are Hugging Face decoders without a causal mask: LLaDA and Dream.

LLaDA (arXiv 2502.09992) has Llama blocks under names of its own. Dream has Qwen2 blocks under their usual names, and
predicts each token from the row before it. Both become a `Decoder`. Weights stay memory-mapped and keep their dtype.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.checkpoint import CheckpointConfig, write_checkpoint
from unmask.convert.layout import check_keys
from unmask.data.encoding import vocabulary_size
from unmask.data.tokenizers import load_published
from unmask.errors import UnmaskError
from unmask.io import atomic_folder, read_json, reading
from unmask.models.build import read_shapes, weight_files
from unmask.models.decoder import Decoder, DecoderConfig
from unmask.registry import Component, build

KINDS = ("llada", "Dream")
"""The `model_type` of the published networks."""
DREAM_LENGTH = 2048
"""The context that Dream was trained on; its config.json has the positions of Qwen2."""
SHARD_SIZE = "1GB"
"""Size of the largest weight file, which is in memory while it is written."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "llada": {"temperature": 0.0, "sampler": {"name": "block", "size": 32}},
    "Dream": {"temperature": 0.2, "top_p": 0.95, "order": "entropy"},
}
"""The published settings of generation."""
REQUIRED: dict[str, Any] = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
}
"""Options of LLaDA's config.json for which its blocks are those of Llama, as in all published networks."""
LLADA_LAYERS = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
"""The layers of a LLaDA block and their names in Llama."""
LLADA_KEYS = {
    "model.transformer.wte.weight": "model.embed_tokens.weight",
    "model.transformer.ln_f.weight": "model.norm.weight",
    "model.transformer.ff_out.weight": "lm_head.weight",
}
QWEN2_KEYS = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")
QWEN2_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters", "tie_word_embeddings",
    "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip


def convert_decoder(
    kind: str, folder: Path, target: Path, tokenizer: Any, length: int | None, policy: Component | None
) -> tuple[Decoder, CheckpointConfig]:
    """Write LLaDA or Dream as a checkpoint folder; returns the network, whose weights are those of the source.

    `tokenizer` is a folder with tokenizer files; None takes those in the source. The default `policy` is `padded` with
    a chat template, since answers end with EOS, else `packed`.
    """
    fields = read_json(folder / "config.json")
    with reading(f"'{folder / 'config.json'}' cannot be used", "restore it"):
        config = read_config(kind, fields)
    weights = read_weights(folder, config)
    opened = open_tokenizer(Path(tokenizer) if tokenizer is not None else folder, config)
    if length is not None and length > config.max_length:
        raise UnmaskError(f"length must be at most {config.max_length}, the positions of '{folder}', got {length}.")
    if policy is None:
        policy = build("policy", "padded" if getattr(opened, "chat_template", None) else "packed")
    settings = CheckpointConfig(
        policy=policy,
        length=length or min(config.max_length, DREAM_LENGTH if kind == "Dream" else config.max_length),
        protocol={"converted_from": folder.resolve().name, "weights": "as stored", "conditioned": False},
    )
    network = build_network(config, weights)
    with atomic_folder(target) as temporary:
        state = dict(network.state_dict())
        write_checkpoint(temporary, network, opened, settings, state, DEFAULTS[kind], max_shard_size=SHARD_SIZE)
    return network, settings


def read_config(kind: str, fields: Mapping[str, Any]) -> DecoderConfig:
    """The configuration of the decoder from the published config.json."""
    if kind == "Dream":
        decoder = {"model_type": "qwen2", **{name: fields[name] for name in QWEN2_FIELDS if name in fields}}
        if fields.get("rope_scaling"):
            raise ValueError(f"rope_scaling must be null, got {fields['rope_scaling']!r}")
        return DecoderConfig(decoder=decoder, mask_token_id=fields["mask_token_id"], shifted=True)
    for name, value in REQUIRED.items():
        if (fields.get(name) or False) != value:
            raise ValueError(f"{name} must be {value!r}, got {fields.get(name)!r}")
    decoder = {
        "model_type": "llama",
        "vocab_size": fields.get("embedding_size") or fields["vocab_size"],
        "hidden_size": fields["d_model"],
        "intermediate_size": fields.get("mlp_hidden_size") or fields["mlp_ratio"] * fields["d_model"],
        "num_hidden_layers": fields["n_layers"],
        "num_attention_heads": fields["n_heads"],
        "num_key_value_heads": fields.get("n_kv_heads") or fields["n_heads"],
        "max_position_embeddings": fields["max_sequence_length"],
        "rms_norm_eps": fields.get("rms_norm_eps", 1e-5),
        "rope_theta": fields.get("rope_theta", 10_000.0),
        "tie_word_embeddings": bool(fields.get("weight_tying")),
        "bos_token_id": None,
        "eos_token_id": fields.get("eos_token_id"),
    }
    return DecoderConfig(decoder=decoder, mask_token_id=fields["mask_token_id"])


# ---- weights ---------------------------------------------------------------------------------------------------------


def read_weights(folder: Path, config: DecoderConfig) -> dict[str, Tensor]:
    """The memory-mapped weights under our names, after a comparison of all names and shapes with the configuration."""
    where, files = f"'{folder}'", weight_files(folder)
    shapes = {our_name(name): tuple(shape) for file in files for name, shape in read_shapes(file).items()}
    if config.num_hidden_layers > len(shapes):
        raise UnmaskError(f"{where} has {len(shapes)} tensors for {config.num_hidden_layers} layers; restore them.")
    with torch.device("meta"):
        expected = {name: tuple(weight.shape) for name, weight in Decoder(config).named_parameters()}
    check_keys(shapes, expected, where)
    weights: dict[str, Tensor] = {}
    for file in files:
        with reading(f"The weights are damaged: '{file}' cannot be read", "fetch the file again"):
            weights |= {our_name(name): tensor for name, tensor in load_file(file).items()}
    dtypes = {weight.dtype for weight in weights.values()}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        raise UnmaskError(
            f"{where} has weights as {', '.join(sorted(map(str, dtypes)))}; give a checkpoint that is not quantised."
        )
    return weights


def our_name(name: str) -> str:
    """The name of a published weight in a `Decoder`; an unknown name stays as it is."""
    if match := re.fullmatch(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.weight", name):
        layer = LLADA_LAYERS.get(match[2])
        return name if layer is None else f"decoder.model.layers.{match[1]}.{layer}.weight"
    known = LLADA_KEYS.get(name, name)
    return f"decoder.{known}" if known.startswith(QWEN2_KEYS) else name


def build_network(config: DecoderConfig, weights: Mapping[str, Tensor]) -> Decoder:
    """A network whose parameters are the given tensors themselves; its buffers are not made."""
    with torch.device("meta"):
        network = Decoder(config)
    network.load_state_dict(weights, strict=False, assign=True)
    network.tie_weights()
    network.config.dtype = next(iter(weights.values())).dtype
    return network.eval()


# ---- tokenizers ------------------------------------------------------------------------------------------------------


def open_tokenizer(folder: Path, config: DecoderConfig) -> Any:
    """The tokenizer with the network's mask token and its chat template, or None if there is none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        return None
    with tempfile.TemporaryDirectory() as copied:
        for file in [*folder.glob("*.json"), *folder.glob("*.txt"), *folder.glob("*.jinja")]:
            if "model" not in file.name and file.name != "config.json":
                shutil.copy(file, copied)
        settings = Path(copied) / "tokenizer_config.json"
        if not (folder / "tokenizer.json").is_file():  # the class of Dream, which is code in its folder, is Qwen2's
            given = read_json(settings) if settings.is_file() else {}
            given = {name: value for name, value in given.items() if name != "auto_map"}
            settings.write_text(json.dumps({**given, "tokenizer_class": "Qwen2Tokenizer"}), encoding="utf-8")
        tokenizer = load_published(copied)
    size, mask = vocabulary_size(tokenizer), config.mask_token_id
    token = tokenizer.convert_ids_to_tokens(mask) if mask < size else None
    if size > config.vocab_size or token is None:
        raise UnmaskError(
            f"The tokenizer in '{folder}' has {size} tokens, and the network {config.vocab_size} with the mask at "
            f"{mask}; give the tokenizer it was trained with (--tokenizer)."
        )
    tokenizer.mask_token = token
    return tokenizer
