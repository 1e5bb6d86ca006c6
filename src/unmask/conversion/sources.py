"""Where published weights come from: a Lightning checkpoint, a Hugging Face folder, or a bare state dict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.checkpoint import CARD
from unmask.conversion.layout import PREFIX, ROTARY, Layout, check, check_shadow
from unmask.conversion.unpickle import StoredTensor, TorchFile
from unmask.errors import UnmaskError

Which = Literal["ema", "raw"]

BESIDE_THE_NETWORK = ("noise.", "train_metrics.", "valid_metrics.", "test_metrics.", "gen_ppl_metric.")
"""What the published training module keeps in its state dict besides the network; none of it is converted."""

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


class PublishedConfig(BaseModel):
    """What the config.json of a published Hugging Face folder says; everything in it may be missing."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    vocab_size: int | None = None
    hidden_dim: int | None = None
    n_blocks: int | None = None
    cond_dim: int | None = None
    n_heads: int | None = Field(default=None, ge=1)
    model_length: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, le=1)
    time_conditioning: bool = False

    def check(self, layout: Layout, where: str) -> None:
        """Refuse a configuration that speaks of another network than its weights."""
        sizes = {
            "vocab_size": layout.vocab_size,
            "hidden_dim": layout.hidden_size,
            "n_blocks": layout.layers,
            "cond_dim": layout.cond_dim,
        }
        for name, size in sizes.items():
            said = getattr(self, name)
            if said is not None and size is not None and said != size:
                raise UnmaskError(
                    f"The config.json of {where} says {name}={said} and its weights say {size}; "
                    "correct the one that is wrong."
                )


@dataclass(frozen=True)
class Published:
    """A published network: float32 weights by name (without prefix), in the order of its layout.

    `chosen` tells which weights of the file they are; `rotary` is the buffer of frequencies where the file has it.
    """

    path: Path
    layout: Layout
    weights: dict[str, Tensor]
    chosen: Literal["ema", "raw", "as stored"]
    rotary: Tensor | None
    config: PublishedConfig

    @property
    def where(self) -> str:
        """The source as an error names it."""
        return f"'{self.path}'"


def read_published(path: Path, which: Which) -> Published:
    """Read a published network and check every key; `which` matters in a Lightning checkpoint, which holds both."""
    if not path.exists():
        raise UnmaskError(f"There is no file or folder '{path}' to convert; check the path.")
    file, config = (_weight_file(path), _read_config(path)) if path.is_dir() else (path, PublishedConfig())
    if file.suffix == ".safetensors":
        return _published(path, _Stored(_load_safetensors(file), lambda tensor: tensor), which, config)
    with TorchFile(file) as opened:
        return _published(path, _stored_in(opened), which, config)


@dataclass(frozen=True)
class _Stored:
    """What a file holds, maybe not read yet: weights by name, how one is read, and the EMA list of a Lightning one."""

    state: Mapping[str, Any]
    read: Callable[[Any], Tensor]
    lightning: bool = False
    shadow: Any = None


def _published(path: Path, stored: _Stored, which: Which, config: PublishedConfig) -> Published:
    where = f"'{path}'"
    state = _without_prefix(stored.state, where)
    rotary = state.pop(ROTARY, None)
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    layout = Layout.of(shapes, where)
    check(shapes, layout, where)
    config.check(layout, where)
    chosen = _shadow(stored.shadow, layout, where) if stored.lightning and which == "ema" else state
    weights = {name: _float32(stored.read(chosen[name]), name, where) for name in layout.parameters()}
    frequencies = None if rotary is None else stored.read(rotary)
    return Published(path, layout, weights, which if stored.lightning else "as stored", frequencies, config)


def _stored_in(file: TorchFile) -> _Stored:
    where = f"'{file.path}'"
    tree = file.tree
    if not isinstance(tree, Mapping):
        raise UnmaskError(f"{where} holds no dictionary of weights; give a checkpoint or a state dict.")
    if "state_dict" not in tree:
        return _Stored(_only_tensors(tree, where), file.tensor)
    state = tree["state_dict"]
    if not isinstance(state, Mapping):
        raise UnmaskError(f"The state_dict of {where} is no dictionary of weights; give a checkpoint or a state dict.")
    state = {name: value for name, value in state.items() if not str(name).startswith(BESIDE_THE_NETWORK)}
    ema = tree.get("ema")
    shadow = ema.get("shadow_params") if isinstance(ema, Mapping) else None
    return _Stored(_only_tensors(state, where), file.tensor, lightning=True, shadow=shadow)


def _only_tensors(state: Mapping[Any, Any], where: str) -> dict[str, StoredTensor]:
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, StoredTensor):
            raise UnmaskError(f"{where} holds {str(name)[:80]!r}, which is no tensor; give a state dict.")
    return dict(state)


def _without_prefix(state: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The state dict under the names of the layout: all of its keys have the prefix, or none."""
    strays = [name for name in state if not name.startswith(PREFIX)]
    if len(strays) == len(state):
        return dict(state)
    if strays:
        raise UnmaskError(
            f"{where} holds the key {strays[0]} and {len(strays) - 1} more that do not begin with '{PREFIX}' as its "
            "other keys do; give an unchanged checkpoint."
        )
    return {name.removeprefix(PREFIX): value for name, value in state.items()}


def _shadow(shadow: Any, layout: Layout, where: str) -> dict[str, Any]:
    """The EMA weights by name; the list has them in the order of the parameters."""
    if not isinstance(shadow, list) or not all(isinstance(value, StoredTensor) for value in shadow):
        raise UnmaskError(
            f"{where} has no list of EMA weights (ema.shadow_params); convert the raw ones (--weights raw)."
        )
    check_shadow([value.shape for value in shadow], layout, where)
    return dict(zip(layout.parameters(), shadow, strict=True))


def _float32(weight: Tensor, name: str, where: str) -> Tensor:
    if not weight.is_floating_point():
        raise UnmaskError(f"{where} holds {name} as {weight.dtype}; give a checkpoint that is not quantised.")
    return weight.to(torch.float32).contiguous()


def _weight_file(folder: Path) -> Path:
    if (folder / CARD).is_file():
        raise UnmaskError(f"'{folder}' is a checkpoint of unmask already; use it as it is, or export it.")
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UnmaskError(f"The folder '{folder}' has no weights ({' or '.join(WEIGHT_FILES)}); give the file itself.")


def _read_config(folder: Path) -> PublishedConfig:
    file = folder / "config.json"
    if not file.is_file():
        return PublishedConfig()
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return PublishedConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(str(part) for part in first["loc"]) or "content"
        raise UnmaskError(f"The {what} in '{file}' cannot be used: {first['msg']}; correct it.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnmaskError(f"'{file}' is not JSON ({error}); fetch it again.") from error


def _load_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise UnmaskError(f"'{file}' is damaged or not safetensors ({error}); fetch it again.") from error
