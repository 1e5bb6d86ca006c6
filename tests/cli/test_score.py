"""`unmask score` and `unmask eval`: bounds with their errors."""

from __future__ import annotations

import inspect
import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import LENGTH, make_checkpoint
from unmask.cli import common
from unmask.cli.score import score
from unmask.pipeline import MaskedDiffusionLM

BOOK = "a few words to be scored\n" * 8


def test_every_unit_has_its_error(reported, mdlm_folder, ar_folder):
    result = reported("score", mdlm_folder, "some text", "--steps", 8, "--precision", 0.2)
    assert result["agree"] is True
    assert set(result["bounds"]) == {"mask-count", "continuous"}
    assert result["discrete"]["8"]["nats"] > 0
    headline = result["headline"]
    for unit in ("bits_per_token", "bits_per_byte", "bits_per_char", "perplexity"):
        assert headline[f"{unit}_mc_stderr"] > 0
    exact = reported("score", ar_folder, "some text", "other text")["headline"]
    assert exact["exact"]
    assert exact["mc_stderr"] == 0
    assert exact["data_stderr"] > 0


def test_notes_explain_the_errors_that_are_shown(run, mdlm_folder, ar_folder):
    draws, data = "Monte-Carlo error", "data error"
    for folder, texts, shown in (
        (mdlm_folder, ["some text"], {draws}),
        (mdlm_folder, ["some text", "other text"], {draws, data}),
        (ar_folder, ["some text"], set()),
        (ar_folder, ["some text", "other text"], {data}),
    ):
        out = run("score", folder, *texts, "--precision", 0.3)[1]
        assert {words for words in (draws, data) if words in out} == shown
        assert ("±" in out) == bool(shown)
        assert ("error of 0.3 bits per token; lower --precision" in " ".join(out.split())) == (draws in shown)


def test_an_unreached_precision_is_said(run, mdlm_folder, tmp_path):
    (tmp_path / "book.txt").write_text(BOOK)
    _, out, _ = run("eval", mdlm_folder, "--data", tmp_path / "book.txt", "--precision", 1e-5, "--rows", 1)
    assert "The error is above the target of 1e-05 bits per token" in " ".join(out.split())


def test_supervised_padding_is_noted(run, mdlm_folder, tmp_path):
    filled = make_checkpoint(tmp_path / "filled", policy="supervised_eos")
    (tmp_path / "book.txt").write_text("a few words")
    for words in (
        ("score", filled, "some text", "--precision", 0.5),
        ("eval", filled, "--data", tmp_path / "book.txt"),
    ):
        out = run(*words)[1]
        assert f"{LENGTH} tokens" in out
        assert "EOS" in out
    assert "EOS" not in run("score", mdlm_folder, "some text", "--precision", 0.5)[1]


def test_progress_counts_every_draw(reported, mdlm_folder, monkeypatch):
    counted = []

    @contextmanager
    def bar(description, total, quiet):
        yield counted.append

    monkeypatch.setattr(common, "progress", bar)
    bounds = reported("score", mdlm_folder, "some text", "--precision", 0.3)["bounds"]
    assert sum(counted) >= sum(bound["draws"] for bound in bounds.values())


def test_the_default_precision_is_that_of_the_library():
    methods = (score, MaskedDiffusionLM.score, MaskedDiffusionLM.score_details)
    assert len({inspect.signature(one).parameters["precision"].default for one in methods}) == 1


def test_estimators_that_disagree_exit_with_1(run, mdlm_folder, monkeypatch):
    from unmask.objectives.subs import MaskCount

    right = MaskCount.terms

    def wrong(self, *args):
        terms = right(self, *args)
        return type(terms)(**{**vars(terms), "diffusion": 2 * terms.diffusion})

    monkeypatch.setattr(MaskCount, "terms", wrong)
    code, _, err = run("score", mdlm_folder, "a text of several words", "--precision", 0.05)
    assert code == 1
    assert "disagree" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("score", "{mdlm}", ""), "no tokens"),
        (("score", "{mdlm}", "a text", "--steps", str(10**30)), "less than or equal to 1000000"),
        (("eval", "{mdlm}"), "--data"),
        (("eval", "{mdlm}", "--data", "missing.txt"), "missing.txt"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, arguments, words):
    assert words in refused(*[one.format(mdlm=mdlm_folder) for one in arguments])


def test_eval_scores_a_file_whatever_the_checkpoint_is_called(reported, printed, mdlm_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(BOOK)
    shutil.copytree(mdlm_folder, "generation")
    for words in (("./generation",), ("perplexity", "generation"), (mdlm_folder,)):
        assert reported("eval", *words, "--data", "book.txt")["headline"]["bytes"] == Path("book.txt").stat().st_size
    out = printed("eval", "generation/", "--data", "book.txt")
    assert "perplexity" in out
    assert "±" in out


def test_missing_training_data_are_asked_for(refused, mdlm_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(mdlm_folder, "shipped")
    card = json.loads(Path("shipped/unmask.json").read_text())
    card["protocol"] = {"data": {"source": {"name": "text", "paths": ["stories-0.txt"]}, "tokenizer": "byte"}}
    Path("shipped/unmask.json").write_text(json.dumps(card))
    message = refused("eval", "shipped")
    assert "stories-0.txt" in message
    assert "--data" in message
