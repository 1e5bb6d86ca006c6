"""From published weights (Lightning checkpoint, Hugging Face folder or state dict) to a checkpoint folder.

The published diffusion language models LLaDA and Dream are read by `unmask.convert.decoders`.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file
from torch import Tensor

from unmask.checkpoint import CONFIG_FILE, CheckpointConfig, network_type, save_checkpoint
from unmask.convert.decoders import KINDS, convert_decoder
from unmask.convert.layout import (
    PREFIX,
    ROTARY,
    add_norm_biases,
    check_ema,
    check_keys,
    fold,
    infer_heads,
    infer_sizes,
    published_shapes,
)
from unmask.convert.torch_file import StoredTensor, TorchFile
from unmask.data.encoding import vocabulary_size
from unmask.data.tokenizers import MASK, HuggingFaceTokenizer, TokenizerComponent
from unmask.errors import UnmaskError, did_you_mean
from unmask.io import check_new_folder, read_json, reading
from unmask.models.causal import CausalLM
from unmask.models.config import CausalConfig, DiTConfig
from unmask.models.decoder import Decoder
from unmask.models.dit import DiT
from unmask.registry import build

WeightSet = Literal["ema", "raw"]
Objective = Literal["subs", "sedd"]

PUBLISHED_LENGTH = 1024
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
TRAINER_KEYS = ("noise.", "train_metrics.", "valid_metrics.", "test_metrics.", "gen_ppl_metric.")
"""Keys in the state dict of the published trainer that are not part of the network."""


class PublishedConfig(BaseModel):
    """The config.json of a published Hugging Face folder; every field may be missing."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    vocab_size: int | None = None
    hidden_dim: int | None = None
    n_blocks: int | None = None
    cond_dim: int | None = None
    n_heads: int | None = Field(default=None, ge=1)
    model_length: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, le=1)
    time_conditioning: bool = False


@dataclass(frozen=True)
class Published:
    """A published network: float32 weights by name without prefix, and the fields of its `DiTConfig`.

    The network is autoregressive if `fields` has no `cond_dim`. `chosen` tells which weights of the file these are,
    `heads_assumed` whether nothing determined the number of attention heads.
    """

    path: Path
    config: PublishedConfig
    fields: dict[str, Any]
    weights: dict[str, Tensor]
    chosen: Literal["ema", "raw", "as stored"]
    heads_assumed: bool


@dataclass(frozen=True)
class ConversionReport:
    """Summary of a conversion."""

    source: str
    folder: str
    network: Literal["dit", "causal", "decoder"]
    conditioned: bool
    weights: Literal["ema", "raw", "as stored"]
    objective: str
    parameters: int
    vocab_size: int
    mask_token_id: int
    layers: int
    hidden_size: int
    heads: int
    heads_assumed: bool
    """Whether the number of heads is width / 64 because neither the caller nor the files give it."""
    length: int


