"""Run verbs that must succeed."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def printed(run):
    """Run a verb, which must exit with 0, and return what it prints."""

    def call(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return call


@pytest.fixture
def reported(printed):
    """Run a verb with --json, which must exit with 0, and return its report."""
    return lambda *arguments: json.loads(printed(*arguments, "--json"))
