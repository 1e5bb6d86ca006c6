"""`unmask train` and `unmask eval` on folders, datasets and recipes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import datasets
import pytest

from unmask.config import recipe_for
from unmask.errors import UnmaskError

SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32", "training.batch_size=4"]


def test_training_and_evaluation_on_a_mixed_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mixed").mkdir()
    words = "the cat sat on the mat. " * 20
    Path("mixed/a.md").write_text(words)
    Path("mixed/b.jsonl.gz").write_bytes(
        gzip.compress(b"".join(b'{"body": "%s"}\n' % words.encode() for _ in range(9)))
    )
    Path("mixed/c.csv").write_text("n,body\n" + f"1,{words}\n" * 9)
    Path("mixed/photo.[png]").write_bytes(b"\x89PNG")
    code, _, err = run("train", "mixed", "training.steps=2", *SMALL)
    assert code == 0, err
    assert "Skipped files: 1 .[png]." in err
    for data, options in (("mixed", []), ("mixed/b.jsonl.gz", ["--field", "body"])):
        code, out, err = run("eval", "runs/mixed", "--data", data, *options, "--json")
        assert code == 0, err
    assert json.loads(out)["headline"]["bytes"] == 9 * len(words)
    code, _, err = run("eval", "runs/mixed", "--data", "mixed/b.jsonl.gz", "--field", "bodi")
    assert code == 2
    assert "Did you mean 'body'" in err


def test_training_and_evaluation_on_a_saved_dataset(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = ["the dog lay on the log. " * 5] * 20
    datasets.Dataset.from_dict({"text": texts}).save_to_disk("saved")
    code, _, err = run("train", "saved", "training.steps=2", *SMALL)
    assert code == 0, err
    code, out, err = run("eval", "runs/saved", "--data", "saved", "--data", "saved", "--json")
    assert code == 0, err
    assert json.loads(out)["headline"]["bytes"] == 2 * sum(map(len, texts))
    code, _, err = run("eval", "runs/saved", "--data", "saved", "--separator", "line")
    assert code == 2
    assert "no option 'separator'" in err


def test_arguments_of_train(tmp_path):
    fasta = tmp_path / "genome.fa.zst"
    fasta.touch()
    assert recipe_for(str(fasta)).data.source.name == "text"
    assert recipe_for("-").data.source.name == "stdin"
    source = recipe_for("hf:org/stories", ["data.source.config=en", "data.source.streaming=true"]).data.source
    assert (source.name, source.path, source.config, source.streaming) == ("huggingface", "org/stories", "en", True)


def test_a_typo_of_a_file_suggests_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("holiday.png", "stories.txt", "taxes.ods"):
        (tmp_path / name).touch()
    with pytest.raises(UnmaskError, match=f"Did you mean '{tmp_path / 'stories.txt'}'"):
        recipe_for(str(tmp_path / "storys.txt"))
    with pytest.raises(UnmaskError, match="Choose one of: code, ") as caught:
        recipe_for("nothing-of-the-kind")
    assert "holiday.png" not in str(caught.value)


def test_two_texts_need_a_list_of_paths(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("the cat sat on the mat. " * 40)
    code, _, err = run("train", "one.txt", "two.txt", *SMALL, "training.steps=1")
    assert code == 2
    assert "Cannot train on both 'one.txt' and 'two.txt'" in err
    assert "data.source.paths='[one.txt, two.txt]'" in err
    assert not (tmp_path / "runs").exists()
    assert recipe_for("one.txt", ["data.source.paths=[one.txt, two.txt]"]).data.source.paths == ["one.txt", "two.txt"]


def test_a_recipe_that_is_not_yaml_is_an_error_with_a_line(run, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("data:\n  length: 8\n training: [\n")
    code, _, err = run("train", str(broken))
    assert code == 2
    assert f"'{broken}' is not YAML (line 3: " in err
    broken.write_bytes(b"\xff\xfe\x00")
    code, _, err = run("train", str(broken))
    assert code == 2
    assert f"'{broken}' is not YAML ('utf-8' codec" in err


def test_a_file_cannot_be_the_folder_of_a_run(run, tmp_path):
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader")
    code, _, err = run("train", "demo", "--out", str(letter))
    assert code == 2
    assert err.endswith(f"'{letter}' is a file, not a folder; choose another folder.\n")
    assert letter.read_text() == "Dear reader"
