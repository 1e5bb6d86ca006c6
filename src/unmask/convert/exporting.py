"""From a checkpoint folder to published weights: safetensors with the published keys, for the published code."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from unmask.checkpoint import Checkpoint, load_checkpoint
from unmask.convert.layout import PREFIX, ROTARY, ROTARY_BASE, Weights, rotary_frequencies, unfold, without_norm_biases
from unmask.errors import UnmaskError
from unmask.io import atomic_folder, check_new_folder
from unmask.models.causal import CausalLM
from unmask.models.dit import DiT

PLANNER = "planner."
"""The weights beside a network for which the published code has no place."""
OTHER_FORMATS = (".bin", ".ckpt", ".pt", ".pth")


@dataclass(frozen=True)
class ExportReport:
    """What was exported where."""

    source: str
    path: str
    network: Literal["dit", "causal"]
    conditioned: bool
    keys: int
    parameters: int

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


def export(src: str | Path, dst: str | Path) -> ExportReport:
    """Write the network of a checkpoint under the published keys, which the published code loads strictly.

    A conditioned network keeps its weights. An unconditioned one gets a constant modulation (its weights zero; in its
    biases shift = the bias of the norm, scale = 0, gate = 1), so that the published network is the same at every sigma.

    Args:
        src: A checkpoint folder.
        dst: A file that ends in .safetensors, or a folder, which also gets config.json and the tokenizer.
    """
    path = Path(dst)
    _check_new(path)
    loaded = load_checkpoint(src)
    state = published_state(loaded.model, f"'{src}'")
    if path.suffix == ".safetensors":
        _write_file(state, path)
    else:
        _write_folder(state, loaded, path)
    return _report(loaded, path, state)


def published_state(model: Any, where: str = "The network") -> dict[str, Tensor]:
    """The weights of a network by their published keys, prefix and rotary buffer included."""
    if not isinstance(model, (DiT, CausalLM)):
        raise UnmaskError(f"{where} is a {type(model).__name__}, for which there are no published keys; export a DiT.")
    config = model.config
    if config.rope_base != ROTARY_BASE:
        raise UnmaskError(
            f"{where} has the rotary base {config.rope_base:g}, which the published code cannot take over from a file; "
            f"export a network of base {ROTARY_BASE:g}."
        )
    if config.qk_norm:
        raise UnmaskError(f"{where} normalises queries and keys, which the published code does not; export another.")
    if getattr(config, "absolute_positions", False):
        raise UnmaskError(f"{where} knows absolute positions, which the published code does not; export another.")
    weights = _published_weights(model, where)
    weights[ROTARY] = rotary_frequencies(config.head_dim)
    return {PREFIX + name: weight.contiguous() for name, weight in weights.items()}


def _published_weights(model: DiT | CausalLM, where: str) -> Weights:
    state = model.state_dict().items()
    weights = {name: weight.detach().cpu().float() for name, weight in state if not name.startswith(PLANNER)}
    if isinstance(model, CausalLM):
        plain = without_norm_biases(weights)
        if plain is None:
            raise UnmaskError(
                f"{where} has learnt biases in its norms, for which the published autoregressive network has no place; "
                "only converted ones can be exported."
            )
        return plain
    config = model.config
    return weights if config.conditioned else unfold(weights, config.num_hidden_layers, config.cond_dim)


def _check_new(path: Path) -> None:
    if path.suffix in OTHER_FORMATS:
        raise UnmaskError(f"'{path}' would be a pickle; export to a .safetensors file or to a folder.")
    if path.suffix != ".safetensors":
        check_new_folder(path, "name a new folder or a .safetensors file")
    elif path.exists():
        raise UnmaskError(f"'{path}' exists; name a new file.")


def _write_file(state: dict[str, Tensor], path: Path) -> None:
    """Write the weights beside their place and move them there when they are complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        save_file(state, temporary, metadata={"format": "pt"})
        os.replace(temporary, path)


def _write_folder(state: dict[str, Tensor], loaded: Checkpoint, path: Path) -> None:
    with atomic_folder(path) as folder:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(_published_config(loaded), indent=2) + "\n", encoding="utf-8")
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(folder)


def _published_config(loaded: Checkpoint) -> dict[str, Any]:
    """The fields of the published config.json; the autoregressive twin has no modulation to speak of."""
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


def _report(loaded: Checkpoint, path: Path, state: dict[str, Tensor]) -> ExportReport:
    return ExportReport(
        source=str(loaded.path),
        path=str(path),
        network="dit" if isinstance(loaded.model, DiT) else "causal",
        conditioned=isinstance(loaded.model, DiT) and loaded.model.config.conditioned,
        keys=len(state),
        parameters=sum(weight.numel() for name, weight in state.items() if not name.endswith(ROTARY)),
    )
