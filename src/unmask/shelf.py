"""The models that ship with the package, by name; each is a checkpoint folder under `shipped/`."""

from __future__ import annotations

from importlib.resources import files
from os import PathLike
from pathlib import Path

from unmask.errors import UnmaskError

ROOT = Path(str(files("unmask") / "shipped"))
DEFAULT = "stories"
"""The model that is meant where none is named."""
TWIN = "stories-ar"
"""Its autoregressive twin."""
CARD = "unmask.json"
"""The file by which a folder is known as a checkpoint."""


def names() -> list[str]:
    """The models that are there."""
    return sorted(card.parent.name for card in ROOT.glob(f"*/{CARD}"))


def find(what: str | Path | None = None) -> Path:
    """The folder of a checkpoint: one on disk, a model that ships by its name, or the default where none is named.

    A checkpoint folder on disk comes before a shipped model of the same name; a folder that is none does not.
    """
    named = DEFAULT if what is None else what
    if not isinstance(named, str | PathLike):
        raise UnmaskError(f"{named!r} is no name of a checkpoint; give a folder or a model that ships, as a string.")
    path = Path(named)
    if str(path) in names() and (what is None or not is_checkpoint(path)):
        return ROOT / path
    if what is None or not str(named) or not path.exists():
        raise UnmaskError(
            f"There is no checkpoint at '{named}'; give the folder that 'unmask train' or 'convert' wrote, or a model "
            f"that ships with the package: {', '.join(names()) or 'here are none'}."
        )
    return path


def is_checkpoint(what: str | Path) -> bool:
    """Whether a folder on disk is a checkpoint, or a run that shows one."""
    return (Path(what) / CARD).is_file()


def is_named(what: str) -> bool:
    """Whether a word names a checkpoint: on disk or among the shipped models."""
    return is_checkpoint(what) or what in names()
