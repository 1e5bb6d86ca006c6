"""Hugging Face datasets that lie here: saved ones, folders of files, streams. The hub is out of reach in the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from unmask import registry
from unmask.data.sources import base as pieces
from unmask.data.sources import source_spec
from unmask.errors import UnmaskError

TRAIN = ["one", "two", "", None, "five"]


@pytest.fixture(autouse=True)
def own_datasets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))


def rows(texts: list[str | None]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"n": list(range(len(texts))), "text": texts})


def source(path: Path, **options: object) -> object:
    return registry.build("source", {"name": "huggingface", "path": str(path), **options})


def read(path: Path, **options: object) -> list[tuple[str, str]]:
    made = source(path, **options)
    first = [(document.name, document.text) for document in made.documents()]
    assert first == [(document.name, document.text) for document in made.documents()], "a source can be read again"
    return first


def test_a_saved_dataset(tmp_path: Path) -> None:
    rows(TRAIN).save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "saved") == [("train#0", "one"), ("train#1", "two"), ("train#2", "five")]
    assert source_spec(str(tmp_path / "saved")) == {"name": "huggingface", "path": str(tmp_path / "saved")}


def test_a_saved_dataset_with_splits(tmp_path: Path) -> None:
    datasets.DatasetDict(train=rows(["a"]), test=rows(["b"])).save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "saved") == [("train#0", "a")]
    assert read(tmp_path / "saved", split="test") == [("test#0", "b")]
    with pytest.raises(UnmaskError, match="it has no split 'dev' but train, test"):
        read(tmp_path / "saved", split="dev")
    assert source_spec(str(tmp_path / "saved"))["name"] == "huggingface"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_files(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "data").mkdir()
    rows(["a", "b"]).to_parquet(tmp_path / "data" / "train-0.parquet")
    rows(["c"]).to_parquet(tmp_path / "data" / "test-0.parquet")
    assert read(tmp_path / "data", streaming=streaming) == [("train#0", "a"), ("train#1", "b")]
    assert read(tmp_path / "data", streaming=streaming, split="test") == [("test#0", "c")]
    with pytest.raises(UnmaskError, match=r"could not be read \(.*dev.*\); check path, config and split"):
        read(tmp_path / "data", streaming=streaming, split="dev")
    assert source_spec(str(tmp_path / "data"))["name"] == "text", "a folder of files is walked"


@pytest.mark.parametrize("streaming", [False, True])
def test_the_field(tmp_path: Path, streaming: bool) -> None:
    records = [{"n": n, "head": f"h{n}", "body": f"b{n}"} for n in range(600)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    expected = [(f"train#{n}", f"b{n}") for n in range(600)]
    assert read(tmp_path, streaming=streaming, field="body") == expected
    with pytest.raises(UnmaskError, match="several fields with text among 'n', 'head', 'body'"):
        read(tmp_path, streaming=streaming)
    with pytest.raises(UnmaskError, match=r"has no field 'bodi'\. Did you mean 'body'"):
        read(tmp_path, streaming=streaming, field="bodi")
    with pytest.raises(UnmaskError, match="row 1, has 0 where a text belongs"):
        read(tmp_path, streaming=streaming, field="n")


def test_a_stream_that_does_not_know_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def generate() -> object:
        yield {"n": 1, "body": "a"}
        yield {"n": 2, "body": "b"}

    stream = datasets.IterableDataset.from_generator(generate)
    assert stream.features is None
    monkeypatch.setattr(datasets, "load_dataset", lambda *path, **options: stream)
    assert read(Path("org/name"), streaming=True) == [("train#0", "a"), ("train#1", "b")]


def test_long_texts_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(["one two", "three"]).save_to_disk(tmp_path / "saved")
    monkeypatch.setattr(pieces, "PIECE", 3)
    documents = [(document.text, document.more) for document in source(tmp_path / "saved").documents()]
    assert documents == [("one", True), (" two", False), ("three", False)]


def test_the_hub_out_of_reach_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "from unmask import registry; from unmask.errors import UnmaskError\n"
        "try: registry.build('source', {'name': 'huggingface', 'path': 'nobody/nothing'}).documents()\n"
        "except UnmaskError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    (sentence,) = done.stdout.splitlines()
    assert sentence.startswith("The dataset 'nobody/nothing' could not be read (")
    assert "the network if it is on the Hugging Face hub." in sentence


def test_what_a_call_asks_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(*path: object, **options: object) -> datasets.Dataset:
        asked.append((path, options))
        return rows(["a"])

    monkeypatch.setattr(datasets, "load_dataset", load)
    read(Path("org/name"), config="en", split="dev", streaming=True, revision="v1")
    assert asked == [(("org/name", "en"), {"split": "dev", "revision": "v1", "streaming": True})]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnmaskError, match=r"pip install 'unmask\[data\]'"):
        source(Path("org/name")).documents()
