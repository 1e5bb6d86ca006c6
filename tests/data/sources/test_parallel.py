"""Pairs of texts from aligned files, TSV, JSON Lines and datasets, and the made-up language."""

from __future__ import annotations

import gzip
import json

import pytest

from unmask.data.sources.parallel import ParallelSource, ToyTranslationSource, split_pair
from unmask.data.split import split_source
from unmask.errors import UnmaskError
from unmask.registry import build

PAIRS = [("Ein  Hund.", "A dog."), ("Zwei\u00a0Katzen", "Two\tcats"), ("", "Nothing"), ("Ende", "End")]
DOCUMENTS = ["Ein Hund.\tA dog.", "Zwei Katzen\tTwo cats", "Ende\tEnd"]


def texts(**options):
    return [document.text for document in ParallelSource(**options).documents()]


def test_lines_of_two_files_correspond(tmp_path):
    with gzip.open(tmp_path / "a.de.gz", "wt", encoding="utf-8") as file:
        file.write("".join(f"{source}\n" for source, _ in PAIRS))
    (tmp_path / "a.en").write_text("".join(f"{target}\n" for _, target in PAIRS))
    paths = [str(tmp_path / "a.de.gz"), str(tmp_path / "a.en")]
    assert texts(paths=paths) == DOCUMENTS
    split = split_source(ParallelSource(paths=paths, validation=paths), fraction=0.5)
    assert split.train.documents == 3
    assert [one.text for one in split.documents(validation=True)] == DOCUMENTS


def test_one_file_or_dataset_has_both_sides(tmp_path):
    rows = [{"de": source, "en": target} for source, target in PAIRS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert texts(paths=str(tmp_path / "a.jsonl"), fields=("de", "en")) == DOCUMENTS
    (tmp_path / "a.tsv").write_text("Ein  Hund.\tA dog.\n\n\tNothing\nEnde\tEnd\r\n")
    assert texts(paths=str(tmp_path / "a.tsv")) == [DOCUMENTS[0], DOCUMENTS[2]]
    datasets = pytest.importorskip("datasets")
    filled = [row for row in rows if all(row.values())]
    datasets.DatasetDict({"test": datasets.Dataset.from_list(filled)}).save_to_disk(tmp_path / "saved")
    assert texts(paths=str(tmp_path / "saved"), fields=("de", "en"), split="test") == DOCUMENTS


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "x\ny\n", "b": "x\n"}, "do not have equally many lines: one has 1; align"),
        ({"a": "no tab\n"}, "line 1 is not a pair of texts"),
        ({"a": "x\ty\nx\ty\tz\n"}, "line 2 is not a pair of texts"),
        ({"a.jsonl": '{"source": "x"}\n'}, "line 1 has no field 'target'; set data.source.fields"),
        ({"a.jsonl": '{"source": "x", "target": 1}\n'}, "a side is not a string"),
        ({"a.jsonl": "{\n"}, "line 1 is not a pair"),
        ({"a": ""}, "has no pairs in it"),
        ({"a": "x", "b": "x", "c": "x"}, "two files whose lines correspond, or one file of pairs, got 3"),
    ],
)
def test_files_without_pairs_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    def read():
        source = build("source", {"name": "parallel", "paths": [str(tmp_path / name) for name in files]})
        source.check()
        return list(source.documents())

    with pytest.raises(UnmaskError, match=message):
        read()


def test_the_toy_language_is_translated_word_by_word():
    source = ToyTranslationSource(count=50, validation=3, test=2)
    documents = list(source.documents())
    assert [sum(one.name.startswith(part) for one in documents) for part in ("train", "valid", "test")] == [50, 3, 2]
    assert documents == list(ToyTranslationSource(count=50, validation=3, test=2).documents())
    meaning = dict(zip(*source.vocabularies, strict=True))
    for document in documents:
        words, translated = (side.split() for side in split_pair(document.text))
        assert sorted(meaning[word] for word in words) == sorted(translated)
        assert [meaning[word] for word in words[:2]] == translated[1::-1]
    assert len({document.text for document in documents}) > 45
