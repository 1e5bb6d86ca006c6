"""What the verbs share that let a checkpoint and its twin do the same items in several ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import progress, room_for
from unmask.cli.ordering import sampler_spec

if TYPE_CHECKING:
    from unmask.evaluation.contests.contest import Contest
    from unmask.evaluation.contests.report import Row
    from unmask.evaluation.contests.ways import Way
    from unmask.generation import MaskedDiffusionLM

    Entry = tuple[MaskedDiffusionLM, Sequence[Way]]


@dataclass(frozen=True)
class Ways:
    """The ways in which items are done, every combination of what is named."""

    order: Annotated[
        list[str] | None,
        typer.Option(
            help="uniform, left_to_right, confidence, margin, entropy, threshold, entropy_bounded or planner; "
            "repeatable. Without it, and without --sampler, the first six.",
        ),
    ] = None
    sampler: Annotated[
        list[str] | None, typer.Option(help="Any sampler, as 'name: remdm, strategy: loop'; repeatable.")
    ] = None
    rule: Annotated[
        list[str] | None, typer.Option(help="Tokens: greedy or stochastic; repeatable. Without it both.")
    ] = None
    steps: Annotated[
        list[str] | None,
        typer.Option(help="At most this many network calls; repeatable. 'none', and without it: one token a call."),
    ] = None

    def chosen(self) -> Callable[[MaskedDiffusionLM], list[Way]]:
        """What is asked for, as ways of a model; bad words are refused now."""
        from unmask.evaluation.contests.ways import ORDERS, parse_rules, ways_of
        from unmask.evaluation.generation.plan import parse_steps

        rules, counts = parse_rules(self.rule or ["greedy", "stochastic"]), parse_steps(self.steps or ["none"])
        orders = self.order or ([] if self.sampler else list(ORDERS))
        specs = [spec for spec in map(sampler_spec, self.sampler or []) if spec is not None]
        return lambda lm: ways_of(lm, orders, specs, rules, counts)


def hold(contest: Contest, entries: Sequence[Entry], doing: str, batch_size: int | None, quiet: bool) -> None:
    """Let models do all items, each in its ways, once it is known that every one of them may."""
    for lm, _ in entries:
        contest.admit(lm)
    work = contest.size * sum(len(ways) for _, ways in entries)
    with room_for(batch_size), progress(doing, work, quiet=quiet) as advance:
        for lm, ways in entries:
            contest.enter(lm, ways, advance)


def steps_word(row: Row) -> str:
    """The number of calls that was asked for, as a table says it."""
    return "any" if row.adaptive else "-" if row.steps is None else str(row.steps)
