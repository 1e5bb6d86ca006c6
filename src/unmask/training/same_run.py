"""Whether a recipe continues a run: what shapes the weights must be the same, what only looks and saves may change."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.config import Recipe, parse_recipe
from unmask.data.rows import Rows
from unmask.errors import UnmaskError

MAY_CHANGE = (
    "expect",
    "training.steps",
    "training.accumulation",
    "training.shard",
    "training.precision",
    "training.log_every",
    "training.validate_every",
    "training.validation_rows",
    "training.save_every",
    "training.keep",
    "training.keep_best",
    "training.trackers",
    "training.sample_every",
    "training.samples",
    "training.deterministic",
)
FINGERPRINT_ROWS = 64
_ABSENT = "nothing"


def check_same_run(out: Path, saved: dict[str, Any], recipe: Recipe, step: int) -> None:
    """Refuse to resume a run, `step` steps long, with another model, other data or another course of learning."""
    before = parse_recipe(saved)
    for key, old, new in _differences(before.model_dump(mode="json"), recipe.model_dump(mode="json")):
        if not any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE):
            raise UnmaskError(
                f"'{out}' was trained with {key}={old} and the recipe now says {new}; "
                "set it back, or train into a new folder without --resume."
            )
    _check_same_rate(out, before, recipe, step)


def _check_same_rate(out: Path, before: Recipe, now: Recipe, step: int) -> None:
    """Another number of steps is another run once the learning rate has begun to fall towards the last of them."""
    old, new = (recipe.optimizer.rate(step - 1, recipe.training.steps) for recipe in (before, now))
    if old != new:
        raise UnmaskError(
            f"The learning rate of '{out}' has been falling towards its last step, {before.training.steps}, so it "
            f"cannot go on to {now.training.steps}; begin a new run from its weights with --from {out}."
        )


def fingerprint(rows: Rows) -> str:
    """What tells a table of rows from another one: how many there are, and a checksum of some of them."""
    some = rows.spread(FINGERPRINT_ROWS)
    return f"{len(rows)} rows, {zlib.crc32(some[:].input_ids.tobytes()):08x}"


def check_same_data(out: Path, saved: str, rows: Rows) -> None:
    """Refuse to resume on data that have changed under the same name."""
    if saved != (now := fingerprint(rows)):
        raise UnmaskError(
            f"'{out}' was trained on other data ({saved}) than its source now gives ({now}); "
            "put the text back, or train into a new folder without --resume."
        )


def check_same_optimizer(out: Path, saved: str | None, now: str) -> None:
    """Refuse to go on where the run's optimiser cannot work and another one would take its place."""
    if saved is not None and saved != now:
        raise UnmaskError(
            f"'{out}' was trained with {saved}, which cannot work as this was launched ({now} would take its place); "
            f"resume it as it was launched before, or begin a new run from its weights with --from {out}."
        )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of everything that differs, in the order of the recipe."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(name for name in old if name not in new)]:
            inner = f"{key}.{name}" if key else name
            yield from _differences(old.get(name, _ABSENT), new.get(name, _ABSENT), inner)
    elif old != new:
        yield key, old, new
