"""From published weights to a checkpoint folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.convert.layout import choose_heads, fold, with_norm_biases
from unmask.convert.sources import Published, Which, read_published
from unmask.data.tokenizers import MASK, HuggingFaceTokenizer, TokenizerComponent, vocabulary_size
from unmask.errors import UnmaskError, did_you_mean
from unmask.io import check_new_folder
from unmask.models.causal import CausalLM
from unmask.models.config import CausalConfig, DiTConfig
from unmask.models.dit import DiT
from unmask.registry import build

Objective = Literal["subs", "sedd"]

PUBLISHED_LENGTH = 1024
FIXED_TOKENIZERS = ("byte", "char")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)


@dataclass(frozen=True)
class ConversionReport:
    """What was converted into what."""

    source: str
    folder: str
    network: Literal["dit", "causal"]
    conditioned: bool
    weights: Literal["ema", "raw", "as stored"]
    objective: str
    parameters: int
    vocab_size: int
    mask_token_id: int
    layers: int
    hidden_size: int
    heads: int
    length: int

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


def convert(
    src: str | Path,
    dst: str | Path,
    *,
    tokenizer: Any = None,
    weights: Which = "ema",
    time_conditioning: bool = False,
    length: int | None = None,
    heads: int | None = None,
    objective: Objective = "subs",
    policy: str | Mapping[str, Any] = "packed",
) -> ConversionReport:
    """Make a checkpoint folder of published weights; nothing is written unless all of them fit.

    A network with modulation becomes the DiT, one without it the autoregressive twin (whose objective is always AR and
    which begins with the first token of a text, as published).

    Args:
        src: A Lightning checkpoint, a Hugging Face folder, or a state dict file (safetensors or `torch.save`).
        dst: The folder to write, new or empty.
        tokenizer: A tokenizer object, the folder or hub name of one, "byte" or "char"; None takes the one in `src`.
            Without any, the checkpoint knows ids alone, and its mask is the last of them, as published.
        weights: The average (EMA) or the raw weights of a Lightning checkpoint; other sources have one set only.
        time_conditioning: Keep the network conditioned on alpha; it is kept too when a config.json says it was trained
            so. Otherwise its constant modulation (of sigma = 0) is folded into the unconditioned trunk.
        length: Tokens of a row; without it what a config.json tells, else 1024, as published for OpenWebText.
        heads: Attention heads, where neither a config.json nor the rotary buffer tells them; else width / 64.
        objective: What a DiT was trained on.
        policy: The length policy, a name or a mapping with its options.
    """
    _check_choice("weights", weights, get_args(Which))
    _check_choice("objective", objective, get_args(Objective))
    chosen_policy = build("policy", policy)
    check_new_folder(Path(dst), "name a new folder")
    published = read_published(Path(src), weights)
    vocabulary = _tokenizer(tokenizer, published)
    mask = published.layout.vocab_size - 1 if vocabulary is None else vocabulary.mask_token_id
    model = _network(published, mask, time_conditioning, _length(length, published), heads)
    card = CheckpointConfig(
        objective=_objective(objective, model),
        policy=chosen_policy,
        length=length or model.config.max_length,
        protocol={
            "converted_from": published.path.resolve().name,
            "weights": published.chosen,
            "conditioned": _conditioned(model),
        },
    )
    save_checkpoint(dst, model, vocabulary, card)
    return _report(published, Path(dst), model, card)


def _network(
    published: Published, mask: int, time_conditioning: bool, length: int, heads: int | None
) -> DiT | CausalLM:
    """The network with the published weights, folded unless it is conditioned."""
    layout, config = published.layout, published.config
    fields: dict[str, Any] = {
        "vocab_size": layout.vocab_size,
        "mask_token_id": mask,
        "hidden_size": layout.hidden_size,
        "num_hidden_layers": layout.layers,
        "num_attention_heads": choose_heads(layout, heads, config.n_heads, published.rotary, published.where),
        "mlp_ratio": layout.mlp_ratio,
        "dropout": config.dropout,
        "max_length": length,
    }
    if layout.cond_dim is None:
        if time_conditioning:
            raise UnmaskError(f"{published.where} has no time conditioning to keep; convert it without.")
        return _filled(CausalLM, CausalConfig(bos_token_id=None, **fields), with_norm_biases(published.weights))
    conditioned = time_conditioning or config.time_conditioning
    weights = published.weights if conditioned else fold(published.weights, layout.layers)
    return _filled(DiT, DiTConfig(conditioned=conditioned, cond_dim=layout.cond_dim, **fields), weights)


def _filled(network: Any, config: Any, weights: dict[str, torch.Tensor]) -> Any:
    """A network that holds these weights, made without drawing others first."""
    with torch.device("meta"):
        model = network(config)
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval()


def _length(given: int | None, published: Published) -> int:
    """The longest row of the network: that of its training, or more where more is asked for."""
    if given is not None and given < 1:
        raise UnmaskError(f"A length of {given} tokens is not possible; give 1 or more.")
    trained = published.config.model_length
    if given is None and trained is None:
        return PUBLISHED_LENGTH
    return max(given or 1, trained or 1)


def _objective(objective: Objective, model: DiT | CausalLM) -> str:
    if isinstance(model, DiT):
        return objective
    if objective != "subs":
        raise UnmaskError(f"The objective '{objective}' does not suit an autoregressive network; leave it out.")
    return "ar"


def _tokenizer(given: Any, published: Published) -> Any:
    """A tokenizer whose vocabulary, its mask token included, is that of the network; None where there is none."""
    tokenizer = _open_tokenizer(given, published)
    if tokenizer is None:
        return None
    if tokenizer.mask_token_id is None:
        tokenizer = deepcopy(tokenizer)
        tokenizer.add_special_tokens({"mask_token": MASK})
    size, wanted = vocabulary_size(tokenizer), published.layout.vocab_size
    if size != wanted:
        raise UnmaskError(
            f"The tokenizer has {size} tokens (mask included) and the network in {published.where} has {wanted}; "
            "give the tokenizer it was trained with (--tokenizer)."
        )
    return tokenizer


def _open_tokenizer(given: Any, published: Published) -> Any:
    if given is None:
        return _own_tokenizer(published)
    if isinstance(given, str) and given in FIXED_TOKENIZERS:
        given = build("tokenizer", given)
    elif isinstance(given, (str, Path)):
        given = HuggingFaceTokenizer(path=str(given))
    return given.build(lambda: iter(())) if isinstance(given, TokenizerComponent) else given


def _own_tokenizer(published: Published) -> Any:
    """The tokenizer in the source folder, read apart from its config.json, which names a network unknown here."""
    files = [published.path / name for name in TOKENIZER_FILES if (published.path / name).is_file()]
    if not files:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            shutil.copy(file, folder)
        return HuggingFaceTokenizer(path=folder).build(lambda: iter(()))


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnmaskError(f"{name}='{value}' is not possible.{did_you_mean(str(value), choices)}")


def _conditioned(model: DiT | CausalLM) -> bool:
    return isinstance(model, DiT) and model.config.conditioned


def _report(published: Published, folder: Path, model: DiT | CausalLM, card: CheckpointConfig) -> ConversionReport:
    config = model.config
    return ConversionReport(
        source=str(published.path),
        folder=str(folder),
        network="dit" if isinstance(model, DiT) else "causal",
        conditioned=_conditioned(model),
        weights=published.chosen,
        objective=card.objective.name,
        parameters=sum(weight.numel() for weight in model.parameters()),
        vocab_size=config.vocab_size,
        mask_token_id=config.mask_token_id,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        length=card.length,
    )
