"""kill -9 at any moment costs at most the steps since the last checkpoint: twenty kills end where no kill would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from unmask.training.callbacks import read_log
from unmask.training.checkpointing import find_latest

KILLS = 20
TRIALS = Path(__file__).with_name("killed_run.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(TRIALS), str(tmp_path), str(KILLS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == KILLS
    assert len(set(told["steps"])) > 3, "the kills were all at the same place"
    assert told["steps"] == sorted(told["steps"]), "a kill lost a checkpoint"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    left, right = find_latest(whole), find_latest(killed)
    assert left is not None
    assert right is not None
    for file in ("model.safetensors", "state/model.safetensors", "state/optimizer.safetensors"):
        expected, got = load_file(left / file), load_file(right / file)
        assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    clocks = ("seconds", "tokens_per_second", "memory_gib", "mfu")
    logs = [[{k: v for k, v in line.items() if k not in clocks} for line in read_log(out)] for out in (whole, killed)]
    assert logs[0] == logs[1]
