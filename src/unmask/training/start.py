"""Where a run begins: in a new folder, at its newest checkpoint, or at the newest one that is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unmask.config import Recipe
from unmask.errors import UnmaskError
from unmask.files import must_be_new
from unmask.training.checkpoints import Progressed, read_progressed
from unmask.training.checksums import damage
from unmask.training.runfolder import all_checkpoints, clear_abandoned, find_latest, set_aside
from unmask.training.same_run import check_same_run

Resume = bool | Literal["auto"]


@dataclass(frozen=True)
class Start:
    """The checkpoint to go on from (None: the beginning) and what it says; `notices` are for the person who waits."""

    checkpoint: Path | None = None
    progressed: Progressed | None = None
    notices: tuple[str, ...] = ()


def find_start(out: Path, recipe: Recipe, resume: Resume) -> Start:
    """Look into the folder of a run. `auto` begins it where there is nothing to resume, and steps over damage."""
    if resume and find_latest(out) is not None:
        return _resumed(out, recipe, step_over_damage=resume == "auto")
    if resume is True:
        raise UnmaskError(
            f"'{out}' has no checkpoint to resume from; leave out --resume, or begin where there is none with "
            "--resume auto."
        )
    clear_abandoned(out)
    other = "choose another folder"
    must_be_new(out, other if out.is_file() else f"{other}, or add --resume to continue the run in it")
    return Start()


def _resumed(out: Path, recipe: Recipe, step_over_damage: bool) -> Start:
    problems: list[tuple[Path, str]] = []
    for checkpoint, problem in _newest_first(out):
        if problem is None:
            progressed = read_progressed(checkpoint)
            check_same_run(out, progressed.recipe, recipe, progressed.step)
            return Start(checkpoint, progressed, _set_aside(problems, checkpoint))
        if not step_over_damage:
            raise _damaged(out, checkpoint, problem)
        problems.append((checkpoint, problem))
    raise UnmaskError(f"Every checkpoint in '{out}' is damaged; train into a new folder.")


def _newest_first(out: Path) -> Iterator[tuple[Path, str | None]]:
    for checkpoint in reversed(all_checkpoints(out)):
        yield checkpoint, damage(checkpoint)


def _set_aside(problems: list[tuple[Path, str]], good: Path) -> tuple[str, ...]:
    for checkpoint, _ in problems:
        set_aside(checkpoint)
    return tuple(
        f"The checkpoint {checkpoint.name} is damaged ({problem}) and was set aside; going on from {good.name}."
        for checkpoint, problem in problems
    )


def _damaged(out: Path, checkpoint: Path, problem: str) -> UnmaskError:
    good = next((path for path, found in _newest_first(out) if found is None), None)
    remedy = (
        f"the last good one is '{good}': go on from it with --resume auto"
        if good
        else "there is no other one, so train into a new folder"
    )
    return UnmaskError(f"The checkpoint '{checkpoint}' is damaged ({problem}); {remedy}.")