def convert(
    src: str | Path,
    dst: str | Path,
    *,
    tokenizer: Any = None,
    weights: WeightSet = "ema",
    time_conditioning: bool = False,
    length: int | None = None,
    heads: int | None = None,
    objective: Objective = "subs",
    policy: str | Mapping[str, Any] | None = None,
) -> ConversionReport:
    """Write published weights as a checkpoint folder; nothing is written unless all of them fit.

    A network with modulation becomes a DiT. One without it becomes the autoregressive network, which has the objective
    `ar` and, as published, no BOS token. A folder of LLaDA or Dream becomes a `Decoder` with weights of the same dtype
    and, as a `generation_config.json`, the published settings of generation.

    Args:
        src: A Lightning checkpoint, a Hugging Face folder, or a state dict (safetensors or `torch.save`).
        dst: The folder to write, new or empty.
        tokenizer: A tokenizer, the folder or hub name of one, "byte" or "char"; None takes the one in `src`. Without
            any, the checkpoint works on ids only, and its mask is the last id, as published.
        weights: The EMA or the raw weights of a Lightning checkpoint; other sources have only one set.
        time_conditioning: Keep the network conditioned on alpha, as it is if config.json says so. Otherwise its
            modulation at sigma = 0 is folded into an unconditioned network.
        length: Tokens per row; the default is that of config.json, else 1024, as published for OpenWebText.
        heads: Attention heads; the default is from config.json or the rotary buffer, else width / 64 with a warning.
        objective: The training objective of a DiT.
        policy: The length policy, a name or a mapping with its options; the default is `packed`, and `padded` for a
            model with a chat template, whose answers end with EOS.
    """
    for name, value, known in (("weights", weights, WeightSet), ("objective", objective, Objective)):
        if value not in get_args(known):
            raise UnmaskError(f"{name} cannot be '{value}'.{did_you_mean(str(value), get_args(known))}")
    if length is not None and length < 1:
        raise UnmaskError(f"length must be 1 or more, got {length}.")
    length_policy = build("policy", policy or "packed")
    check_new_folder(Path(dst), "name a new folder")
    if (kind := network_type(Path(src))) in KINDS:
        if heads is not None or time_conditioning or objective != "subs" or weights != "ema":
            raise UnmaskError(
                f"'{src}' is a {kind} network, for which --heads, --weights, --objective and --time-conditioning have "
                "no meaning; leave them out."
            )
        given_policy = None if policy is None else length_policy
        decoder, config = convert_decoder(kind, Path(src), Path(dst), tokenizer, length, given_policy)
        return _report(src, dst, decoder, config, heads=decoder.config.decoder["num_attention_heads"])
    published = read_published(Path(src), weights, heads)
    causal = "cond_dim" not in published.fields
    if causal and time_conditioning:
        raise UnmaskError(f"'{src}' has no time conditioning to keep; leave --time-conditioning out.")
    if causal and objective != "subs":
        raise UnmaskError(f"The objective '{objective}' does not fit an autoregressive network; leave it out.")
    if published.heads_assumed:
        warnings.warn(
            f"'{src}' does not tell the number of attention heads; {published.fields['num_attention_heads']} heads of "
            "width 64 are assumed, and with another number its texts are nonsense; give it with --heads (heads=).",
            stacklevel=2,
        )
    opened = _fitting_tokenizer(tokenizer, published)
    trained_length = published.config.model_length
    fields: dict[str, Any] = {
        **published.fields,
        "mask_token_id": published.fields["vocab_size"] - 1 if opened is None else opened.mask_token_id,
        "dropout": published.config.dropout,
        "max_length": max(length or trained_length or PUBLISHED_LENGTH, trained_length or 1),
    }
    conditioned = not causal and (time_conditioning or published.config.time_conditioning)
    model = _build_network(published.weights, fields, conditioned)
    config = CheckpointConfig(
        objective="ar" if causal else objective,
        policy=length_policy,
        length=length or model.config.max_length,
        protocol={
            "converted_from": published.path.resolve().name,
            "weights": published.chosen,
            "conditioned": conditioned,
        },
    )
    save_checkpoint(dst, model, opened, config)
    return _report(src, dst, model, config, model.config.num_attention_heads, published.heads_assumed)


def _report(
    src: str | Path, dst: str | Path, model: Any, config: CheckpointConfig, heads: int, heads_assumed: bool = False
) -> ConversionReport:
    kinds: dict[type, Literal["dit", "causal", "decoder"]] = {DiT: "dit", CausalLM: "causal", Decoder: "decoder"}
    return ConversionReport(
        source=str(src),
        folder=str(dst),
        network=kinds[type(model)],
        conditioned=config.protocol["conditioned"],
        weights=config.protocol["weights"],
        objective=config.objective.name,
        parameters=sum(weight.numel() for weight in model.parameters()),
        vocab_size=model.config.vocab_size,
        mask_token_id=model.config.mask_token_id,
        layers=model.config.num_hidden_layers,
        hidden_size=model.config.hidden_size,
        heads=heads,
        heads_assumed=heads_assumed,
        length=config.length,
    )


def _build_network(weights: dict[str, Tensor], fields: dict[str, Any], conditioned: bool) -> Any:
    network: Any = DiT
    config: Any
    if "cond_dim" not in fields:
        network, config, weights = CausalLM, CausalConfig(bos_token_id=None, **fields), add_norm_biases(weights)
    else:
        config = DiTConfig(conditioned=conditioned, **fields)
        weights = weights if conditioned else fold(weights, config.num_hidden_layers)
    with torch.device("meta"):
        model = network(config)
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval()


# ---- reading published weights ---------------------------------------------------------------------------------------


def read_published(path: Path, weights: WeightSet, heads: int | None) -> Published:
    """Read a published network and check every key. `weights` applies to Lightning checkpoints, which have both."""
    if not path.is_file() and not path.is_dir():
        raise UnmaskError(f"There is no file or folder '{path}'; check the path.")
    file, config = (_weight_file(path), _read_config(path)) if path.is_dir() else (path, PublishedConfig())
    if file.suffix == ".safetensors":
        with reading(f"'{file}' is damaged or not safetensors", "fetch it again"):
            state = load_file(file)
        return _read(path, config, state, lambda tensor: tensor, "as stored", None, heads)
    with TorchFile(file) as opened:
        tree = opened.tree
        if not isinstance(tree, Mapping) or not isinstance(tree.get("state_dict", {}), Mapping):
            raise UnmaskError(f"'{path}' has no dictionary of weights; give a checkpoint or a state dict.")
        if "state_dict" not in tree:
            return _read(path, config, tree, opened.tensor, "as stored", None, heads)
        state = {k: value for k, value in tree["state_dict"].items() if not str(k).startswith(TRAINER_KEYS)}
        ema = tree.get("ema")
        shadow = ema.get("shadow_params") if isinstance(ema, Mapping) else None
        return _read(path, config, state, opened.tensor, weights, shadow, heads)


