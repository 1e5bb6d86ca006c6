"""From a checkpoint folder to safetensors with the published keys, for the published code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from unmask.checkpoint import Checkpoint, load_checkpoint
from unmask.convert.layout import PREFIX, ROTARY, ROTARY_BASE, is_norm_bias, published_frequencies, unfold
from unmask.errors import UnmaskError
from unmask.io import atomic_file, atomic_folder, check_new_folder
from unmask.models.causal import CausalLM
from unmask.models.dit import DiT

UNPUBLISHED = {
    "qk_norm": "normalises queries and keys",
    "absolute_positions": "has absolute positions",
    "learned_positions": "has learned positions",
    "shifted": "predicts each token from the row before it",
}
"""Options of our networks that the published code does not have."""


@dataclass(frozen=True)
class ExportReport:
    """Summary of an export."""

    source: str
    path: str
    network: Literal["dit", "causal"]
    conditioned: bool
    keys: int
    parameters: int


def export(src: str | Path, dst: str | Path) -> ExportReport:
    """Write the network of a checkpoint under the published keys, which the published code loads strictly.

    A conditioned network keeps its weights. An unconditioned one gets a constant modulation (see `layout.unfold`), so
    that the published network is the same at every sigma.

    Args:
        src: A checkpoint folder.
        dst: A new file that ends in .safetensors, or a folder, which also gets config.json and the tokenizer.
    """
    path = Path(dst)
    as_file = path.suffix == ".safetensors"
    if path.suffix in (".bin", ".ckpt", ".pt", ".pth"):
        raise UnmaskError(f"'{path}' would be a pickle; export to a .safetensors file or to a folder.")
    if as_file and path.exists():
        raise UnmaskError(f"'{path}' exists; name a new file.")
    if not as_file:
        check_new_folder(path, "name a new folder or a .safetensors file")
    loaded = load_checkpoint(src)
    state = published_state(loaded.model, f"'{src}'")
    if as_file:
        with atomic_file(path) as temporary:
            save_file(state, temporary, metadata={"format": "pt"})
    else:
        with atomic_folder(path) as folder:
            save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
            config = json.dumps(_published_config(loaded), indent=2) + "\n"
            (folder / "config.json").write_text(config, encoding="utf-8")
            if loaded.tokenizer is not None:
                loaded.tokenizer.save_pretrained(folder)
    is_dit = isinstance(loaded.model, DiT)
    return ExportReport(
        source=str(loaded.path),
        path=str(path),
        network="dit" if is_dit else "causal",
        conditioned=is_dit and loaded.model.config.conditioned,
        keys=len(state),
        parameters=sum(weight.numel() for name, weight in state.items() if not name.endswith(ROTARY)),
    )


def published_state(model: Any, where: str = "The network") -> dict[str, Tensor]:
    """Return the weights under their published keys, with the prefix and the rotary buffer."""
    if not isinstance(model, (DiT, CausalLM)):
        raise UnmaskError(f"{where} is a {type(model).__name__}, which has no published keys; export a DiT.")
    config = model.config
    if config.rope_base != ROTARY_BASE:
        raise UnmaskError(f"{where} has the rotary base {config.rope_base:g}; the published code has {ROTARY_BASE:g}.")
    for option, words in UNPUBLISHED.items():
        if getattr(config, option, False):
            raise UnmaskError(f"{where} {words}, which the published code does not.")
    # the published code has no planner head
    state = {name: weight for name, weight in model.state_dict().items() if not name.startswith("planner.")}
    weights = {name: weight.detach().cpu().float() for name, weight in state.items()}
    if isinstance(model, CausalLM):
        if any(weight.any() for name, weight in weights.items() if is_norm_bias(name)):
            raise UnmaskError(
                f"{where} has learned biases in its norms, which the published autoregressive network does not; "
                "only converted networks can be exported."
            )
        weights = {name: weight for name, weight in weights.items() if not is_norm_bias(name)}
    elif not config.modulated:
        weights = unfold(weights, config.num_hidden_layers, config.cond_dim)
    weights[ROTARY] = published_frequencies(config.head_dim)
    return {PREFIX + name: weight.contiguous() for name, weight in weights.items()}


def _published_config(loaded: Checkpoint) -> dict[str, Any]:
    config = loaded.model.config
    fields = {
        "vocab_size": config.vocab_size,
        "model_length": config.max_length,
        "hidden_dim": config.hidden_size,
        "n_blocks": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "dropout": config.dropout,
    }
    if isinstance(loaded.model, CausalLM):
        return {"model_type": "ar", **fields}
    return {"model_type": "mdlm", **fields, "cond_dim": config.cond_dim, "time_conditioning": config.conditioned}
