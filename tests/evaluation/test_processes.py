"""Processes side by side: signals stop calls, not the processes between them."""

from __future__ import annotations

import subprocess
import sys

SIGNALS = """
import os, signal
from unmask.evaluation.processes import _begin_process, _call

_begin_process(1)
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
    try:
        _call(os.kill, os.getpid(), number)
    except (KeyboardInterrupt, SystemExit) as stop:
        print(type(stop).__name__)
    os.kill(os.getpid(), number)
"""


def test_signals_stop_calls_and_not_idle_processes():
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["KeyboardInterrupt", "SystemExit"]
