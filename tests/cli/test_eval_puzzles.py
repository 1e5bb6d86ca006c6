"""Puzzles as a user meets them: trained small by the shipped recipes, solved by `unmask eval puzzles`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.config import read_recipe
from unmask.evaluation import tasks
from unmask.training import train

SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "training.steps=2", "training.batch_size=4"]
SHORT = ["training.validation_rows=4", "data.source.count=40", "data.source.validation=12"]
GRID = "data.source={name: sudoku, box: 2, bases: 8, count: 40, validation: 12}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Four by four sudoku, its twin, paths and the twin of those, each trained for two steps."""
    place = tmp_path_factory.mktemp("runs")
    for name, length in {"sudoku": 16, "sudoku-ar": 33}.items():
        train(read_recipe(name, [*SMALL, "training.validation_rows=4", GRID, f"data.length={length}"]), place / name)
    for name in ("paths", "paths-ar"):
        train(read_recipe(name, [*SMALL, *SHORT]), place / name)
    return place


@pytest.mark.parametrize(("task", "calls"), [("sudoku", (8, 16)), ("paths", (5, 5))])
def test_all_ways_and_the_twin_stand_in_one_table(run, place, task, calls):
    asked = ("--count", 6, "--steps", 2, "--steps", "none", "--out", "all.json", "--plot", "p.png")
    code, out, err = run("eval", "puzzles", task, "--twin", f"{task}-ar", *asked)
    assert code == 0, err
    for words in ("uniform", "margin", "threshold", "solved", f"6 held-out puzzles of '{task}'"):
        assert words in out
    report = json.loads(Path("all.json").read_text())
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert report["source"]["name"] == task
    rows = report["rows"]
    assert len(rows) == 2 * (5 * 2 + 1) + 2
    assert [row["way"] for row in rows if row["causal"]] == ["ar", "ar"]
    for row in rows:
        assert 0 <= row["accuracy"]["low"] <= row["accuracy"]["value"] <= row["accuracy"]["high"] <= 1
        assert row["items"] == 6
        if row["steps"] == 2:
            assert row["calls"]["value"] == 2
        elif not row["adaptive"]:
            assert calls[0] <= row["calls"]["value"] <= calls[1]


def test_a_twin_alone_and_another_sampler(run, place):
    code, out, err = run("eval", "puzzles", "paths-ar", "--count", 3, "--rule", "greedy", "--json")
    assert code == 0, err
    assert [(row["way"], row["rule"]) for row in json.loads(out)["rows"]] == [("ar", "greedy")]
    spec = "name: remdm, strategy: loop, steps: 6"
    code, out, err = run("eval", "puzzles", "sudoku", "--count", 3, "--sampler", spec, "--rule", "stochastic", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["way"], row["calls"]["value"], row["sampler"]["strategy"]) == ("remdm", 6, "loop")


def test_likelihoods_and_canvases_go_on_as_with_texts(run, place):
    code, out, err = run("eval", "sudoku", "--json")
    assert code in (0, 1), err
    code, out, err = run("fill", "sudoku", "12[MASK:2]3[MASK:11]", "--order", "margin", "--greedy")
    assert code == 0, err
    assert out.strip().startswith("12")
    assert len(out.strip()) == 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["smoke"], "was trained on the source 'markov', not on puzzles; train one with 'unmask train sudoku'"),
        (["nowhere"], "There is no checkpoint at 'nowhere'"),
        (["sudoku", "--twin", "paths-ar"], "was trained on other puzzles"),
        (["sudoku", "--order", "margen"], "Did you mean 'margin'?"),
        (["sudoku", "--rule", "best"], "There is no token rule 'best'"),
        (["sudoku", "--steps", "0"], "--steps must be an integer of at least 1"),
        (["sudoku", "--count", "13"], "--count must be at most 12"),
        (["sudoku", "--plot", "p.bmp"], "must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(refused, place, arguments, sentence):
    assert sentence in refused("eval", "puzzles", *arguments, "--out", "never.json")
    assert not Path("never.json").exists()


def test_a_wrong_twin_is_refused_before_work_starts(refused, place, monkeypatch):
    monkeypatch.setattr(tasks, "solve", lambda *asked: pytest.fail("an item was solved before the twin was seen"))
    assert "was trained on other puzzles" in refused("eval", "puzzles", "sudoku", "--twin", "paths-ar", "--count", 2)
