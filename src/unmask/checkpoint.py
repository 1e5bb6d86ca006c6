"""A checkpoint is a folder: config.json and model.safetensors, tokenizer files, and unmask.json, the card.

The card holds what the network does not: the schedule and objective it was trained on, the length policy, and the
protocol under which its figures count. `unmask.load` and the Auto classes of transformers open the same folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask import __version__
from unmask.data.length_policies import Packed
from unmask.errors import UnmaskError
from unmask.io import atomic_folder
from unmask.models.build import first_line, load_network, silence_transformers
from unmask.objectives.subs import Subs
from unmask.registry import field
from unmask.schedules import LogLinear

SHIPPED = Path(str(files("unmask") / "shipped"))
DEFAULT_MODEL = "stories"
"""The model that is meant where none is named."""
DEFAULT_AR_MODEL = "stories-ar"
"""Its autoregressive twin."""
CONFIG_FILE = "unmask.json"
"""The file by which a folder is known as a checkpoint."""


def shipped_models() -> list[str]:
    """The models that are there."""
    return sorted(file.parent.name for file in SHIPPED.glob(f"*/{CONFIG_FILE}"))


def find_checkpoint(what: str | Path | None = None) -> Path:
    """The folder of a checkpoint: one on disk, a model that ships by its name, or the default where none is named.

    A checkpoint folder on disk comes before a shipped model of the same name; a folder that is none does not.
    """
    named = DEFAULT_MODEL if what is None else what
    if not isinstance(named, str | PathLike):
        raise UnmaskError(f"{named!r} is no name of a checkpoint; give a folder or a model that ships, as a string.")
    path = Path(named)
    if str(path) in shipped_models() and (what is None or not is_checkpoint(path)):
        return SHIPPED / path
    if what is None or not str(named) or not path.exists():
        raise UnmaskError(
            f"There is no checkpoint at '{named}'; give the folder that 'unmask train' or 'convert' wrote, or a model "
            f"that ships with the package: {', '.join(shipped_models()) or 'here are none'}."
        )
    return path


def is_checkpoint(what: str | Path) -> bool:
    """Whether a folder on disk is a checkpoint, or a run that shows one."""
    return (Path(what) / CONFIG_FILE).is_file()


def is_checkpoint_name(what: str) -> bool:
    """Whether a word names a checkpoint: on disk or among the shipped models."""
    return is_checkpoint(what) or what in shipped_models()


class CheckpointConfig(BaseModel):
    """What unmask.json holds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]
    objective: field("objective") = Subs()  # type: ignore[valid-type]
    policy: field("policy") = Packed()  # type: ignore[valid-type]
    length: int = Field(ge=1)
    protocol: dict[str, Any] = Field(default_factory=dict)
    """How the data were made: source, tokenizer, split; and where converted weights came from."""
    version: str = __version__


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: the Hugging Face model (in eval mode), its tokenizer (None if it has none), its card."""

    model: Any
    tokenizer: Any
    config: CheckpointConfig
    path: Path


def write_checkpoint(
    folder: Path,
    model: Any,
    tokenizer: Any,
    config: CheckpointConfig,
    state_dict: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Put the files of a checkpoint into an existing folder; `state_dict` replaces the model's own weights.

    The options are those of `save_pretrained`, such as `max_shard_size`.
    """
    with silence_transformers():
        model.save_pretrained(folder, state_dict=state_dict, **options)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    (folder / CONFIG_FILE).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")


def save_checkpoint(folder: str | Path, model: Any, tokenizer: Any, config: CheckpointConfig) -> None:
    """Write a checkpoint atomically."""
    with atomic_folder(Path(folder)) as temporary:
        write_checkpoint(temporary, model, tokenizer, config)


def load_checkpoint(folder: str | Path | None = None) -> Checkpoint:
    """Open a checkpoint folder, a run folder, which shows its last checkpoint, or a shipped model (see `shelf`).

    Weights are opened in float32, in whatever precision they were written.
    """
    path = find_checkpoint(folder)
    config = read_checkpoint_config(path)
    model = load_network(path, causal=config.objective.causal, dtype=torch.float32)
    return Checkpoint(model.eval(), _open_tokenizer(path), config, path)


def read_checkpoint_config(path: Path) -> CheckpointConfig:
    """The card of a checkpoint folder."""
    file = path / CONFIG_FILE
    if not file.is_file():
        raise UnmaskError(
            f"'{path}' is not a checkpoint: it has no {CONFIG_FILE}; make one with 'unmask train' or 'convert'."
        )
    try:
        return CheckpointConfig(**json.loads(file.read_text(encoding="utf-8")))
    except (ValidationError, json.JSONDecodeError, TypeError) as error:
        raise UnmaskError(f"'{file}' cannot be read ({first_line(error)}); restore it or train again.") from error


def _open_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    if not (path / "tokenizer_config.json").is_file():
        return None
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise UnmaskError(f"The tokenizer in '{path}' cannot be opened ({first_line(error)}).") from error
