"""The validation of a run: the averaged weights, all processes together, the same draws every time."""

from __future__ import annotations

from functools import partial

from unmask.bounds import Bound
from unmask.data.rows import Rows
from unmask.foresight import Foresight, foresee
from unmask.likelihood import evaluating, summarise
from unmask.objectives.planner import Planner
from unmask.tally import Draws, Tally, tally
from unmask.training.step import Stepper
from unmask.training.world import World

VALIDATION = Draws(offsets=8)


def measure(world: World, stepper: Stepper, rows: Rows) -> Bound:
    """The bound by the estimator that counts. Every process draws its share, and all get the same answer."""
    name, estimator = next(iter(stepper.objective.estimators().items()))
    draws = Draws(offsets=1) if estimator.exact else VALIDATION
    ask = partial(stepper.terms, estimator=estimator)
    corrupt = partial(stepper.corrupt, estimator=estimator)
    with stepper.ema.applied(), evaluating(stepper.denoiser):
        own = tally(ask, corrupt, rows, draws, stepper.accelerator.device, share=world.share)
    found = Tally(world.sum_array(own.nats), world.sum_array(own.tokens))
    return summarise(name, found, rows, draws, estimator.exact)


def measure_foresight(stepper: Stepper, rows: Rows) -> Foresight | None:
    """How well the planner of a run foresees what its network gets right; None in a run that trains none.

    Every process asks its network about all rows.
    """
    if not isinstance(stepper.objective, Planner):
        return None
    with stepper.averaged() as denoiser:
        return foresee(denoiser, stepper.objective, stepper.schedule, rows)
