"""Curves of runs show the logged values."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from unmask.errors import UnmaskError
from unmask.plots.curves import RunSeries, draw_runs, read_run, read_runs, smooth

LOGS = Path(__file__).parents[1] / "logs"
RECIPE = {"training": {"batch_size": 32}, "data": {"length": 128}, "optimizer": {"clip": 1.0}}


@pytest.fixture
def folder(tmp_path: Path):
    """Makes a run folder from a log in tests/logs."""

    def make(log: str = "healthy", name: str | None = None, lines: int | None = None) -> Path:
        path = tmp_path / (name or log)
        path.mkdir(parents=True)
        kept = (LOGS / f"{log}.jsonl").read_text().splitlines(keepends=True)[:lines]
        (path / "log.jsonl").write_text("".join(kept))
        (path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        return path

    return make


@pytest.fixture
def drawn(figures):
    """Draws runs; returns the panels by the first word of their titles, and the labels of the legend."""

    def draw(*folders: Path, axis: Any = "steps") -> tuple[dict[str, Any], list[str]]:
        draw_runs(read_runs(folders), Path("unused.png"), axis)
        titled = [(axes.get_title("left"), axes) for axes in figures[-1].axes]
        panels = {title.split()[0].strip(","): axes for title, axes in titled if title}
        return panels, [text.get_text() for legend in figures[-1].legends for text in legend.get_texts()]

    return draw


def logged(path: Path, key: str) -> list[Any]:
    lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line and ("loss" in line) == (key != "validation")]


def test_one_run_is_drawn_as_logged(folder, drawn) -> None:
    run = folder()
    panels, legend = drawn(run)
    raw, smoothed, dots = panels["Bound"].lines
    assert raw.get_ydata().tolist() == logged(run, "bits_per_token")
    assert raw.get_xdata().tolist() == logged(run, "step")[: len(raw.get_xdata())] == list(range(10, 401, 10))
    assert np.std(np.diff(smoothed.get_ydata()[10:])) < 0.5 * np.std(np.diff(raw.get_ydata()[10:]))
    bounds = logged(run, "validation")
    assert dots.get_ydata().tolist() == [bound["bits_per_token"] for bound in bounds]
    thin, thick = panels["Bound"].collections
    for bars, key in ((thin, "data"), (thick, "mc")):
        lengths = [np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()]
        assert lengths == pytest.approx([bound[f"bits_per_token_{key}_stderr"] for bound in bounds])
    assert thick.get_linewidth()[0] > thin.get_linewidth()[0]
    for title, key in (("Gradient", "grad_norm"), ("Learning", "learning_rate"), ("Speed", "tokens_per_second")):
        assert panels[title].lines[0].get_ydata().tolist() == logged(run, key)
    assert panels["Gradient"].get_yscale() == "log"
    assert panels["Speed"].get_ylim()[0] == 0
    assert len(panels["Cross-entropy"].lines) == 10
    assert legend == ["healthy (per position), training", "validation"]
    low, high = panels["Bound"].get_ylim()
    assert (low < 4.5, high < 5.5) == (True, True), "the first steep fall leaves the frame"


def test_several_runs_share_the_panels(folder, drawn) -> None:
    runs = [folder("healthy"), folder("healthy-flat"), folder("healthy-ar")]
    panels, legend = drawn(*runs)
    assert legend == [f"{name} (per position)" for name in ("healthy", "healthy-flat", "healthy-ar")]
    assert len({line.get_color() for line in panels["Gradient"].lines[:3]}) == 3
    profiles = panels["Cross-entropy"].lines
    assert len(profiles) == 2, "an autoregressive model has no mask rates"
    assert set(drawn(runs[2])[0]) == {"Loss", "Gradient", "Learning", "Speed"}
    last = np.array(logged(runs[0], "cross_entropy")[-1]) / math.log(2.0)
    assert profiles[0].get_xdata() == pytest.approx(np.arange(0.05, 1.0, 0.1))
    assert profiles[0].get_ydata() == pytest.approx(last, abs=0.25)


@pytest.mark.parametrize("lines", [1, 3])
def test_a_short_run_is_drawn_with_markers(folder, drawn, lines: int) -> None:
    panels, legend = drawn(folder(lines=lines))
    assert len(panels["Bound"].lines[1].get_xdata()) == lines
    assert panels["Bound"].lines[1].get_marker() == "o"
    assert legend == ["healthy (per position), training"]


def test_the_horizontal_axis(folder, drawn) -> None:
    run = folder()
    panels, _ = drawn(run, axis="tokens")
    assert panels["Speed"].lines[0].get_xdata()[-1] == 400 * 32 * 128
    panels, _ = drawn(run, axis="seconds")
    seconds = dict(zip(logged(run, "step"), logged(run, "seconds"), strict=False))
    assert panels["Speed"].lines[0].get_xdata()[-1] == logged(run, "seconds")[-1]
    assert panels["Bound"].lines[2].get_xdata()[0] == pytest.approx(seconds[50])
    (run / "recipe.yaml").unlink()
    with pytest.raises(UnmaskError, match=r"no recipe.yaml .*draw it with --x steps"):
        drawn(run, axis="tokens")


def test_the_summary_has_a_unique_name_and_the_last_and_best_values(folder) -> None:
    path = folder()
    named = read_runs([path, folder(name="a/run"), folder(name="b/run")])
    assert [run.name for run in named] == ["healthy", *(str(path.parent / name) for name in ("a/run", "b/run"))]
    with (path / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": 400, "advice": "Rest."}) + "\n")
    summary = read_run(path).summary()
    bits = logged(path, "bits_per_token")
    bounds = [bound["bits_per_token"] for bound in logged(path, "validation")]
    assert summary["steps"] == 400
    assert summary["last"]["bits_per_token"] == bits[-1]
    assert summary["last"]["validation"]["bits_per_token"] == bounds[-1]
    assert summary["best"] == {
        "bits_per_token": {"step": 10 * (bits.index(min(bits)) + 1), "bits_per_token": min(bits)},
        "validation": {"step": 50 * (bounds.index(min(bounds)) + 1), "bits_per_token": min(bounds)},
    }
    assert summary["advice"] == [{"step": 400, "advice": "Rest."}]
    assert json.dumps(summary, allow_nan=False)


def test_smoothing_keeps_lines_and_reduces_noise() -> None:
    line = np.linspace(3.0, 5.0, 200)
    assert smooth(line)[20:-20] == pytest.approx(line[20:-20])
    assert smooth(np.full(200, 2.0)) == pytest.approx(np.full(200, 2.0))
    noise = np.random.default_rng(0).normal(size=2000)
    assert np.std(smooth(noise)) == pytest.approx(1 / math.sqrt(2 * math.sqrt(math.pi) * 2000 / 40), rel=0.3)
    gaps = np.where(np.arange(200) % 7 == 0, math.nan, line)
    assert smooth(gaps)[20:-20] == pytest.approx(line[20:-20], abs=0.01)
    assert smooth(np.array([5.0, 1.0, 3.0])).tolist() == [5.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"There is no log.jsonl in .*; give a folder that 'unmask train' wrote"),
        ("", r"has no training line yet; wait for training.log_every steps"),
        ('{"step": 0, "advice": "a"}\n', "has no training line yet"),
        ("not json\n", r"cannot be read \(.*\); restore it"),
    ],
)
def test_bad_logs_are_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(UnmaskError, match=words):
        read_run(tmp_path)


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_the_suffix_gives_the_format_and_equal_figures_equal_bytes(folder, tmp_path, suffix, head) -> None:
    run = read_run(folder(lines=5))
    first, second = (tmp_path / f"{name}{suffix}" for name in "ab")
    for picture in (first, second):
        draw_runs([run], picture)
    assert first.read_bytes().startswith(head)
    assert first.read_bytes() == second.read_bytes()


def test_reading_a_log_does_not_import_torch() -> None:
    program = "import sys, unmask.plots.curves; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(("per_token", "shown"), [((0, 1, 2), "run"), ((2,), "run (per position to step 2)")])
def test_a_log_of_an_earlier_version_is_labelled(per_token: tuple[int, ...], shown: str) -> None:
    lines = [{"step": i + 1, **({"denominator": "text tokens"} if i in per_token else {})} for i in range(3)]
    assert RunSeries("run", Path("run"), lines, [], [], {}).label == shown
