"""Code as a user meets it: trained small by the shipped recipes, its blanks filled by `unmask eval code`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import make_checkpoint
from unmask.config import read_recipe
from unmask.data import stdlib
from unmask.evaluation import code as code_evaluation
from unmask.training import train

SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "training.steps=2", "training.batch_size=4"]
SHORT = ["training.validation_rows=4", "data.length=200", "data.tokenizer={name: bpe, vocab_size: 300}"]
FUNCTION = """
def {name}(value, other=None):
    result = value * {number} + len(str(other))
    if other is not None:
        result = max(result, other.count(value))
        print(result, other, {number})
    return [result, value]

"""


def written(place: Path) -> Path:
    """A standard library of two modules; the hash of its name holds `zipfile` out."""
    for module, names in {"json": "abcdefgh", "zipfile": "stuvw"}.items():
        texts = [FUNCTION.format(name=name, number=i) for i, name in enumerate(names)]
        (place / f"{module}.py").write_text("".join(texts))
    return place


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """The model of code, its twin, a twin of other tokens, each trained for two steps; a model of other text."""
    place, library = tmp_path_factory.mktemp("runs"), written(tmp_path_factory.mktemp("library"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib, "sysconfig", SimpleNamespace(get_path=lambda name: str(library)))
        for name in ("code", "code-ar"):
            train(read_recipe(name, [*SMALL, *SHORT]), place / name)
        train(read_recipe("code-ar", [*SMALL, *SHORT, "data.tokenizer=byte"]), place / "bytes-ar")
        train(read_recipe("code", [*SMALL, *SHORT, "data.length=16"]), place / "short")
        make_checkpoint(place / "other")
        yield place


def test_all_ways_and_the_twin_stand_in_one_table(run, place):
    asked = ("--count", 3, "--rule", "greedy", "--steps", 2, "--steps", "none", "--out", "all.json", "--plot", "p.png")
    code, out, err = run("eval", "code", "code", "--twin", "code-ar", *asked)
    assert code == 0, err
    for words in ("uniform", "margin", "threshold", "parses", "expression: 3 blanks in held-out functions"):
        assert words in out
    assert "…" not in out, "a table fits 80 characters"
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
    assert len(one_by_one) == 3, "all who write one token a call take as many as a kind of blank has"


def test_a_twin_alone_and_another_sampler(run, place):
    code, out, err = run("eval", "code", "code-ar", "--count", 2, "--kind", "line", "--rule", "greedy", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["kind"], row["way"], row["rule"], row["items"]) == ("line", "ar", "greedy", 2)
    spec = "name: remdm, strategy: loop, steps: 6"
    asked = ("--count", 2, "--kind", "lines", "--rule", "stochastic", "--sampler", spec, "--json")
    code, out, err = run("eval", "code", "code", *asked)
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["way"], row["calls"]["value"], row["sampler"]["strategy"]) == ("remdm", 6, "loop")


def test_the_batch_does_not_matter(run, place):
    asked = ("--kind", "line", "--order", "margin", "--rule", "stochastic", "--json")
    reports = [json.loads(run("eval", "code", "code", *asked, "--batch-size", size)[1]) for size in (1, 5)]
    for report in reports:
        report["rows"][0].pop("seconds")
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["other"], "does not record its training data, not on functions; train one with 'unmask train code'"),
        (["nowhere"], "There is no checkpoint at 'nowhere'"),
        (["code", "--twin", "other"], "not on functions"),
        (["code", "--twin", "bytes-ar"], "was trained on other functions or tokens"),
        (["short"], "fits into the 16 tokens of 'short'"),
        (["code", "--kind", "lime"], "Did you mean 'line'?"),
        (["code", "--order", "margen"], "Did you mean 'margin'?"),
        (["code", "--rule", "best"], "There is no token rule 'best'"),
        (["code", "--steps", "0"], "--steps must be an integer of at least 1"),
        (["code", "--plot", "p.bmp"], "must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(refused, place, arguments, sentence):
    assert sentence in refused("eval", "code", *arguments, "--out", "never.json")
    assert not Path("never.json").exists()


def test_a_wrong_twin_is_refused_before_work_starts(refused, place, monkeypatch):
    monkeypatch.setattr(
        code_evaluation, "fill_blanks", lambda *asked: pytest.fail("a blank was filled before the twin was seen")
    )
    sentence = refused("eval", "code", "code", "--twin", "bytes-ar", "--count", 2)
    assert "was trained on other functions or tokens" in sentence
