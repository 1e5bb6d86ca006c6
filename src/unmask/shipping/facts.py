"""What is recorded about a run and measured of its model, read from files; nothing here is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unmask import checkpoint
from unmask.bounds import Bound
from unmask.checkpoint import Loaded
from unmask.config import Recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.evaluation.generation.bootstrap import Estimate
from unmask.evaluation.generation.plan import told_apart
from unmask.training.checkpoints import Progressed, read_progressed
from unmask.training.log import LOG, read_log
from unmask.training.runfolder import find_latest

RECIPE = "recipe.yaml"
JUDGED = ("perplexity", "entropy", "repetition", "distinct_1", "characters", "calls")
"""The figures of judged texts that a model card shows."""


@dataclass(frozen=True)
class Facts:
    """What a run says of itself. `validation` is the bound of its last weights, before they were rounded."""

    recipe: Recipe
    progressed: Progressed
    network: Any
    vocabulary: int
    parameters: int
    validation: Bound | None
    version: str

    @property
    def rows(self) -> int:
        """Rows of the training text; the fingerprint of the data begins with them."""
        return int(self.progressed.data.split(" ")[0])

    @property
    def tokens(self) -> int:
        """Tokens that were seen, every row at its full length."""
        return self.progressed.samples * self.recipe.data.length

    @property
    def epochs(self) -> float:
        """How often each row was seen."""
        return self.progressed.samples / self.rows


@dataclass(frozen=True)
class Entropy:
    """The source's own bits per character, which no model can go below, and how they are known."""

    bits_per_char: float
    stderr: float | None = None
    how: str = ""


@dataclass(frozen=True)
class Evidence:
    """What was measured after the run, by other commands. `bounds` are named by their files.

    `judged` is a report of `unmask eval generation`, its figures as estimates.
    """

    bounds: dict[str, Bound] = field(default_factory=dict)
    judged: dict[str, Any] | None = None
    entropy: Entropy | None = None
    about: str = ""


def read_facts(run: Path) -> tuple[Facts, Loaded]:
    """A run's newest checkpoint and what the run has recorded of it."""
    path = find_latest(run)
    if path is None or not (run / LOG).is_file() or not (run / RECIPE).is_file():
        raise UnmaskError(f"'{run}' is not the folder of a run with a checkpoint; give one that 'unmask train' wrote.")
    loaded = checkpoint.load(path)
    progressed = read_progressed(path)
    facts = Facts(
        recipe=read_recipe(run / RECIPE),
        progressed=progressed,
        network=loaded.model.config,
        vocabulary=loaded.model.config.vocab_size,
        parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        validation=_validated(run, progressed.step),
        version=loaded.card.version,
    )
    return facts, loaded


def read_evidence(
    bounds: Sequence[str | Path] = (),
    judged: str | Path | None = None,
    entropy: str | Path | None = None,
    about: str | Path | None = None,
) -> Evidence:
    """The files that other commands wrote about a model."""
    names = told_apart([Path(path).stem for path in bounds], [str(path) for path in bounds])
    return Evidence(
        bounds={name: _bound(Path(path)) for name, path in zip(names, bounds, strict=True)},
        judged=None if judged is None else _judged(Path(judged)),
        entropy=None if entropy is None else _entropy(Path(entropy)),
        about="" if about is None else _text(Path(about)).strip(),
    )


def _validated(run: Path, step: int) -> Bound | None:
    """The bound that the log holds for the weights of a step."""
    records = [one for one in read_log(run) if "validation" in one and one["step"] == step]
    return Bound.from_dict(records[-1]["validation"]) if records else None


def _bound(path: Path) -> Bound:
    try:
        bound: Bound = TypeAdapter(Bound).validate_python(_json(path)["headline"])
    except (KeyError, TypeError, ValidationError) as error:
        raise UnmaskError(f"'{path}' holds no bound; give a file that 'unmask eval --json' wrote.") from error
    return bound


def _judged(path: Path) -> dict[str, Any]:
    values = _json(path)
    try:
        return {
            "judge": str(values["judge"]["name"]),
            "n": int(values["n"]),
            "seed": int(values["seed"]),
            "rule": dict(values["rule"] or {}),
            "rows": [_judged_row(row) for row in values["rows"]],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UnmaskError(
            f"'{path}' holds no judged texts; give what 'unmask eval generation --json' wrote."
        ) from error


def _judged_row(row: dict[str, Any]) -> dict[str, Any]:
    figure: TypeAdapter[Estimate | None] = TypeAdapter(Estimate | None)
    figures = {name: figure.validate_python(row[name]) for name in JUDGED}
    return {"name": str(row["name"]), "steps": row["steps"], **figures}


def _entropy(path: Path) -> Entropy:
    try:
        entropy: Entropy = TypeAdapter(Entropy).validate_python(vars(Entropy(**_json(path))))
    except (TypeError, ValidationError) as error:
        raise UnmaskError(
            f"'{path}' does not tell a source's entropy; write bits_per_char and, if you like, stderr and how."
        ) from error
    return entropy


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise UnmaskError(f"'{path}' is not JSON; give a file that was written with --json.") from error


def _text(path: Path) -> str:
    if not path.is_file():
        raise UnmaskError(f"There is no file '{path}'; name one that exists.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnmaskError(f"'{path}' is not UTF-8 text; convert it first.") from error
