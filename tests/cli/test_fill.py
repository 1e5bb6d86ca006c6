"""`unmask fill`."""

from __future__ import annotations

import re
from functools import partial

import pytest


@pytest.fixture
def fill(reported, mdlm_folder):
    return partial(reported, "fill", mdlm_folder)


def test_blanks_are_filled_and_the_rest_is_kept(fill):
    first, second = fill("a[MASK]c", "[MASK:2]z", "--greedy")["texts"]
    assert (first["ids"][0], first["ids"][2], second["ids"][2]) == (97, 99, 122)
    assert first["order"] == [-1, 0, -1]
    assert second["seed"] == 1
    (one,) = fill("ab[MASK:2-4]cd")["texts"]
    assert 2 <= len(one["ids"]) - 4 <= 4


def test_text_is_printed_without_wrapping_or_markup(printed, mdlm_folder, mdlm):
    text = "[bold]" + "x" * 37 + "[MASK]"
    out = printed("fill", mdlm_folder, text, "--greedy")
    assert out == mdlm.fill(text, greedy=True) + "\n"


def test_constraints_and_orders_apply(fill):
    result = fill("a[MASK:4]b", "[MASK:9]", "--match", "[a-z ]+", "--with", "xy")
    assert all(re.fullmatch("[a-z ]+", one["text"]) and "xy" in one["text"].split() for one in result["texts"])
    assert result["texts"][0]["text"][::5] == "ab"
    assert (result["particles"], len(result["constraints"])) == (1, 2)
    result = fill("a[MASK:4]b", "--order", "threshold", "--greedy-above", 0.5)
    assert result["sampler"]["name"] == "threshold"
    assert result["rule"]["greedy_above"] == 0.5


def test_alternatives_are_listed(printed, reported, mdlm_folder, mdlm):
    (text,) = reported("fill", mdlm_folder, "a[MASK:2]b", "--top", 3)["texts"]
    expected = mdlm.fill("a[MASK:2]b", top=3)
    assert [[(one["token"], one["probability"]) for one in mask] for mask in text["masks"]] == expected
    lines = printed("fill", mdlm_folder, "a[MASK:2]b", "--top", 3).splitlines()
    assert lines[0] == "a[MASK:2]b"
    assert lines[1].startswith("  1: ")
    assert f"{expected[1][0][1]:.3f}" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing to fill",), "no blank"),
        (("a[MASK]", "--greedy", "--temperature", 0.5), "greedy"),
        (("a[MASK]", "--steps", 10**30), "less than or equal to 1000000"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, arguments, words):
    assert words in refused("fill", mdlm_folder, *arguments)


def test_an_autoregressive_model_cannot_fill(refused, ar_folder):
    assert "autoregressive" in refused("fill", ar_folder, "a [MASK] b")
