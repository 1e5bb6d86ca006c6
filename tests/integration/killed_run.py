"""Train a small model in child processes that are killed at random moments. Run by test_kills.py: FOLDER KILLS.

The parent imports everything, so that a child is a fork without the start of Python and kills fall within training.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from unmask.config import Recipe, parse_recipe
from unmask.training import train
from unmask.training.checkpointing import find_latest

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


def in_child(folder: Path, out: Path) -> int:
    """Start or continue the run in a child process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        train(recipe(folder), out, resume="auto")
        os._exit(0)
    finally:
        os._exit(1)


def step_of(out: Path) -> int:
    """The step of the newest checkpoint."""
    latest = find_latest(out)
    return int(latest.name.removeprefix("step-")) if latest else 0


def timed(folder: Path, out: Path) -> tuple[float, float]:
    """Seconds to the first checkpoint and to the end of an unbroken run."""
    begin = time.monotonic()
    pid = in_child(folder, out)
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


def main(folder: Path, kills: int) -> None:
    os.environ["UNMASK_CACHE"] = str(folder / "cache")
    (folder / "text.txt").write_text("\n".join(f"the {i} cats sat on {i * i} mats" for i in range(60)))
    first, last = timed(folder, folder / "whole")
    moments, steps = random.Random(0), []
    while len(steps) < kills:
        pid = in_child(folder, folder / "killed")
        wait(folder / "killed", moments.uniform(0.0, first + 2 * REACH / STEPS * (last - first)))
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            sys.exit("the run ended before it was killed often enough")
        steps.append(step_of(folder / "killed"))
    timed(folder, folder / "killed")
    print(json.dumps({"kills": len(steps), "steps": steps}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
