"""Ship a run: a small checkpoint in bf16 shards with its recipe and a model card.

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
from unmask.convert.model_card import RECIPE, model_card, read_measurements, read_run
from unmask.errors import UnmaskError
from unmask.io import atomic_folder, check_new_folder

README = "README.md"


@dataclass(frozen=True)
class Export:
    """A shipped model; `bytes` is the size of the whole folder."""

    path: str
    parameters: int
    shards: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return asdict(self)


def ship(
    run: str | Path,
    out: str | Path,
    *,
    bounds: Sequence[str | Path] = (),
    judged: str | Path | None = None,
    entropy: str | Path | None = None,
    about: str | Path | None = None,
    shard_megabytes: int = 10,
) -> Export:
    """Write the newest checkpoint of a run, without its training state, into a new folder.

    Args:
        run: A folder written by `unmask train`.
        out: A new folder, or one written by `ship`, which is replaced.
        bounds: Files written by `unmask eval --json`; the model card lists them after the run's validation.
        judged: A file written by `unmask eval generation --json`.
        entropy: JSON with the `bits_per_char` of the source, and optionally `stderr` and `how` it is known.
        about: Markdown that describes the data.
        shard_megabytes: Size of the largest weight file.
    """
    run, out = Path(run), Path(out)
    if (out / "checkpoints").exists():
        raise UnmaskError(f"'{out}' is the folder of a run; name another one.")
    if not (is_checkpoint(out) and (out / README).is_file()):
        check_new_folder(out, "name a new folder, or one written by 'unmask ship'")
    measured = read_measurements(bounds, judged, entropy, about)
    record = read_run(run)
    checkpoint = record.checkpoint
    with atomic_folder(out) as folder:
        others = [path for path in checkpoint.path.iterdir() if path.is_file() and ".safetensors" not in path.name]
        for file in (*others, run / RECIPE):
            shutil.copyfile(file, folder / file.name)
        network = checkpoint.model.to(torch.bfloat16)
        write_checkpoint(folder, network, None, checkpoint.config, max_shard_size=f"{shard_megabytes}MB")
        shards = [path.stat().st_size for path in sorted(folder.glob("*.safetensors"))]
        (folder / README).write_text(model_card(out.name, record, measured, shards), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
    parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    return Export(str(out), parameters, len(shards), size)
