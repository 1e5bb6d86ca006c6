"""A checkpoint is a folder: config.json and model.safetensors, tokenizer files, and unmask.json, the card.

The card holds what the network does not: the schedule and objective it was trained on, the length policy, and the
protocol under which its figures count. `unmask.load` and the Auto classes of transformers open the same folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask import shelf
from unmask.data.policies import Packed
from unmask.errors import UnmaskError
from unmask.files import atomic_folder
from unmask.models.opening import first_line, open_network, quietly
from unmask.objectives.subs import Subs
from unmask.registry import field
from unmask.schedules import LogLinear
from unmask.version import __version__

CARD = shelf.CARD


class Card(BaseModel):
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
class Loaded:
    """An opened checkpoint: the Hugging Face model (in eval mode), its tokenizer (None if it has none), its card."""

    model: Any
    tokenizer: Any
    card: Card
    path: Path


def write(
    folder: Path, model: Any, tokenizer: Any, card: Card, state_dict: dict[str, Any] | None = None, **options: Any
) -> None:
    """Put the files of a checkpoint into an existing folder; `state_dict` replaces the model's own weights.

    The options are those of `save_pretrained`, such as `max_shard_size`.
    """
    with quietly():
        model.save_pretrained(folder, state_dict=state_dict, **options)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    (folder / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


def save(folder: str | Path, model: Any, tokenizer: Any, card: Card) -> None:
    """Write a checkpoint atomically."""
    with atomic_folder(Path(folder)) as temporary:
        write(temporary, model, tokenizer, card)


def load(folder: str | Path | None = None) -> Loaded:
    """Open a checkpoint folder, a run folder, which shows its last checkpoint, or a shipped model (see `shelf`).

    Weights are opened in float32, in whatever precision they were written.
    """
    path = shelf.find(folder)
    card = read_card(path)
    model = open_network(path, causal=card.objective.causal, dtype=torch.float32)
    return Loaded(model.eval(), _open_tokenizer(path), card, path)


def read_card(path: Path) -> Card:
    """The card of a checkpoint folder."""
    file = path / CARD
    if not file.is_file():
        raise UnmaskError(f"'{path}' is not a checkpoint: it has no {CARD}; make one with 'unmask train' or 'convert'.")
    try:
        return Card(**json.loads(file.read_text(encoding="utf-8")))
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
