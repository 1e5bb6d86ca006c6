"""`unmask plot` as a user meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

LOGS = Path(__file__).parents[1] / "logs"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two run folders in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("healthy", "healthy-ar"):
        Path(name).mkdir()
        shutil.copy(LOGS / f"{name}.jsonl", Path(name, "log.jsonl"))
    return Path("healthy"), Path("healthy-ar")


def test_help_has_examples_and_json(run):
    code, out, _ = run("plot", "run", "--help")
    assert code == 0
    for words in ("unmask plot run", "Examples", "--json", "--x"):
        assert words in out
    code, out, _ = run("plot", "--help")
    assert code == 0
    assert "run" in out


def test_one_run_is_drawn_beside_its_log_and_several_here(run, runs):
    code, out, _ = run("plot", "run", runs[0])
    assert code == 0
    assert out == f"Wrote {runs[0] / 'curves.png'}\n"
    assert (runs[0] / "curves.png").read_bytes().startswith(b"\x89PNG")
    code, _, _ = run("plot", "run", *runs)
    assert code == 0
    assert Path("curves.png").is_file()


def test_json_has_last_and_best_values(run, runs):
    code, out, _ = run("plot", "run", *runs, "--x", "seconds", "--out", "compared.svg", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["picture"] == "compared.svg"
    assert Path("compared.svg").is_file()
    first, second = report["runs"]
    assert (first["name"], first["steps"], second["steps"]) == ("healthy", 400, 200)
    assert first["best"]["validation"] == {"step": 400, "bits_per_token": 4.514}
    assert second["last"]["bits_per_token"] == 3.686


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "no log.jsonl in 'nowhere'"),
        (("empty",), "no training line yet"),
        (("healthy", "nowhere"), "no log.jsonl in 'nowhere'"),
        (("healthy", "--out", "curves.jpg"), "must end in .png, .svg or .pdf"),
        (("healthy", "--out", "new/curves.png"), "the folder 'new' does not exist; create it first"),
        (("healthy", "--x", "tokens"), "--x steps"),
        (("healthy", "--x", "hours"), "--x"),
        ((), "DIR"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(run, runs, arguments, words):
    Path("empty").mkdir()
    Path("empty/log.jsonl").touch()
    before = sorted(Path().rglob("*"))
    code, out, err = run("plot", "run", *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert out == ""
    assert sorted(Path().rglob("*")) == before
