"""What a person sees, and what a pipe does not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from unmask.training.callbacks import Bar, Progress, Watchers, progress_for

TRAINED = {"step": 20, "bits_per_token": 3.21049, "tokens_per_second": 12_345.0}
VALIDATED = {"step": 20, "validation": {"bits_per_token": 2.9871, "bits_per_token_mc_stderr": 0.0123}}
SAMPLED = {"step": 20, "samples": ["[b]a line\nand   another" + " word" * 40, "a second text"]}
ADVISED = {"step": 20, "advice": "Something [is] wrong; do this."}


def shown(terminal: bool, verbose: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None, legacy_windows=False)
    progress = progress_for(console, verbose)
    progress.reading("train", 1_500_000, 3_000_000)
    progress.begin(10, 40)
    for _ in range(10):
        progress.stepped()
    progress.trained(TRAINED)
    progress.validated(VALIDATED)
    progress.sampled(SAMPLED)
    progress.advised(ADVISED)
    progress.close()
    return text.getvalue()


def test_a_terminal_shows_one_line_with_everything() -> None:
    last = shown(terminal=True).strip().split("\r")[-1]
    for part in ("20/40", "3.210 bits/token", "2.987 ± 0.012", "12.3k tokens/s", ":"):
        assert part in last


def test_a_terminal_keeps_samples_and_advice_above_the_bar() -> None:
    lines = [line.split("\r")[-1].replace("\x1b[2K", "") for line in shown(terminal=True).splitlines()]
    (sample,) = [line for line in lines if "writes" in line]
    assert "step 20: writes “[b]a line and another word" in sample
    assert any(line.endswith("step 20: Something [is] wrong; do this.") for line in lines)


def test_a_pipe_stays_silent() -> None:
    assert shown(terminal=False) == ""


def test_a_pipe_gets_plain_lines_when_asked() -> None:
    assert shown(terminal=False, verbose=True).splitlines() == [
        "step 20/40: 3.210 bits/token, 12.3k tokens/s",
        "step 20/40: validation 2.987 ± 0.012 bits/token",
        f"step 20: writes “[b]a line and another{' word' * 15} wor…”",
        "step 20: Something [is] wrong; do this.",
    ]


def test_nobody_watches_by_default(capsys) -> None:
    Progress().trained(TRAINED)
    assert capsys.readouterr() == ("", "")


def test_reading_is_told_from_encoding() -> None:
    bar = Bar(Console(file=io.StringIO(), force_terminal=True))
    bar.reading("corpus", 1_500_000, 0)
    assert bar._status.status == "reading: 1.5M characters"
    bar.reading("train", 1_500_000, 3_000_000)
    assert bar._status.status == "encoding the train text: 1.5M of 3.0M characters"
    bar.close()


CALLS = {
    "reading": ("train", 1, 2),
    "begin": (3, 4),
    "stepped": (),
    "trained": (TRAINED,),
    "validated": (VALIDATED,),
    "sampled": (SAMPLED,),
    "advised": (ADVISED,),
    "close": (),
}


def spy(said: list[Any], name: str) -> Progress:
    """A watcher that writes down what it is told."""
    watcher = Progress()
    for call in CALLS:
        setattr(watcher, call, lambda *args, call=call: said.append((name, call, args)))
    return watcher


def test_all_watchers_are_told_everything_in_turn() -> None:
    assert set(CALLS) == {name for name in vars(Progress) if not name.startswith("_")}
    said: list[Any] = []
    watchers = Watchers(spy(said, "first"), spy(said, "second"))
    for call, args in CALLS.items():
        getattr(watchers, call)(*args)
    assert said == [(name, call, args) for call, args in CALLS.items() for name in ("first", "second")]


def test_a_watcher_that_fails_to_close_leaves_none_open() -> None:
    said: list[Any] = []
    broken = Progress()
    broken.close = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        Watchers(broken, spy(said, "other")).close()
    assert said == [("other", "close", ())]
