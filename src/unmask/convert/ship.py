"""A run made ready to be handed on: a small checkpoint in bf16 shards with its recipe and a model card.

>>> from unmask.convert.ship import ship
>>> ship("runs/mine", "models/mine", bounds=["eval.json"], judged="judged.json")
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoint import is_checkpoint, write_checkpoint
from unmask.convert.model_card import RECIPE, Facts, Measurements, model_card, read_evidence, read_facts
from unmask.errors import UnmaskError
from unmask.io import atomic_folder, check_new_folder

SHARD_MEGABYTES = 10
README = "README.md"


@dataclass(frozen=True)
class Export:
    """What was packed: `bytes` are those of the whole folder."""

    path: str
    parameters: int
    shards: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def ship(
    run: str | Path,
    out: str | Path,
    *,
    bounds: Sequence[str | Path] = (),
    judged: str | Path | None = None,
    entropy: str | Path | None = None,
    about: str | Path | None = None,
    shard_megabytes: int = SHARD_MEGABYTES,
) -> Export:
    """Write the newest checkpoint of a run, without its training state, into a folder of its own.

    Args:
        run: A folder that `unmask train` wrote.
        out: A new folder, or one that was shipped before, which is replaced.
        bounds: Files that `unmask eval --json` wrote; the model card shows them beside the run's own validation.
        judged: A file that `unmask eval generation --json` wrote.
        entropy: What is known of the source: JSON with `bits_per_char`, and perhaps `stderr` and `how` it was found.
        about: Markdown on the data, for what no log records.
        shard_megabytes: The largest file of weights.
    """
    out = Path(out)
    _check_place(out)
    evidence = read_evidence(bounds, judged, entropy, about)
    facts, loaded = read_facts(Path(run))
    with atomic_folder(out) as folder:
        for file in (*_beside_weights(loaded.path), Path(run) / RECIPE):
            shutil.copyfile(file, folder / file.name)
        network = loaded.model.to(torch.bfloat16)
        write_checkpoint(folder, network, None, loaded.config, max_shard_size=f"{shard_megabytes}MB")
        _write_card(folder, out.name, facts, evidence)
    return Export(str(out), facts.parameters, len(_shards(out)), sum(_size(path) for path in out.iterdir()))


def _check_place(out: Path) -> None:
    """Let a parcel be packed again, and nothing else be written over."""
    if (out / "checkpoints").exists():
        raise UnmaskError(f"'{out}' is the folder of a run; name a new one to ship it into.")
    if not (is_checkpoint(out) and (out / README).is_file()):
        check_new_folder(out, "name a new folder, or one that 'unmask ship' wrote")


def _write_card(folder: Path, name: str, facts: Facts, evidence: Measurements) -> None:
    weights = [_size(path) for path in _shards(folder)]
    (folder / README).write_text(model_card(name, facts, evidence, weights), encoding="utf-8")


def _beside_weights(folder: Path) -> list[Path]:
    """The files of a checkpoint that are no weights: the tokenizer's, as they were written first."""
    return [path for path in folder.iterdir() if path.is_file() and ".safetensors" not in path.name]


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _size(path: Path) -> int:
    return path.stat().st_size


__all__ = ["Export", "ship"]
