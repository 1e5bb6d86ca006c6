"""The folder of a run, which opens as a checkpoint itself.

OUT/checkpoints/step-00000500/ are whole checkpoints, OUT/latest points at the newest, OUT/best at the one with the
lowest validation bound, and OUT/config.json, OUT/model.safetensors and so on point into the newest. Where links are not
possible the files are copied instead.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

CHECKPOINTS = "checkpoints"
LATEST = "latest"
BEST = "best"
_STEP = re.compile(r"step-(\d{8,})")


def checkpoint_path(out: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return out / CHECKPOINTS / f"step-{step:08d}"


def all_checkpoints(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first. A name is only taken by a whole one."""
    folder = out / CHECKPOINTS
    found = [(_STEP.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def find_latest(out: Path) -> Path | None:
    """The newest checkpoint of a run, or None."""
    return next(reversed(all_checkpoints(out)), None)


def clear_abandoned(out: Path) -> None:
    """Remove a run that never came to its first checkpoint, so that the same command can begin it again."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names and names <= {"recipe.yaml", "log.jsonl", "trackers", CHECKPOINTS} and find_latest(out) is None:
        shutil.rmtree(out)


def set_aside(checkpoint: Path) -> None:
    """Take a damaged checkpoint out of the run, but leave it for a person to look at."""
    os.replace(checkpoint, checkpoint.with_name(f"damaged-{checkpoint.name}"))


def publish(out: Path, checkpoint: Path) -> None:
    """Make OUT show this checkpoint. A reader of OUT/latest sees the old one or the new one."""
    names = [path.name for path in checkpoint.iterdir() if path.is_file()]
    try:
        _link(out / LATEST, checkpoint.relative_to(out))
        for name in names:
            _link(out / name, Path(LATEST, name))
    except OSError:
        for name in names:
            _copy(checkpoint / name, out / name)


def show_best(out: Path, checkpoint: Path) -> None:
    """Make OUT/best point at a checkpoint, where the file system has links."""
    with suppress(OSError):
        _link(out / BEST, checkpoint.relative_to(out))


def prune(out: Path, keep: int, spared: Collection[Path] = ()) -> None:
    """Remove all but the newest `keep` checkpoints and the spared ones, and what a killed run left half written."""
    for path in (out / CHECKPOINTS).glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in all_checkpoints(out)[:-keep]:
        if path not in spared:
            doomed = path.with_name(f".{path.name}.old")
            os.replace(path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _link(path: Path, target: Path) -> None:
    """A relative symbolic link that takes its name in one step."""
    if path.is_symlink() and Path(os.readlink(path)) == target:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


def _copy(source: Path, path: Path) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    shutil.copyfile(source, temporary)
    os.replace(temporary, path)
