"""`unmask edit`."""

from __future__ import annotations

import io
import sys
from functools import partial

import pytest

from tests.conftest import make_checkpoint

TEXT = "One day Tim went out."


@pytest.fixture
def edit(reported, mdlm_folder):
    return partial(reported, "edit", mdlm_folder)


def test_the_least_likely_tokens_are_rewritten(edit):
    result = edit(TEXT)
    assert result["strength"] == 0.3
    assert sum(order >= 0 for order in result["texts"][0]["order"]) == round(0.3 * len(TEXT))
    *rewritten, final = edit(TEXT, "--strength", 1.0)["texts"][0]["order"]
    assert min(rewritten) == 0
    assert final == -1, "the final full stop stays"


def test_spans_are_rewritten_and_words_kept(printed, edit, mdlm_folder):
    (one,) = edit(TEXT, "--span", "0-3", "--span", "8-11")["texts"]
    assert [i for i, order in enumerate(one["order"]) if order >= 0] == [0, 1, 2, 8, 9, 10]
    out = printed("edit", mdlm_folder, TEXT, "--keep", "Tim", "--keep", " out.", "--steps", 3)
    assert "Tim" in out
    assert out.endswith(" out.\n")


def test_sampling_options_apply(edit):
    constraints = ("--match", "[a-z ]+", "--with", "dog", "--without", "x", "--characters", "12-20")
    more = ("--particles", 3, "--min-p", 0.01, "--greedy-tail", 0.2, "--greedy-above", 0.99)
    result = edit("ab cd ef gh ij kl", "--strength", 1.0, *constraints, *more)
    text = result["texts"][0]["text"]
    assert "dog" in text
    assert not set(text) - set("abcdefghijklmnopqrstuvwyz ")
    assert 12 <= len(text) <= 20
    assert (len(result["constraints"]), result["particles"]) == (4, 3)
    rule = result["rule"]
    assert (rule["min_p"], rule["greedy_tail"], rule["greedy_above"]) == (0.01, 0.2, 0.99)


def test_every_line_has_its_seed(edit, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one line\nanother line\n"))
    assert [one["seed"] for one in edit("-", "--seed", 4)["texts"]] == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--span", "here"), "--span must be a range of characters such as 4-9, got 'here'"),
        (("--strength", 0.5, "--keep", "Tim"), "one of them"),
        (("--seed", 10**23), "seed"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, arguments, words):
    assert words in refused("edit", mdlm_folder, TEXT, *arguments)


def test_impossible_edits_are_refused(refused, ar_folder, tmp_path):
    assert "autoregressive" in refused("edit", ar_folder, TEXT)
    folder = make_checkpoint(tmp_path / "ending", policy="supervised_eos")
    refuse = partial(refused, "edit", folder, "The cat sat.", "--span", "4-7", "--steps", 1)
    assert "NoWords" in refuse("--without", "sat")
