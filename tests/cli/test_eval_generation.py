"""`unmask eval generation` as a user meets it, beside `unmask eval`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.judges import CONTEXT, save_judge

FIGURES = ("perplexity", "entropy", "repetition", "distinct_1", "distinct_2", "distinct_3", "tokens", "characters")


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judges") / "llama")


@pytest.fixture
def place(tmp_path, monkeypatch, mdlm_folder, ar_folder, judge_folder):
    """A working folder with two checkpoints, a judge and some text."""
    monkeypatch.chdir(tmp_path)
    for name, folder in {"mdlm": mdlm_folder, "ar": ar_folder, "judge": judge_folder}.items():
        Path(name).symlink_to(folder)
    Path("book.txt").write_text("a few words to be judged\n" * 8)
    return tmp_path


def test_an_order_is_for_those_that_have_one(run, place):
    asked = ("--judge", "judge", "-n", 2, "--length", 12, "--data", "book.txt", "--steps", 3, "--order", "margin")
    asked += ("--sampler", "name: remdm, eta: 0.1")
    code, out, err = run("eval", "generation", "mdlm", "ar", *asked, "--json")
    assert code == 0, err
    _, margin, remasked, causal = json.loads(out)["rows"]
    assert (margin["name"], margin["sampler"]["order"], margin["calls"]["value"]) == ("mdlm, margin", "margin", 3)
    assert remasked["name"] == "mdlm, remdm, eta: 0.1"
    assert (remasked["sampler"]["eta"], remasked["sampler"]["steps"], remasked["calls"]["value"]) == (0.1, 3, 3)
    assert (causal["sampler"]["name"], causal["calls"]["value"]) == ("ar", 12)


def test_a_way_that_is_none_is_refused_before_a_judge_is_opened(run, place):
    code, out, err = run("eval", "generation", "mdlm", "--judge", "nowhere", "--order", "confidense")
    assert (code, out) == (2, "")
    assert "confidense" in err
    assert "Did you mean 'confidence'" in err


def test_models_and_data_stand_in_one_table(run, place):
    options = ("--judge", "judge", "-n", 3, "--length", 16, "--batch-size", 2, "--data", "book.txt")
    steps = ("--steps", 2, "--steps", "none")
    code, out, err = run("eval", "generation", "mdlm", "ar", *options, *steps, "--out", "all.json", "--plot", "f.png")
    assert code == 0, err
    for words in ("perplexity", "entropy", "held-out data", "mdlm, 2 steps", "ar", "95%"):
        assert words in out
    report = json.loads(Path("all.json").read_text())
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")
    assert report["judge"] == {"name": "judge", "context": CONTEXT, "dtype": "float32", "device": "cpu"}
    rows = report["rows"]
    assert [row["checkpoint"] for row in rows] == [None, "mdlm", "mdlm", "ar"]
    assert [(row["name"], row["steps"]) for row in rows] == [
        ("held-out data", None),
        ("mdlm", 2),
        ("mdlm", None),
        ("ar", None),
    ]
    for row in rows:
        assert row["texts"] == 3
        assert all(row[name]["low"] <= row[name]["value"] <= row[name]["high"] for name in FIGURES)
    assert rows[0]["calls"] is None
    assert [row["calls"]["value"] for row in rows[2:]] == [16, 16]
    assert rows[1]["calls"]["value"] <= 2


def test_json_is_the_same_whatever_the_batch(run, place):
    command = ("eval", "generation", "mdlm", "--judge", "judge", "-n", 4, "--length", 12, "--steps", 3, "--json")
    reports = []
    for size in (1, 4):
        code, out, err = run(*command, "--batch-size", size)
        assert code == 0
        assert "No held-out row" in err
        reports.append(json.loads(out)["rows"][0])
    for name in (*FIGURES, "calls"):
        assert reports[0][name] == pytest.approx(reports[1][name], rel=1e-4)


def test_texts_that_exist_already_are_judged(run, place):
    Path("samples.json").write_text(json.dumps(["one text", "", "another text"]))
    code, out, _ = run("eval", "generation", "--judge", "ar", "--texts", "samples.json", "--data", "book.txt", "--json")
    assert code == 0
    data, samples = json.loads(out)["rows"]
    assert (data["kind"], data["texts"]) == ("data", 1)
    assert (samples["name"], samples["texts"], samples["empty"]) == ("samples.json", 3, 1)
    code, out, _ = run("eval", "generation", "--judge", "ar", "--texts", "samples.json")
    assert code == 0
    assert "1 of 3 texts are empty" in out


def test_texts_of_one_name_are_told_apart_by_their_paths(run, place):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "s.json").write_text(json.dumps([f"a text of {folder}"] * (1 + (folder == "b"))))
    Path("c.txt").write_text("a line")
    files = [word for file in ("a/s.json", "b/s.json", "c.txt") for word in ("--texts", file)]
    code, out, err = run("eval", "generation", "--judge", "ar", *files, "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(row["name"], row["texts"]) for row in rows] == [("a/s.json", 1), ("b/s.json", 2), ("c.txt", 1)]


def test_text_that_is_not_here_is_asked_for(run, place, mdlm_folder):
    """A shipped model was trained on files that its user never had."""
    shutil.copytree(mdlm_folder, "shipped")
    card = json.loads(Path("shipped/unmask.json").read_text())
    card["protocol"] = {"data": {"source": {"name": "text", "paths": ["stories-0.txt"]}, "tokenizer": "byte"}}
    Path("shipped/unmask.json").write_text(json.dumps(card))
    words = "The training data of this checkpoint cannot be read (stories-0.txt does not exist); name texts"
    code, out, err = run("eval", "shipped")
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    code, _, err = run("eval", "generation", "shipped", "--judge", "judge", "-n", 1, "--length", 8, "--steps", 2)
    assert code == 0
    assert f"No held-out row: {words} with --data." in " ".join(err.split())


def test_a_checkpoint_called_generation_is_reached_by_its_path(run, place, mdlm_folder):
    shutil.copytree(mdlm_folder, "generation")
    for words in (("./generation",), ("perplexity", "generation"), ("mdlm",)):
        code, out, _ = run("eval", *words, "--data", "book.txt", "--json")
        assert code == 0
        assert json.loads(out)["headline"]["bytes"] == Path("book.txt").stat().st_size


def test_help_of_both(run):
    code, out, _ = run("eval", "generation", "--help")
    assert code == 0
    for words in ("Examples", "--judge", "--json", "unmask eval generation"):
        assert words in out
    code, out, _ = run("eval", "--help")
    assert code == 0
    assert "--precision" in out
    assert "unmask eval generation" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mdlm",), "--judge"),
        (("mdlm", "--judge", "./nowhere"), "no judge at './nowhere'"),
        (("mdlm", "--judge", "mdlm"), "'mdlm' is a masked diffusion model"),
        (("nowhere", "--judge", "judge"), "no checkpoint at 'nowhere'"),
        (("mdlm", "nowhere", "--judge", "judge"), "no checkpoint at 'nowhere'"),
        (("mdlm", "--judge", "judge", "-n", 0), "-n"),
        (("mdlm", "--judge", "judge", "--steps", 0), "--steps must be an integer"),
        (("mdlm", "--judge", "judge", "--steps", "few"), "got 'few'"),
        (("mdlm", "--judge", "judge", "--top-p", 2), "top_p"),
        (("ar", "--judge", "judge", "--length", 4000), "length must be at most 48"),
        (("mdlm", "--judge", "judge", "--data", "nowhere.txt"), "nowhere.txt"),
        (("mdlm", "--judge", "judge", "--plot", "f.jpg"), "must end in .png, .svg or .pdf"),
        (("mdlm", "--judge", "judge", "--out", "."), "'.' is a folder"),
        (("mdlm", "--judge", "judge", "--out", "new/x.json"), "the folder 'new' does not exist; create it first"),
        (("mdlm", "--judge", "judge", "--plot", "new/x.png"), "the folder 'new' does not exist; create it first"),
        (("mdlm", "--judge", "judge", "--out", "book.txt/x.json"), "x.json' cannot be written"),
        (("mdlm", "--judge", "judge", "--plot", "book.txt/x.png"), "x.png' cannot be written"),
        (("--judge", "judge", "--texts", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(run, place, arguments, words):
    before = sorted(Path().rglob("*"))
    record = () if "--out" in arguments else ("--out", "results.json")
    code, out, err = run("eval", "generation", *arguments, *record)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert out == ""
    assert sorted(Path().rglob("*")) == before
