"""Constraints on the command line."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import make_checkpoint

SAMPLE = ("--length", 14, "--steps", 5, "-n", 2, "--json")


def test_sample_takes_all_of_them_together(run, mdlm_folder):
    asked = ("--match", "[a-z ]+", "--with", "cat", "--with", "do", "--without", "e", "--characters", "12-14")
    code, out, err = run("sample", mdlm_folder, *asked, "--particles", 3, *SAMPLE)
    assert code == 0, err
    result = json.loads(out)
    for one in result["texts"]:
        assert re.fullmatch("[a-z ]{12,14}", one["text"])
        assert {"cat", "do"} <= set(one["text"].split())
        assert "e" not in one["text"].split()
    assert result["particles"] == 3
    assert result["constraints"][:2] == ["Regex(pattern='[a-z ]+')", "Words(words=('cat', 'do'), whole=True)"]


def test_watching_shows_the_same_text(run, mdlm_folder):
    asked = ("sample", mdlm_folder, "--length", 9, "--steps", 4, "--match", "[a-z]+")
    _, watched, _ = run(*asked, "--watch")
    code, out, _ = run(*asked, "--json")
    assert code == 0
    assert json.loads(out)["texts"][0]["text"] in watched


def test_fill_takes_them_too(run, mdlm_folder):
    code, out, err = run("fill", mdlm_folder, "a[MASK:4]b", "[MASK:9]", "--match", "[a-z ]+", "--with", "xy", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert all(re.fullmatch("[a-z ]+", one["text"]) and "xy" in one["text"].split() for one in result["texts"])
    assert result["texts"][0]["text"][::5] == "ab"
    assert (result["particles"], len(result["constraints"])) == (1, 2)


def test_characters_may_be_one_number(run, mdlm_folder):
    code, out, _ = run("sample", mdlm_folder, "--characters", "13", *SAMPLE)
    assert code == 0
    assert {len(one["text"]) for one in json.loads(out)["texts"]} == {13}


def test_an_edit_that_cannot_be_is_one_sentence_and_2(run, tmp_path):
    folder = make_checkpoint(tmp_path / "ending", policy="supervised_eos")
    code, out, err = run("edit", folder, "The cat sat.", "--without", "sat", "--span", "4-7", "--steps", 1)
    assert (code, out) == (2, "")
    assert "The given tokens contradict NoWords" in " ".join(err.split())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--match", "[a-z"), "regular expression"),
        (("--match", "abc"), "No canvas of 14 tokens"),
        (("--characters", "many"), "--characters must be a length such as 50 or 40-60, got 'many'"),
        (("--characters", "9-3"), "9 to 3"),
        (("--characters", "99999999"), "a token has at most 1 characters"),
        (("--match", "(.{0,1000}a){5}.*"), "too many states"),
        (("--with", ""), "not empty"),
        (("--particles", "2"), "give a constraint"),
        (("--with", "a", "--without", "a"), "cannot hold together"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_2(run, mdlm_folder, asked, words):
    code, out, err = run("sample", mdlm_folder, *asked, *SAMPLE)
    assert code == 2
    assert out == ""
    assert words in " ".join(err.split())
    assert "Traceback" not in err
