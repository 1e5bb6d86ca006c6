"""`unmask eval generation`."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.judges import CONTEXT, save_judge
from unmask.models.build import silence_transformers

FIGURES = ("perplexity", "entropy", "repetition", "distinct_1", "distinct_2", "distinct_3", "tokens", "characters")


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judges") / "llama")


@pytest.fixture
def generation(run, tmp_path, monkeypatch, mdlm_folder, ar_folder, judge_folder):
    """Run the verb in a folder with two checkpoints, a judge and some text."""
    monkeypatch.chdir(tmp_path)
    for name, folder in {"mdlm": mdlm_folder, "ar": ar_folder, "judge": judge_folder}.items():
        Path(name).symlink_to(folder)
    Path("book.txt").write_text("a few words to be scored\n" * 8)

    def call(*arguments):
        code, out, err = run("eval", "generation", *arguments)
        assert code == 0, err
        return out, err

    return call


def test_the_retries_of_the_hub_are_not_shown(capfd):
    with silence_transformers():
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s")
    assert capfd.readouterr() == ("", "")


def rows_of(generation, *arguments):
    return json.loads(generation(*arguments, "--json")[0])["rows"]


def test_models_and_held_out_data_have_a_row_each(generation):
    options = ("--judge", "judge", "-n", 3, "--length", 16, "--batch-size", 2, "--data", "book.txt")
    steps = ("--steps", 2, "--steps", "none")
    out, _ = generation("mdlm", "ar", *options, *steps, "--out", "all.json", "--plot", "f.png")
    for words in ("perplexity", "entropy", "held-out data", "mdlm, 2 steps", "ar", "95%"):
        assert words in out
    report = json.loads(Path("all.json").read_text())
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")
    assert report["judge"] == {"name": "judge", "context": CONTEXT, "dtype": "float32", "device": "cpu"}
    rows = report["rows"]
    assert [row["checkpoint"] for row in rows] == [None, "mdlm", "mdlm", "ar"]
    names = [(row["name"], row["steps"]) for row in rows]
    assert names == [("held-out data", None), ("mdlm", 2), ("mdlm", None), ("ar", None)]
    for row in rows:
        assert row["texts"] == 3
        assert all(row[name]["low"] <= row[name]["value"] <= row[name]["high"] for name in FIGURES)
    assert rows[0]["calls"] is None
    assert [row["calls"]["value"] for row in rows[2:]] == [16, 16]
    assert rows[1]["calls"]["value"] <= 2


def test_orders_and_samplers_apply_to_masked_models(generation):
    options = ("--judge", "judge", "-n", 2, "--length", 12, "--data", "book.txt", "--steps", 3)
    samplers = ("--order", "margin", "--sampler", "name: remdm, eta: 0.1")
    _, margin, remasked, causal = rows_of(generation, "mdlm", "ar", *options, *samplers)
    assert (margin["name"], margin["sampler"]["order"], margin["calls"]["value"]) == ("mdlm, margin", "margin", 3)
    assert remasked["name"] == "mdlm, remdm, eta: 0.1"
    assert (remasked["sampler"]["eta"], remasked["sampler"]["steps"], remasked["calls"]["value"]) == (0.1, 3, 3)
    assert (causal["sampler"]["name"], causal["calls"]["value"]) == ("ar", 12)


def test_results_do_not_depend_on_the_batch(generation):
    options = ("mdlm", "--judge", "judge", "-n", 4, "--length", 12, "--steps", 3, "--json")
    rows = []
    for size in (1, 4):
        out, err = generation(*options, "--batch-size", size)
        assert err.startswith("No held-out row: ")
        assert "--data" in err
        rows.append(json.loads(out)["rows"][0])
    for name in (*FIGURES, "calls"):
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-4)


def test_texts_in_files_are_scored(generation):
    Path("samples.json").write_text(json.dumps(["one text", "", "another text"]))
    data, samples = rows_of(generation, "--judge", "ar", "--texts", "samples.json", "--data", "book.txt")
    assert (data["kind"], data["texts"]) == ("data", 1)
    assert (samples["name"], samples["texts"], samples["empty"]) == ("samples.json", 3, 1)
    assert "1 of 3 texts are empty" in generation("--judge", "ar", "--texts", "samples.json")[0]
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "s.json").write_text(json.dumps([f"a text of {folder}"] * (1 + (folder == "b"))))
    Path("c.txt").write_text("a line")
    files = [word for file in ("a/s.json", "b/s.json", "c.txt") for word in ("--texts", file)]
    rows = rows_of(generation, "--judge", "ar", *files)
    assert [(row["name"], row["texts"]) for row in rows] == [("a/s.json", 1), ("b/s.json", 2), ("c.txt", 1)]


def test_quality_is_compared_with_held_out_texts(generation):
    pytest.importorskip("mauve")
    Path("lines.txt").write_text("".join(f"a line of number {i}, and an end.\n" for i in range(12)))
    Path("same.txt").write_text(Path("lines.txt").read_text())
    Path("other.txt").write_text('zzz "qqqq\n' * 12)
    options = ("--judge", "judge", "--texts", "same.txt", "--texts", "other.txt", "--data", "lines.txt")
    options += ("--separator", "line", "-n", 12)
    data, same, other = rows_of(generation, *options, "--mauve", "ar")
    assert data["mauve"] is None
    assert same["mauve"]["value"] == pytest.approx(1, abs=1e-3)
    assert other["mauve"]["value"] < 0.1
    assert [row["broken_words"]["value"] for row in (data, same, other)] == [0, 0, 1]
    assert [row["unfinished_quotes"]["value"] for row in (same, other)] == [0, 1]
    assert [row["unfinished_end"]["value"] for row in (same, other)] == [0, 1]
    assert other["self_bleu"]["value"] > 99 > same["self_bleu"]["value"]
    shown = generation(*options)[0]
    assert "mauve" not in shown
    assert "self-bleu" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mdlm",), "--judge"),
        (("mdlm", "--judge", "./nowhere"), "'./nowhere'"),
        (("mdlm", "--judge", "nowhere", "--order", "confidense"), "Did you mean 'confidence'"),
        (("mdlm", "--judge", "mdlm"), "masked diffusion model"),
        (("mdlm", "nowhere", "--judge", "judge"), "'nowhere'"),
        (("mdlm", "--judge", "judge", "--steps", "few"), "few"),
        (("mdlm", "--judge", "judge", "--top-p", 2), "top_p"),
        (("ar", "--judge", "judge", "--length", 4000, "--data", "book.txt"), "48"),
        (("mdlm", "--judge", "judge", "--data", "nowhere.txt"), "nowhere.txt"),
        (("mdlm", "--judge", "judge", "--plot", "f.jpg"), ".png"),
        (("mdlm", "--judge", "judge", "--out", "."), "'.'"),
        (("mdlm", "--judge", "judge", "--out", "new/x.json"), "'new'"),
        (("mdlm", "--judge", "judge", "--plot", "new/x.png"), "'new'"),
        (("mdlm", "--judge", "judge", "--out", "book.txt/x.json"), "x.json"),
        (("--judge", "judge", "--texts", "nowhere.json"), "nowhere.json"),
        (("--judge", "judge", "--mauve", "./nowhere"), "'./nowhere'"),
        (("mdlm", "--judge", "judge", "--mauve", "judge"), "--data"),
        (("--judge", "judge", "--mauve", "judge", "--texts", "book.txt"), "--data"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, generation, arguments, words):
    before = sorted(Path().rglob("*"))
    out = () if "--out" in arguments else ("--out", "results.json")
    assert words in refused("eval", "generation", *arguments, *out)
    assert sorted(Path().rglob("*")) == before
