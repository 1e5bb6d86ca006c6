"""What a person sees, and what a pipe does not."""

from __future__ import annotations

import io

from rich.console import Console

from unmask.training.progress import Bar, Progress, progress_for

TRAINED = {"step": 20, "bits_per_token": 3.21049, "tokens_per_second": 12_345.0}
VALIDATED = {"step": 20, "validation": {"bits_per_token": 2.9871, "bits_per_token_mc_stderr": 0.0123}}


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
    progress.close()
    return text.getvalue()


def test_a_terminal_shows_one_line_with_everything() -> None:
    last = shown(terminal=True).strip().split("\r")[-1]
    for part in ("20/40", "3.210 bits/token", "2.987 ± 0.012", "12.3k tokens/s", ":"):
        assert part in last


def test_a_pipe_stays_silent() -> None:
    assert shown(terminal=False) == ""


def test_a_pipe_gets_plain_lines_when_asked() -> None:
    assert shown(terminal=False, verbose=True).splitlines() == [
        "step 20/40: 3.210 bits/token, 12.3k tokens/s",
        "step 20/40: validation 2.987 ± 0.012 bits/token",
    ]


def test_nobody_watches_by_default() -> None:
    Progress().trained(TRAINED)


def test_reading_is_told_from_encoding() -> None:
    bar = Bar(Console(file=io.StringIO(), force_terminal=True))
    bar.reading("corpus", 1_500_000, 0)
    assert bar._status.status == "reading: 1.5M characters"
    bar.reading("train", 1_500_000, 3_000_000)
    assert bar._status.status == "encoding the train text: 1.5M of 3.0M characters"
    bar.close()
