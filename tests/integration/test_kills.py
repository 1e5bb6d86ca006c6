"""kill -9 at any moment loses at most the steps since the last checkpoint: 20 kills give the unbroken run or table.

The tests run this module as a program. It imports everything and then works in forked children, which it kills at
random moments, so that kills fall within the work and not within the start of Python.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluation.tables.conftest import SMALLEST
from tests.runs import assert_same_tensors, read_log_without_times, write_cats
from unmask.config import Recipe, parse_recipe
from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import Scale, merge
from unmask.evaluation.tables.workspace import Workspace, run_experiment
from unmask.training import train
from unmask.training.checkpointing import find_latest

KILLS = 20
STEPS = 300
REACH = 10
"""Steps after which a child is killed at the latest, so that twenty of them do not reach the end."""


def recipe(folder: Path) -> Recipe:
    return parse_recipe(
        {
            "data": {"source": {"name": "text", "paths": str(folder / "text.txt")}, "length": 16},
            "model": {"name": "dit", "size": "nano", "hidden_size": 16, "layers": 1, "heads": 2, "dropout": 0.1},
            "optimizer": {"warmup": 5, "ema": 0.9},
            "training": {
                "steps": STEPS, "batch_size": 4, "log_every": 7, "validate_every": 40, "validation_rows": 4,
                "save_every": 5, "keep": 3,
            },
        }
    )  # fmt: skip


def in_child(work: Callable[[], object]) -> int:
    """Start some work in a child process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def start_run(folder: Path, out: Path) -> int:
    """Start or continue the run in a child process."""
    return in_child(lambda: train(recipe(folder), out, resume="auto"))


def start_table(folder: Path, out: Path) -> int:
    """Start or continue an experiment of two runs and two bounds in a child process."""
    scale = Scale("stdlib", merge(SMALLEST, {"training": {"steps": 60, "save_every": 10}}))
    experiment, text = replace(get_experiment("weights"), scales={"tiny": scale}), str(folder / "text.txt")
    return in_child(lambda: run_experiment(experiment, "tiny", text, Workspace(out)))


def step_of(out: Path) -> int:
    """The step of the newest checkpoint."""
    latest = find_latest(out)
    return int(latest.name.removeprefix("step-")) if latest else 0


def timed(folder: Path, out: Path) -> tuple[float, float]:
    """Seconds to the first checkpoint and to the end of an unbroken run."""
    begin = time.monotonic()
    pid = start_run(folder, out)
    while not find_latest(out):
        time.sleep(0.01)
    first = time.monotonic() - begin
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"the run in '{out}' failed")
    return first, time.monotonic() - begin


def wait(out: Path, seconds: float) -> None:
    """Wait for some seconds, or until the run has advanced by `REACH` steps."""
    end, begin = time.monotonic() + seconds, step_of(out)
    while time.monotonic() < end and step_of(out) < begin + REACH:
        time.sleep(0.002)


def kill_often(folder: Path) -> None:
    """Train without a break, then with `KILLS` kills, and print the steps at which they fell."""
    write_cats(folder / "text.txt", 60)
    first, last = timed(folder, folder / "whole")
    moments, steps = random.Random(0), []
    while len(steps) < KILLS:
        pid = start_run(folder, folder / "killed")
        wait(folder / "killed", moments.uniform(0.0, first + 2 * REACH / STEPS * (last - first)))
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            sys.exit("the run ended before it was killed often enough")
        steps.append(step_of(folder / "killed"))
    timed(folder, folder / "killed")
    print(json.dumps(steps))


def kill_table_often(folder: Path) -> None:
    """Make a table without a break, then with some kills, and print how many files were there at each."""
    paragraphs = [f"Paragraph {number} tells of {number % 7} cats." for number in range(200)]
    (folder / "text.txt").write_text("\n\n".join(paragraphs))
    if os.waitpid(start_table(folder, folder / "whole"), 0)[1]:
        sys.exit("the experiment failed")
    moments, found = random.Random(0), [0]
    while len(found) <= KILLS // 4:
        pid = start_table(folder, folder / "killed")
        running = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (files := len(list((folder / "killed").rglob("*.json")))) <= found[-1]:
            if os.waitid(os.P_PID, pid, running) is not None:
                break
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            break
        found.append(files)
    if os.waitpid(start_table(folder, folder / "killed"), 0)[1]:
        sys.exit("the experiment failed after its last kill")
    print(json.dumps(found))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.test_kills", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout.splitlines()[-1])
    assert len(set(steps)) > 3, "the kills were all at the same place"
    assert steps == sorted(steps), "a kill lost a checkpoint"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert_same_tensors(whole, killed)
    assert read_log_without_times(whole) == read_log_without_times(killed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_experiment_ends_in_the_same_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.test_kills", str(tmp_path), "table"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 3, "it was finished before it was killed often enough"
    tables = [(tmp_path / out / "weights" / "table.md").read_text() for out in ("whole", "killed")]
    assert tables[0] == tables[1]


if __name__ == "__main__":
    (kill_table_often if sys.argv[2:] == ["table"] else kill_often)(Path(sys.argv[1]))
