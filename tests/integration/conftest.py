"""The command line as the tests call it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unmask.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a verb in this process; gives (exit code, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unmask", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def refused(run):
    """Run a verb that must refuse what it is told, in one sentence and with exit code 2; gives the sentence."""

    def call(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    return call


@pytest.fixture
def place(runs, tmp_path, monkeypatch):
    """A working folder of its own, in which the runs that a module has made (`runs`) stand by their names."""
    monkeypatch.chdir(tmp_path)
    for folder in runs.iterdir():
        Path(folder.name).symlink_to(folder)
    return tmp_path
