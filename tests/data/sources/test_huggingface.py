"""Hugging Face datasets on disk: saved ones, folders of files, streams. The tests do not use the hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import pytest

from unmask import registry
from unmask.data.sources import source_spec
from unmask.errors import UnmaskError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))


def rows(texts: list[str | None]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"n": list(range(len(texts))), "text": texts})


def read(path: Path | str, **options: object) -> list[tuple[str, str]]:
    source = registry.build("source", {"name": "huggingface", "path": str(path), **options})
    first = [(document.name, document.text) for document in source.documents()]
    assert first == [(document.name, document.text) for document in source.documents()], "a source can be read again"
    return first


def test_saved_datasets(tmp_path: Path) -> None:
    rows(["one", "two", "", None, "five"]).save_to_disk(tmp_path / "single")
    assert read(tmp_path / "single") == [("train#0", "one"), ("train#1", "two"), ("train#2", "five")]
    datasets.DatasetDict(train=rows(["a"]), test=rows(["b"])).save_to_disk(tmp_path / "splits")
    assert read(tmp_path / "splits") == [("train#0", "a")]
    assert read(tmp_path / "splits", split="test") == [("test#0", "b")]
    with pytest.raises(UnmaskError, match="it has no split 'dev' but train, test"):
        read(tmp_path / "splits", split="dev")


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_files(tmp_path: Path, streaming: bool) -> None:
    rows(["a", "b"]).to_parquet(tmp_path / "train-0.parquet")
    rows(["c"]).to_parquet(tmp_path / "test-0.parquet")
    assert read(tmp_path, streaming=streaming) == [("train#0", "a"), ("train#1", "b")]
    assert read(tmp_path, streaming=streaming, split="test") == [("test#0", "c")]
    with pytest.raises(UnmaskError, match=r"could not be read \(.*dev.*\); check path, config and split"):
        read(tmp_path, streaming=streaming, split="dev")


@pytest.mark.parametrize("streaming", [False, True])
def test_the_field(tmp_path: Path, streaming: bool) -> None:
    records = [{"n": n, "head": f"h{n}", "body": f"b{n}"} for n in range(600)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read(tmp_path, streaming=streaming, field="body") == [(f"train#{n}", f"b{n}") for n in range(600)]
    for field, message in (
        (None, "several fields with text among 'n', 'head', 'body'"),
        ("bodi", r"has no field 'bodi'\. Did you mean 'body'"),
        ("n", "row 1, has 0 instead of a text"),
    ):
        with pytest.raises(UnmaskError, match=message):
            read(tmp_path, streaming=streaming, field=field)


def test_a_stream_without_features(monkeypatch: pytest.MonkeyPatch) -> None:
    def generate() -> object:
        yield {"n": 1, "body": "a"}
        yield {"n": 2, "body": "b"}

    stream = datasets.IterableDataset.from_generator(generate)
    assert stream.features is None
    monkeypatch.setattr(datasets, "load_dataset", lambda *path, **options: stream)
    assert read("org/name", streaming=True) == [("train#0", "a"), ("train#1", "b")]


def test_options_are_passed_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(*path: object, **options: object) -> datasets.Dataset:
        calls.append((path, options))
        return rows(["a"])

    monkeypatch.setattr(datasets, "load_dataset", load)
    read("org/name", config="en", split="dev", streaming=True, revision="v1")
    assert calls == [(("org/name", "en"), {"split": "dev", "revision": "v1", "streaming": True})]


def test_datasets_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnmaskError, match=r"pip install 'unmask\[data\]'"):
        read("org/name")


def test_the_source_of_a_command_line_argument(tmp_path: Path) -> None:
    rows(["a"]).save_to_disk(tmp_path / "saved")
    assert source_spec("-") == {"name": "stdin"}
    assert source_spec("hf:org/stories") == {"name": "huggingface", "path": "org/stories"}
    assert source_spec(str(tmp_path / "saved")) == {"name": "huggingface", "path": str(tmp_path / "saved")}
    assert source_spec(str(tmp_path)) == {"name": "text", "paths": [str(tmp_path)]}
    assert source_spec("missing.txt") == {"name": "text", "paths": ["missing.txt"]}
