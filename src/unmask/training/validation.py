"""The validation bound of a run: the averaged weights, all processes together, the same draws every time."""

from __future__ import annotations

from functools import partial

from unmask.bounds import Bound
from unmask.data.rows import Rows
from unmask.likelihood import Draws, Tally, evaluating, summarise, tally
from unmask.training.step import Stepper
from unmask.training.world import World

VALIDATION = Draws(offsets=8, batch_size=32)


def measure(world: World, stepper: Stepper, rows: Rows) -> Bound:
    """The bound by the estimator that counts. Every process draws its share, and all get the same answer."""
    name, estimator = next(iter(stepper.objective.estimators().items()))
    draws = Draws(offsets=1, batch_size=VALIDATION.batch_size) if estimator.exact else VALIDATION
    terms_of = partial(stepper.terms, estimator=estimator)
    with stepper.ema.applied(), evaluating(stepper.denoiser):
        own = tally(terms_of, rows, draws, stepper.accelerator.device, share=world.share)
    found = Tally(world.sum_array(own.nats), world.sum_array(own.tokens))
    return summarise(name, found, rows, draws, estimator.exact)
