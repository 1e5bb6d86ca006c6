"""The runs and measurements of an experiment, shared by several processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from unmask.data.protocols import get_protocol
from unmask.evaluation.processes import run_side_by_side
from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import Experiment, Run, Scale, Unfinished
from unmask.evaluation.tables.workspace import Workspace

SHARE_SECONDS = 2.0
"""Seconds between a process's checks for work that no other process is doing."""


def make_side_by_side(workspace: Workspace, experiment: Experiment, scale: Scale, on: str, runs: Sequence[Run]) -> None:
    """Train and measure what an experiment lacks in `jobs` processes, except for what must be timed alone."""
    looking = Workspace(workspace.folder, device=workspace.device, missing="skip")
    with suppress(Unfinished):
        experiment.measure(looking, scale, get_protocol(on), runs)
    if not looking.unfinished:
        return
    left = [run for run in runs if workspace.training_seconds(run) is None]
    total = len(left)

    def report() -> None:
        for run in [run for run in left if workspace.training_seconds(run) is not None]:
            left.remove(run)
            workspace.on_trained(run.title, total - len(left), total)

    call = (workspace.folder, workspace.device, experiment.name, scale, on)
    for _ in run_side_by_side(_share, [call] * workspace.jobs, workspace.jobs, report):
        pass
    report()


def _share(folder: Path, device: str | None, name: str, scale: Scale, on: str) -> None:
    """Make what an experiment lacks, beside other processes that do the same, until only they have work left."""
    experiment, protocol = get_experiment(name), get_protocol(on)
    runs = experiment.runs(scale, protocol)
    workspace = Workspace(folder, device=device, missing="share")
    while True:
        workspace.unfinished.clear()
        with suppress(Unfinished):
            experiment.measure(workspace, scale, protocol, runs)
        if not any(workspace.unfinished.values()):
            return
        time.sleep(SHARE_SECONDS)
