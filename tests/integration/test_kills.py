"""kill -9 at any moment loses at most the steps since the last checkpoint: 20 kills give the unbroken run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import assert_same_tensors, read_log_without_times

KILLS = 20
TRIALS = Path(__file__).with_name("killed_run.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(TRIALS), str(tmp_path), str(KILLS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kills"] == KILLS
    assert len(set(report["steps"])) > 3, "the kills were all at the same place"
    assert report["steps"] == sorted(report["steps"]), "a kill lost a checkpoint"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert_same_tensors(whole, killed)
    assert read_log_without_times(whole) == read_log_without_times(killed)
