"""A likelihood bound with one noise draw per row, as `unmask eval` computes each draw, compared with the plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from unmask.likelihood import estimate_bound

from .measure import FORWARD_SHARE, Report, Run, compare, stopwatch
from .plain import plain_bound
from .setup import Workload
from .train import prepare_training


def prepare_bound(work: Workload) -> Run:
    """Prepare our bound, by the first estimator of the objective."""
    setup = work.setup
    network, rows = setup.inference_network(setup.objective.causal), setup.rows(work.count * setup.batch)
    estimator = next(iter(setup.objective.estimators().values()))
    return stopwatch(
        lambda: estimate_bound(network, estimator, setup.schedule, rows, offsets=1, batch_size=setup.batch),
        setup.device,
    )


def prepare_plain_bound(work: Workload) -> Run:
    """Prepare the plain bound of the same sizes."""
    setup = work.setup
    network, rows = setup.plain_network().eval(), setup.pinned_ids(work.count * setup.batch)
    return stopwatch(lambda: plain_bound(network, rows, setup.batch, setup.precision), setup.device)


IMPLEMENTATIONS: dict[str, Callable[[Workload], Run]] = {
    "unmask": prepare_bound,
    "plain": prepare_plain_bound,
    "training": prepare_training,
}


def compare_likelihood(work: Workload, against: Sequence[str] = (), **options: Any) -> Report:
    """Measure our bound and those in `against`, which may include training on as many tokens."""
    trained = {"optimizer": work.optimizer.model_dump(mode="json"), "accumulation": work.accumulation}
    description = {**work.setup.as_dict(), "calls": work.count, "training": trained}
    prepare = {name: IMPLEMENTATIONS[name] for name in ("unmask", *against)}
    flops = {name: work.training_flops * (1 if name == "training" else FORWARD_SHARE) for name in prepare}
    return compare(work, prepare, flops, "call", description, replace(work, count=2), **options)
