"""A loss or gradient that is not finite ends a run: when, where in the data, and what became of the weights."""

from __future__ import annotations

import math
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.training.data import Feed
from unmask.training.layout import local
from unmask.training.runfolder import find_latest
from unmask.training.step import Stepper
from unmask.training.world import World

SHOWN = 8


def check_finite(stepper: Stepper, feed: Feed, world: World, out: Path) -> None:
    """Stop before a ruined network is logged, judged or saved. Waits for the device."""
    step = stepper.meter.first_bad_step()
    if step is None:
        return
    latest = find_latest(out)
    good = f"the last good checkpoint is '{latest}'" if latest else "there is no checkpoint yet"
    ruin = stepper.meter.ruin()
    what = "gradient" if math.isfinite(ruin.loss) else "loss"
    raise UnmaskError(
        f"The {what} of step {step} is not finite ({_suspects(stepper, feed, world, step)}; loss {ruin.loss:.4g}, "
        f"gradient norm {ruin.grad_norm:.4g} after {ruin.grad_norm_before:.4g} the step before; the weights are "
        f"{_weights_now(stepper, world)}), and {good}; train again with a lower optimizer.learning_rate or with "
        "training.precision=float32."
    )


def _suspects(stepper: Stepper, feed: Feed, world: World, step: int) -> str:
    """The samples of a bad step that are to blame, by their global index and their row in the training data.

    Where every loss is finite, none is known to be and all are named.
    """
    ruined = feed.samples(step - 1, stepper.meter.ruined_places())
    samples = sorted(sample for some in world.gather(ruined) for sample in some)
    if not samples:
        first = (step - 1) * feed.batch_size
        return f"samples {first} to {first + feed.batch_size - 1}"
    shown = ", ".join(f"{sample} (row {feed.row(sample)})" for sample in samples[:SHOWN])
    return f"samples {shown}{' and more' if len(samples) > SHOWN else ''}"


def _weights_now(stepper: Stepper, world: World) -> str:
    """Whether a bad step has spoilt the network, or only what was reported of it."""
    whole = all(bool(local(one).isfinite().all()) for one in stepper.parameters.values())
    return "finite still" if all(world.gather(whole)) else "ruined too"
