"""The validation of a run: the averaged weights, all processes together, the same draws every time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from unmask.bounds import Bound
from unmask.data.rows import Rows
from unmask.foresight import Foresight, foresee
from unmask.likelihood import evaluating, summarise
from unmask.objectives.planner import Planner
from unmask.tally import BATCH, Draws, Tally, tally
from unmask.training.memory import measure_or_explain
from unmask.training.step import Stepper
from unmask.training.world import World

VALIDATION = Draws(offsets=8)


def measure(world: World, stepper: Stepper, rows: Rows) -> Bound:
    """The bound by the estimator that counts. Every process draws its share, and all get the same answer."""
    name, estimator = next(iter(stepper.objective.estimators().items()))
    draws = Draws(offsets=1) if estimator.exact else VALIDATION
    device = stepper.accelerator.device
    ask = partial(stepper.terms, estimator=estimator)
    corrupt = partial(stepper.corrupt, estimator=estimator)

    def answers(count: int) -> Tally:
        return tally(ask, corrupt, rows, replace(draws, batch_size=count), device, share=world.share)

    with stepper.ema.applied(), evaluating(stepper.denoiser):
        own = measure_or_explain(answers, draws.at_once(rows.length, device), rows.length, stepper, world)
    found = Tally(world.sum_array(own.nats), world.sum_array(own.tokens))
    return summarise(name, found, rows, draws, estimator.exact)


def measure_foresight(world: World, stepper: Stepper, rows: Rows) -> Foresight | None:
    """How well the planner of a run foresees what its network gets right; None in a run that trains none.

    Every process asks its network about all rows.
    """
    if not isinstance(stepper.objective, Planner):
        return None
    with stepper.averaged() as denoiser:
        answers = partial(foresee, denoiser, stepper.objective, stepper.schedule, rows, 0)
        return measure_or_explain(answers, BATCH, rows.length, stepper, world)
