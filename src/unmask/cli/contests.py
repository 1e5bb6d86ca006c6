"""What the verbs share that let a checkpoint and its twin do the same items in several ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.ordering import sampler_spec

if TYPE_CHECKING:
    from unmask.evaluation.puzzles.report import Row
    from unmask.evaluation.puzzles.solving import Way
    from unmask.generation import MaskedDiffusionLM

WayOrders = Annotated[
    list[str] | None,
    typer.Option(
        "--order",
        help="uniform, left_to_right, confidence, margin, entropy, threshold, entropy_bounded or planner; repeatable. "
        "Without it, and without --sampler, the first six.",
    ),
]
WaySamplers = Annotated[
    list[str] | None,
    typer.Option("--sampler", help="Any sampler, as 'name: remdm, strategy: loop'; repeatable."),
]
WayRules = Annotated[
    list[str] | None, typer.Option("--rule", help="Tokens: greedy or stochastic; repeatable. Without it both.")
]
WaySteps = Annotated[
    list[str] | None,
    typer.Option(
        "--steps", help="At most this many network calls; repeatable. 'none', and without it: one token a call."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Write what --json prints into this file as well.")]


def chosen_ways(
    orders: list[str] | None, samplers: list[str] | None, rules: list[str] | None, steps: list[str] | None
) -> Callable[[MaskedDiffusionLM], list[Way]]:
    """What is asked for, as ways of a model; bad words are refused now."""
    from unmask.evaluation.generation.plan import parse_steps
    from unmask.evaluation.puzzles.contest import ORDERS, parse_rules, ways_of

    parsed, counts = parse_rules(rules or ["greedy", "stochastic"]), parse_steps(steps or ["none"])
    named = orders or ([] if samplers else list(ORDERS))
    specs = [spec for spec in map(sampler_spec, samplers or []) if spec is not None]
    return lambda lm: ways_of(lm, named, specs, parsed, counts)


def steps_word(row: Row) -> str:
    """The number of calls that was asked for, as a table says it."""
    return "any" if row.adaptive else "-" if row.steps is None else str(row.steps)


def write_contest(report: dict[str, Any], out: Path | None) -> None:
    """What --json prints, as a file, if one is named."""
    from unmask.files import atomic_text

    if out is not None:
        atomic_text(out, json.dumps(report, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def opened(paths: Sequence[str | None], device: str | None, dtype: Any) -> list[MaskedDiffusionLM]:
    """The checkpoints that are named."""
    from unmask.generation import load

    return [load(path, device=device, dtype=dtype) for path in paths if path is not None]
