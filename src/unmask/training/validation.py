"""The validation bound of a run: the averaged weights, all processes together, the same draws every time."""

from __future__ import annotations

from functools import partial

from unmask.bounds import Bound
from unmask.data.rows import Rows
from unmask.likelihood import evaluating, summarise
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
