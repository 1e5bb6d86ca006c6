"""Orders, samplers and token rules on the command line."""

from __future__ import annotations

import json

import pytest

SAMPLE = ("--length", 12, "-n", 2, "--json")


def test_sample_takes_an_order(run, mdlm_folder):
    code, out, err = run("sample", mdlm_folder, "--order", "left_to_right", "--steps", 4, *SAMPLE)
    assert code == 0, err
    result = json.loads(out)
    assert result["sampler"]["order"] == "left_to_right"
    assert result["texts"][0]["order"] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert result["texts"][0]["calls"] == 4


def test_sample_takes_a_sampler_with_options(run, mdlm_folder):
    asked = ("--sampler", "name: remdm, strategy: conf, eta: 0.3", "--steps", 6, "--min-p", 0.1, "--greedy-tail", 0.5)
    code, out, err = run("sample", mdlm_folder, *asked, *SAMPLE)
    assert code == 0, err
    result = json.loads(out)
    assert (result["sampler"]["strategy"], result["sampler"]["eta"], result["sampler"]["steps"]) == ("conf", 0.3, 6)
    assert (result["rule"]["min_p"], result["rule"]["greedy_tail"]) == (0.1, 0.5)
    assert [one["calls"] for one in result["texts"]] == [6, 6]


def test_fill_takes_them_too(run, mdlm_folder):
    code, out, err = run("fill", mdlm_folder, "a[MASK:4]b", "--order", "threshold", "--greedy-above", 0.5, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["sampler"]["name"] == "threshold"
    assert result["rule"]["greedy_above"] == 0.5
    assert result["texts"][0]["text"][::5] == "ab"


def test_pictures_of_walks_that_adapt_and_mask_again(run, mdlm_folder, tmp_path):
    for way in (("--order", "threshold"), ("--sampler", "name: remdm, eta: 0.5", "--steps", 8)):
        files = [tmp_path / f"replay.{kind}" for kind in ("html", "gif", "png")]
        asked = [x for path in files for x in (f"--{path.suffix[1:]}", path)]
        code, _, err = run("sample", mdlm_folder, "--length", 12, *way, *asked)
        assert code == 0, err
        assert all(path.stat().st_size > 500 for path in files)
        files[0].unlink()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--order", "sideways"), "no order named 'sideways'"),
        (("--sampler", "name: [remdm"), "name: remdm, strategy: cap"),
        (("--sampler", "name: remdm, eta: 3"), "got 3"),
        (("--order", "margin", "--sampler", "remdm"), "give one of them"),
        (("--order", "threshold", "--steps", "4"), "leave out steps=4"),
        (("--min-p", "2"), "got 2"),
        (("--greedy-tail", "-1"), "got -1"),
        (("--greedy-above", "1.5"), "got 1.5"),
        (("--sampler", "remdm", "--with", "a", "--particles", "2"), "does not support particles"),
    ],
)
def test_bad_words_are_one_sentence_and_exit_code_two(run, mdlm_folder, asked, words):
    code, out, err = run("sample", mdlm_folder, "--length", 12, *asked)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    assert err.count("\n") <= 3


def test_plot_order_draws_one_panel_a_way(run, mdlm_folder, tmp_path):
    picture = tmp_path / "order.png"
    ways = ("--order", "left_to_right", "--order", "threshold", "--sampler", "name: remdm, eta: 0.5")
    code, out, err = run(
        "plot", "order", mdlm_folder, "--length", 12, "--prompt", "ab", "--steps", 5, *ways, "--out", picture, "--json"
    )
    assert code == 0, err
    walks = json.loads(out)["walks"]
    assert [walk["name"] for walk in walks] == ["left to right", "threshold", "remdm cap"]
    assert [one[:2] for one in walks[0]["written"]] == [[i, (i - 2) // 2 + 1] for i in range(2, 12)]
    assert walks[2]["calls"] == 5
    assert walks[0]["given"] == [0, 1]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plot_order_of_the_causal_twin(run, ar_folder, tmp_path):
    code, out, err = run("plot", "order", ar_folder, "--length", 6, "--steps", 3, "--out", tmp_path / "a.png", "--json")
    assert code == 0, err
    assert [one[:2] for one in json.loads(out)["walks"][0]["written"]] == [[i, i + 1] for i in range(6)]


def test_plot_order_refuses_before_it_works(refused, tmp_path):
    assert "must end in .png, .svg or .pdf" in refused("plot", "order", "nowhere", "--out", tmp_path / "order.txt")
    assert "does not exist" in refused("plot", "order", "nowhere", "--out", tmp_path / "new" / "order.png")
    assert not list(tmp_path.iterdir())
