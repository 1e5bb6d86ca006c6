"""`unmask eval puzzles` and `unmask eval code` on models that are trained for two steps."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import make_checkpoint
from unmask.config import read_recipe
from unmask.data.sources import stdlib
from unmask.evaluation import code as code_evaluation
from unmask.evaluation import tasks
from unmask.training import train

SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "training.steps=2", "training.batch_size=4"]
SMALL += ["training.validation_rows=4"]
GRID = "data.source={name: sudoku, box: 2, bases: 8, count: 40, validation: 12}"
PATHS = ["data.source.count=40", "data.source.validation=12"]
CODE = ["data.length=200", "data.tokenizer={name: bpe, vocab_size: 300}"]
FUNCTION = """
def {name}(value, other=None):
    result = value * {number} + len(str(other))
    if other is not None:
        result = max(result, other.count(value))
        print(result, other, {number})
    return [result, value]

"""
REMDM = "name: remdm, strategy: loop, steps: 6"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs of sudoku, paths and code with their autoregressive counterparts, and some that do not match them."""
    place, library = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("library")
    for module, names in {"json": "abcdefgh", "zipfile": "stuvw"}.items():  # the hash of its name holds zipfile out
        functions = [FUNCTION.format(name=name, number=i) for i, name in enumerate(names)]
        (library / f"{module}.py").write_text("".join(functions))
    recipes = {
        "sudoku": ("sudoku", [GRID, "data.length=16"]),
        "sudoku-ar": ("sudoku-ar", [GRID, "data.length=33"]),
        "paths": ("paths", PATHS),
        "paths-ar": ("paths-ar", PATHS),
        "code": ("code", CODE),
        "code-ar": ("code-ar", CODE),
        "bytes-ar": ("code-ar", [*CODE, "data.tokenizer=byte"]),
        "short": ("code", [*CODE, "data.length=16"]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib, "sysconfig", SimpleNamespace(get_path=lambda name: str(library)))
        for name, (recipe, overrides) in recipes.items():
            train(read_recipe(recipe, [*SMALL, *overrides]), place / name)
        make_checkpoint(place / "other")
        yield place


@pytest.mark.parametrize(("task", "calls"), [("sudoku", (8, 16)), ("paths", (5, 5))])
def test_puzzles_have_a_row_per_strategy(printed, place, task, calls):
    options = ("--count", 6, "--steps", 2, "--steps", "none", "--out", "all.json", "--plot", "p.png")
    out = printed("eval", "puzzles", task, "--twin", f"{task}-ar", *options)
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


def test_code_has_a_row_per_strategy_and_kind(printed, place):
    options = ("--count", 3, "--rule", "greedy", "--steps", 2, "--steps", "none")
    options += ("--out", "all.json", "--plot", "p.png")
    out = printed("eval", "code", "code", "--twin", "code-ar", *options)
    for words in ("uniform", "margin", "threshold", "parses", "expression: 3 blanks in held-out functions"):
        assert words in out
    assert "…" not in out, "a table fits into 80 columns"
    report = json.loads(Path("all.json").read_text())
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert report["blanks"] == {"expression": 3, "line": 3, "lines": 3}
    rows = report["rows"]
    assert len(rows) == 3 * (5 * 2 + 1 + 1)
    assert [row["way"] for row in rows if row["causal"]] == ["ar"] * 3
    for row in rows:
        for name in ("parses", "exact", "same_tokens"):
            assert 0 <= row[name]["low"] <= row[name]["value"] <= row[name]["high"] <= 1
        if row["steps"] == 2:
            assert row["calls"]["value"] == 2
    one_by_one = {row["calls"]["value"] for row in rows if row["steps"] is None and not row["adaptive"]}
    assert len(one_by_one) == 3, "one token per call takes as many calls as a kind of blank has tokens"


@pytest.mark.parametrize(
    ("verb", "causal", "masked"),
    [
        ("puzzles", ("paths-ar", "--count", 3), ("sudoku", "--count", 3)),
        ("code", ("code-ar", "--count", 2, "--kind", "line"), ("code", "--count", 2, "--kind", "lines")),
    ],
)
def test_a_causal_model_and_another_sampler_have_one_row_each(reported, place, verb, causal, masked):
    (row,) = reported("eval", verb, *causal, "--rule", "greedy")["rows"]
    assert (row["way"], row["rule"], row["items"]) == ("ar", "greedy", causal[2])
    (row,) = reported("eval", verb, *masked, "--sampler", REMDM, "--rule", "stochastic")["rows"]
    assert (row["way"], row["calls"]["value"], row["sampler"]["strategy"]) == ("remdm", 6, "loop")


def test_results_do_not_depend_on_the_batch(run, place):
    options = ("--kind", "line", "--order", "margin", "--rule", "stochastic", "--json")
    reports = [json.loads(run("eval", "code", "code", *options, "--batch-size", size)[1]) for size in (1, 5)]
    for report in reports:
        report["rows"][0].pop("seconds")
    assert reports[0] == reports[1]


def test_puzzle_models_can_be_scored_and_fill(printed, run, place):
    code, _, err = run("eval", "sudoku", "--json")
    assert code in (0, 1), err
    out = printed("fill", "sudoku", "12[MASK:2]3[MASK:11]", "--order", "margin", "--greedy")
    assert out.strip().startswith("12")
    assert len(out.strip()) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["puzzles", "smoke"], "unmask train sudoku"),
        (["puzzles", "sudoku", "--twin", "paths-ar"], "other puzzles"),
        (["puzzles", "sudoku", "--order", "margen"], "Did you mean 'margin'?"),
        (["puzzles", "sudoku", "--rule", "best"], "'best'"),
        (["puzzles", "sudoku", "--count", "13"], "12"),
        (["puzzles", "sudoku", "--plot", "p.bmp"], ".png"),
        (["code", "other"], "unmask train code"),
        (["code", "code", "--twin", "other"], "unmask train code"),
        (["code", "code", "--twin", "bytes-ar"], "other functions or tokens"),
        (["code", "short"], "16 tokens"),
        (["code", "code", "--kind", "lime"], "Did you mean 'line'?"),
    ],
)
def test_bad_input_is_refused_before_the_work(refused, place, monkeypatch, arguments, words):
    for module, function in ((tasks, "solve"), (code_evaluation, "fill_blanks")):
        monkeypatch.setattr(module, function, lambda *args: pytest.fail("the work started"))
    assert words in refused("eval", *arguments, "--out", "never.json")
    assert not Path("never.json").exists()