def _read(
    path: Path,
    config: PublishedConfig,
    state: Mapping[Any, Any],
    read: Callable[[Any], Tensor],
    chosen: Literal["ema", "raw", "as stored"],
    shadow: Any,
    heads: int | None,
) -> Published:
    """Check the keys and shapes of a state dict and read its weights, or those of the EMA list `shadow`."""
    where = f"'{path}'"
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, (Tensor, StoredTensor)):
            raise UnmaskError(f"{where} has {str(name)[:80]!r}, which is not a tensor; give a state dict.")
    tensors = {name.removeprefix(PREFIX): value for name, value in state.items()}
    rotary = tensors.pop(ROTARY, None)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}

    fields = infer_sizes(shapes, where)
    for stated, name in (
        ("vocab_size", "vocab_size"),
        ("hidden_dim", "hidden_size"),
        ("n_blocks", "num_hidden_layers"),
        ("cond_dim", "cond_dim"),
    ):
        value = getattr(config, stated)
        if value is not None and fields.get(name, value) != value:
            raise UnmaskError(
                f"config.json of {where} says {stated}={value}, but the weights say {fields[name]}; "
                "correct the one that is wrong."
            )
    frequencies = None if rotary is None else read(rotary)
    given_heads = config.n_heads if heads is None else heads
    fields["num_attention_heads"] = infer_heads(fields["hidden_size"], given_heads, frequencies, where)
    conditioned = "cond_dim" in fields
    expected = published_shapes(DiTConfig(conditioned=True, **fields) if conditioned else CausalConfig(**fields))
    check_keys(shapes, expected, where)
    if chosen == "ema":
        if not isinstance(shadow, list) or not all(isinstance(value, StoredTensor) for value in shadow):
            raise UnmaskError(
                f"{where} has no list of EMA weights (ema.shadow_params); convert the raw ones (--weights raw)."
            )
        check_ema([value.shape for value in shadow], expected, where)
        tensors = dict(zip(expected, shadow, strict=True))
    weights = {}
    for name in expected:
        weight = read(tensors[name])
        if not weight.is_floating_point():
            raise UnmaskError(f"{where} has {name} as {weight.dtype}; give a checkpoint that is not quantised.")
        weights[name] = weight.to(torch.float32).contiguous()
    return Published(path, config, fields, weights, chosen, given_heads is None and rotary is None)


def _weight_file(folder: Path) -> Path:
    if (folder / CONFIG_FILE).is_file():
        raise UnmaskError(f"'{folder}' is already a checkpoint of unmask; use it as it is, or add --reverse.")
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UnmaskError(f"The folder '{folder}' has no weights ({' or '.join(WEIGHT_FILES)}); give the file itself.")


def _read_config(folder: Path) -> PublishedConfig:
    file = folder / "config.json"
    if not file.is_file():
        return PublishedConfig()
    with reading(f"'{file}' cannot be used", "correct it"):
        return PublishedConfig.model_validate(read_json(file))


# ---- tokenizers ------------------------------------------------------------------------------------------------------


def _fitting_tokenizer(given: Any, published: Published) -> Any:
    """Return a tokenizer with a mask token and the network's vocabulary size, or None if there is none."""
    tokenizer = _open_tokenizer(given, published.path)
    if tokenizer is None:
        return None
    if tokenizer.mask_token_id is None:
        tokenizer = deepcopy(tokenizer)
        tokenizer.add_special_tokens({"mask_token": MASK})
    size, wanted = vocabulary_size(tokenizer), published.fields["vocab_size"]
    if size != wanted:
        raise UnmaskError(
            f"The tokenizer has {size} tokens (mask included) and the network in '{published.path}' has {wanted}; "
            "give the tokenizer it was trained with (--tokenizer)."
        )
    return tokenizer


def _open_tokenizer(given: Any, source: Path) -> Any:
    if given is None:
        files = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
        if not files:
            return None
        with tempfile.TemporaryDirectory() as folder:  # without config.json, which names an unknown model type
            for file in files:
                shutil.copy(file, folder)
            return HuggingFaceTokenizer(path=folder).build()
    if isinstance(given, (str, Path)):
        given = build("tokenizer", given) if given in ("byte", "char") else HuggingFaceTokenizer(path=str(given))
    return given.build() if isinstance(given, TokenizerComponent) else given
