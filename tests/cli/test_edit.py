"""Control over the canvas on the command line: windows, suffixes, open blanks, edits."""

from __future__ import annotations

import io
import json
import sys

import pytest

TEXT = "One day Tim went out."


def told(run, *arguments):
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_sample_writes_more_than_the_model_sees(run, mdlm_folder):
    asked = ("sample", mdlm_folder, "--length", 120, "--steps", 4, "--stride", 40)
    (one,) = told(run, *asked)["texts"]
    assert len(one["ids"]) == 120
    assert one["calls"] == max(one["order"]) + 1
    code, watched, _ = run(*asked, "--watch")
    assert code == 0
    assert watched.rstrip("\n") == one["text"].rstrip("\n")


def test_sample_takes_a_suffix_and_guidance(run, mdlm_folder):
    asked = ("sample", mdlm_folder, "--prompt", "def ", "--suffix", " end.", "--length", 20, "--steps", 4)
    result = told(run, *asked, "--guidance", 1.5)
    assert result["guidance"] == 1.5
    assert result["texts"][0]["text"].startswith("def ")
    assert result["texts"][0]["text"].endswith(" end.")


def test_fill_takes_an_open_blank(run, mdlm_folder):
    (one,) = told(run, "fill", mdlm_folder, "ab[MASK:2-4]cd")["texts"]
    assert 2 <= len(one["ids"]) - 4 <= 4


def test_edit_writes_the_least_likely_tokens_anew(run, mdlm_folder):
    result = told(run, "edit", mdlm_folder, TEXT)
    assert result["strength"] == 0.3
    assert sum(order >= 0 for order in result["texts"][0]["order"]) == round(0.3 * len(TEXT))
    result = told(run, "edit", mdlm_folder, TEXT, "--strength", 1.0)
    assert min(result["texts"][0]["order"]) == 0


def test_edit_takes_spans_and_kept_words(run, mdlm_folder):
    (one,) = told(run, "edit", mdlm_folder, TEXT, "--span", "0-3", "--span", "8-11")["texts"]
    assert [i for i, order in enumerate(one["order"]) if order >= 0] == [0, 1, 2, 8, 9, 10]
    code, out, _ = run("edit", mdlm_folder, TEXT, "--keep", "Tim", "--keep", " out.", "--steps", 3)
    assert code == 0
    assert "Tim" in out
    assert out.endswith(" out.\n")


def test_edit_takes_the_options_of_fill(run, mdlm_folder):
    asked = ("--strength", 1.0, "--match", "[a-z ]+", "--with", "dog", "--without", "x", "--characters", "12-20")
    more = ("--particles", 3, "--min-p", 0.01, "--greedy-tail", 0.2, "--greedy-above", 0.99)
    result = told(run, "edit", mdlm_folder, "ab cd ef gh ij kl", *asked, *more)
    text = result["texts"][0]["text"]
    assert "dog" in text
    assert not set(text) - set("abcdefghijklmnopqrstuvwyz ")
    assert 12 <= len(text) <= 20
    assert (len(result["constraints"]), result["particles"]) == (4, 3)
    rule = result["rule"]
    assert (rule["min_p"], rule["greedy_tail"], rule["greedy_above"]) == (0.01, 0.2, 0.99)


def test_edit_reads_lines(run, mdlm_folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one line\nanother line\n"))
    result = told(run, "edit", mdlm_folder, "-", "--seed", 4)
    assert [one["seed"] for one in result["texts"]] == [4, 5]


def test_edit_helps(run):
    code, out, _ = run("edit", "--help")
    assert code == 0
    for words in ("Examples", "--strength", "--span", "--keep"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("edit", "{mdlm}", TEXT, "--span", "here"), "--span must be a range of characters"),
        (("edit", "{mdlm}", TEXT, "--span", "5-90"), "end <= 21, got (5, 90)"),
        (("edit", "{mdlm}", TEXT, "--strength", 2), "strength must be in (0, 1], got 2"),
        (("edit", "{mdlm}", TEXT, "--strength", 0.5, "--keep", "Tim"), "one of them"),
        (("edit", "{mdlm}", TEXT, "--keep", "Tom"), "words of the text, got 'Tom'"),
        (("edit", "{ar}", TEXT), "autoregressive"),
        (("edit", "nowhere", TEXT), "no checkpoint at 'nowhere'"),
        (("edit", "{mdlm}"), "add the text to edit"),
        (("fill", "{mdlm}", "a[MASK:6-2]"), "[MASK:2-6]"),
        (("fill", "{mdlm}", "a[MASK:47-60]b"), "[MASK:47-60]"),
        (("edit", "{mdlm}", TEXT, "--with", "x" * 30), "No canvas of 21"),
        (("sample", "{mdlm}", "--seed", 10**23), "seed must be"),
        (("sample", "{mdlm}", "--seed", 2**63 - 1, "-n", 2, "--watch"), "for 2 texts"),
        (("sample", "{ar}", "--length", 6, "--steps", 2), "steps"),
        (("sample", "{ar}", "--length", 6, "--stride", 2), "stride=2"),
        (("sample", "{ar}", "--length", 6, "--watch", "--prompt", "O[MASK]a"), "after a blank"),
        (("fill", "{mdlm}", "a[MASK]", "--top-p", 0), "top_p must be greater than 0"),
        (("sample", "{mdlm}", "--length", 90, "--stride", 60), "stride must be from 1 to 48"),
        (("sample", "{mdlm}", "--length", 90, "--match", "[a-z]+"), "at most 48, got 90"),
        (("sample", "{mdlm}", "--prompt", "x" * 60, "--length", 50), "60 tokens and the canvas 50"),
        (("sample", "{mdlm}", "--guidance", 1), "needs a prompt"),
        (("sample", "{mdlm}", "--length", 10**12), "length must be from 1 to 1000000"),
        (("sample", "{mdlm}", "-n", 10**12), "n must be from 1 to 1000000"),
        (("fill", "{mdlm}", "a[MASK]", "--greedy", "--temperature", 0.5), "greedy means temperature=0"),
        (("sample", "{ar}", "--prompt", "a", "--suffix", "b"), "suffix"),
    ],
)
def test_bad_input_is_one_sentence_and_2(refused, mdlm_folder, ar_folder, arguments, words):
    assert words in refused(*[str(one).format(mdlm=mdlm_folder, ar=ar_folder) for one in arguments])


def test_a_tokenizer_without_a_mask_token_is_one_sentence_and_2(run, mdlm_folder, tmp_path):
    import shutil

    folder = tmp_path / "maskless"
    shutil.copytree(mdlm_folder, folder)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({name: value for name, value in settings.items() if name != "mask_token"}))
    for arguments in (("sample", folder, "--length", 8), ("fill", folder, "a[MASK]b"), ("score", folder, "abc")):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "no mask token" in err
