"""Training and validation documents: disjoint, the same each time, never empty; mixtures and prepared corpora."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from unmask import registry
from unmask.config import parse_recipe
from unmask.data import split as module
from unmask.data.documents import CorpusDigest, Document
from unmask.data.encoding import TextEncoder
from unmask.data.joined_rows import JoinedRows, MixedRows
from unmask.data.length_policies import Packed, Padded
from unmask.data.sources import Source
from unmask.data.sources.fasta import FastaSource
from unmask.data.sources.text import TextSource
from unmask.data.split import Corpus, MixtureSource, prepare, split_source, weighted_parts
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer
from unmask.errors import UnmaskError


class ListSource(Source):
    """Documents from a dictionary, in parts of some size. kept: the beginning of the names that are held out."""

    name: Literal["list"] = "list"
    texts: dict[str, str]
    kept: str = "?"
    size: int = 1 << 20
    key: str | None = None

    def documents(self) -> Iterator[Document]:
        for name, text in self.texts.items():
            parts = [text[start : start + self.size] for start in range(0, len(text), self.size)] or [""]
            yield from (Document(name, part, more=n + 1 < len(parts)) for n, part in enumerate(parts))

    def held_out(self, name: str) -> bool | None:
        return None if self.kept == "?" else name.startswith(self.kept)

    def split_key(self, name: str) -> str:
        return name.split(self.key)[0] if self.key else name


def many(n: int, **options: object) -> ListSource:
    return ListSource(texts={f"document {number}": f"text {number}" for number in range(n)}, **options)


def flags(source: ListSource, fraction: float = 0.05, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Return which documents are held out; documents and digests of the split must agree."""
    split = split_source(source, fraction, seed)
    held_out = [split.is_validation(name) for name in source.texts]
    for digest, validation in ((split.train, False), (split.validation, True)):
        chosen = [name for name, flag in zip(source.texts, held_out, strict=True) if flag == validation]
        expected = CorpusDigest.of(Document(name, source.texts[name]) for name in chosen)
        assert digest.hexdigest == expected.hexdigest == CorpusDigest.of(split.documents(validation)).hexdigest
        assert (digest.documents, digest.characters) == (len(chosen), expected.characters)
    return np.array(held_out)


def cut_of(text: str, fraction: float, size: int = 1 << 20) -> tuple[int | None, str, str]:
    """Return where a single document is cut, and its two parts."""
    split = split_source(ListSource(texts={"only": text}, size=size), fraction)
    left, right = ("".join(part.text for part in split.documents(side)) for side in (False, True))
    for digest, part in ((split.train, left), (split.validation, right)):
        assert digest.hexdigest == CorpusDigest.of([Document("only", part)]).hexdigest
    return split.cut, left, right


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))


def texts_of(corpus: Corpus, part: str) -> list[list[str]]:
    """Return the decoded documents of each part of a mixture."""
    return [
        corpus.tokenizer.batch_decode([tokens.document(index).tolist() for index in range(len(tokens))])
        for tokens in getattr(corpus, f"{part}_parts")
    ]


def test_the_fraction_and_the_seed_choose_documents() -> None:
    first = flags(many(4000))
    assert abs(first.sum() - 200) < 5 * np.sqrt(190)
    assert np.array_equal(first, flags(many(4000)))
    assert (first & flags(many(4000), seed=1)).sum() < 40, "seeds choose independently"
    assert (flags(many(4000), fraction=0.1) >= first).all(), "a larger fraction contains the smaller one"
    assert np.array_equal(flags(many(400), 0.3), flags(many(1000), 0.3)[:400]), "a document does not depend on others"
    assert np.flatnonzero(flags(many(100))).tolist() == [2, 12, 13, 26, 38, 41, 65, 88], "nor on the version"


def test_no_part_is_empty() -> None:
    for n in (2, 3, 5):
        for seed in range(20):
            assert 0 < flags(many(n, size=3), 0.5, seed).sum() < n
            assert flags(many(n), 0.001, seed).sum() == 1
            assert flags(many(n), 0.999, seed).sum() == n - 1


def test_documents_with_the_same_key_stay_together() -> None:
    texts = {f"{letter}/{number}": letter for letter in "abcdefghij" for number in range(10)}
    held_out = flags(ListSource(texts=texts, key="/"), 0.4).reshape(10, 10)
    assert (held_out.all(axis=1) | ~held_out.any(axis=1)).all()
    assert 0 < held_out.sum() < 100
    assert flags(ListSource(texts=texts, key="/"), 0.001).sum() == 10, "at least one whole key is held out"


@pytest.mark.parametrize(("pattern", "held_out"), [("valid.txt", 3), ("v*", 3), ("*.jsonl", 1), ("sub/*", 1)])
def test_files_are_held_out_by_name(tmp_path: Path, pattern: str, held_out: int) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "valid.txt").write_text("e\nf\ng\n")
    (tmp_path / "more.jsonl").write_text('{"text": "h"}\n')
    (tmp_path / "sub" / "train.txt").write_text("i\n")
    source = TextSource(paths=tmp_path, separator="line", validation_files=pattern)
    split = split_source(source, fraction=0.9)
    assert (split.validation.documents, split.train.documents) == (held_out, 9 - held_out)


def test_a_split_that_leaves_a_part_empty_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\nb\n")
    (tmp_path / "genome.fa").write_text(">chr1\n" + "ACGTTGCA" * 40)
    texts = {f"a/{number}": "x" for number in range(20)}
    for source, message in (
        (ListSource(texts={}), "no documents"),
        (ListSource(texts=texts, kept="nothing"), "holds out 0 of its 20 documents.*nothing for validation"),
        (ListSource(texts=texts, kept=""), "nothing to train on"),
        (ListSource(texts=texts, key="/"), "holds out 20 of its 20 documents, .* give them different names"),
        (
            TextSource(paths=tmp_path / "train.txt", separator="line", validation_files="valid*"),
            r"holds out 0 of its 2 documents.*validation_files='valid\*'",
        ),
        (
            FastaSource(paths=tmp_path / "genome.fa", reverse_complement=True),
            "give it more records, or set data.source.reverse_complement=false",
        ),
    ):
        with pytest.raises(UnmaskError, match=message):
            split_source(source)
    assert split_source(FastaSource(paths=tmp_path / "genome.fa")).cut == 304
    for fraction in (0, 1, -0.1, 1.5):
        with pytest.raises(UnmaskError, match="between 0 and 1"):
            split_source(many(3), fraction)
    with pytest.raises(
        UnmaskError, match=r"only is the only document .* too few .* give more text or a larger fraction"
    ):
        cut_of("a", 0.3)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("word and word\n" * 40, "word and word\n" * 36),
        ("word " * 100, "word " * 90),
        ("abc  " * 10 + "x" * 50, "abc  " * 10 + "x" * 40),
        ("ab" * 50, "ab" * 45),
        ("x" * 89 + " " + "y" * 10, "x" * 89 + " "),
        ("x" * 94 + " " + "y" * 5, "x" * 94 + " "),
        ("x" * 95 + " " + "y" * 4, "x" * 90),
        ("x" * 90 + " y\n" + "z" * 7, "x" * 90 + " y\n"),
    ],
)
def test_a_single_document_is_cut_at_a_line_or_word(text: str, left: str, size: int) -> None:
    assert cut_of(text, 0.1, size) == (len(left), left, text[len(left) :])


def test_prepare_encodes_both_parts() -> None:
    source = ListSource(texts={f"d{number}": f"text {number}" for number in range(40)})
    corpus = prepare(source, ByteTokenizer(), fraction=0.2)
    assert corpus.cut is None
    (train,), (validation,) = texts_of(corpus, "train"), texts_of(corpus, "validation")
    assert sorted(train + validation) == sorted(source.texts.values())
    held_out = [f"d{number}" for number in np.flatnonzero(flags(source, 0.2))]
    assert [corpus.validation.name(number) for number in range(len(corpus.validation))] == held_out
    again = prepare(source, corpus.tokenizer, fraction=0.2)
    assert (again.train.folder, again.validation.folder) == (corpus.train.folder, corpus.validation.folder)
    assert again.tokenizer is corpus.tokenizer
    text = "one line of text\n" * 100
    cut = prepare(ListSource(texts={"only": text}), ByteTokenizer(), fraction=0.1)
    assert cut.cut == len(texts_of(cut, "train")[0][0])
    assert texts_of(cut, "train")[0][0] + texts_of(cut, "validation")[0][0] == text


def test_a_tokenizer_never_sees_validation_text() -> None:
    texts = {"a": "abcd efgh " * 50, "held": "zyxw " * 500, "b": "efgh abcd " * 50}
    corpus = prepare(ListSource(texts=texts, kept="held"), BPETokenizer(vocab_size=400))
    assert corpus.validation.name(0) == "held"
    learned = [token for token in corpus.tokenizer.get_vocab() if len(token) > 1]
    assert any("abcd" in token for token in learned)
    assert not [token for token in learned if "z" in token or "xw" in token]


def test_validation_may_have_its_own_source() -> None:
    source = ListSource(texts={"a": "train", "b": "too"})
    corpus = prepare(source, ByteTokenizer(), validation=ListSource(texts={"c": "validation"}))
    assert (texts_of(corpus, "train"), texts_of(corpus, "validation")) == ([["train", "too"]], [["validation"]])


def test_progress_names_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    source = ListSource(texts={"a": "12345", "held": "123"}, kept="held")
    prepare(source, ByteTokenizer(), progress=lambda *report: seen.append(report))
    assert seen == [("train", 5, 5), ("validation", 3, 3)]
    monkeypatch.setattr(module, "REPORT_CHARACTERS", 40)
    seen.clear()
    source = ListSource(texts={f"d{number}": "1234567890" for number in range(10)})
    prepare(source, BPETokenizer(), progress=lambda *report: seen.append(report))
    assert seen == [*[("corpus", 40, 0), ("corpus", 80, 0)] * 2, ("train", 80, 80), ("validation", 20, 20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "verse.txt").write_text("\n".join(f"roses are red {number}" for number in range(300)))
    (tmp_path / "prose.txt").write_text("\n".join(f"it was a dark night {number}" for number in range(100)))
    return tmp_path


def mixture(folder: Path, *weights: float) -> MixtureSource:
    sources = [
        {"name": "text", "paths": str(folder / name), "separator": "line"} for name in ("verse.txt", "prose.txt")
    ]
    parts = [{"source": source, "weight": weight} for source, weight in zip(sources, weights, strict=True)]
    return registry.build("source", {"name": "mixture", "parts": parts})


def test_each_part_of_a_mixture_has_its_own_split_and_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = mixture(folder, 3, 1)
    corpus = prepare(source, ByteTokenizer(), fraction=0.1)
    found = zip(source.parts, texts_of(corpus, "train"), texts_of(corpus, "validation"), strict=True)
    for number, (part, train, validation) in enumerate(found):
        alone = prepare(part.source, ByteTokenizer(), fraction=0.1)
        assert (texts_of(alone, "train"), texts_of(alone, "validation")) == ([train], [validation])
        assert alone.train.folder == corpus.train_parts[number].folder
    monkeypatch.setattr(TextEncoder, "encode", None)
    again = prepare(mixture(folder, 1, 5), ByteTokenizer(), fraction=0.1)
    assert [tokens.folder for tokens in again.train_parts] == [tokens.folder for tokens in corpus.train_parts]


def test_training_rows_are_mixed_and_validation_rows_joined(folder: Path) -> None:
    corpus = prepare(mixture(folder, 3, 1), ByteTokenizer(), fraction=0.1)
    train, validation = corpus.rows(Padded(), 32)
    assert isinstance(train, MixedRows)
    assert train.quotas == (3072, 1024)
    assert (len(train) + len(validation), train.length) == (400, 32)
    order = [bytes(row[:3].tolist()).decode() for row in validation[:].input_ids]
    verses = len(corpus.validation_parts[0])
    assert order == ["ros"] * verses + ["it "] * (len(order) - verses)
    single, _ = prepare(mixture(folder, 3, 1).parts[0].source, ByteTokenizer()).rows(Packed(), 32)
    assert not isinstance(single, JoinedRows)


def test_a_tokenizer_learns_from_all_parts_of_a_mixture(folder: Path) -> None:
    corpus = prepare(mixture(folder, 100, 1), BPETokenizer(vocab_size=400))
    learned = "".join(corpus.tokenizer.get_vocab())
    assert "roses" in learned
    assert "night" in learned
    other = prepare(mixture(folder, 1, 1), BPETokenizer(vocab_size=400))
    assert other.train_parts[1].folder == corpus.train_parts[1].folder, "whatever the weights"


def test_nested_mixtures(folder: Path) -> None:
    inner = mixture(folder, 3, 1)
    source = registry.build("source", {"name": "mixture", "parts": [{"source": inner}, {"source": "stdlib"}]})
    parts = weighted_parts(source)
    assert [part.name for part, _ in parts] == ["text", "text", "stdlib"]
    assert [weight for _, weight in parts] == [0.375, 0.125, 0.5]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least 1 item"),
        ([{"source": "stdlib", "weight": 0}], "greater than 0"),
        ([{"source": "stdlib", "weight": float("inf")}], "finite"),
        ([{"source": "stdlb"}], "Did you mean 'stdlib'"),
        ([{"source": "stdlib", "wieght": 1}], "wieght"),
        ([{"weight": 1}], "source"),
    ],
)
def test_bad_mixtures_are_errors(parts: list[object], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        registry.build("source", {"name": "mixture", "parts": parts})


def test_a_mixture_survives_the_yaml_of_its_recipe(folder: Path) -> None:
    recipe = parse_recipe({"data": {"source": mixture(folder, 3, 1).model_dump(mode="json")}})
    assert parse_recipe(yaml.safe_load(recipe.to_yaml())) == recipe
    assert recipe.data.source.persistent
    with_stdin = registry.build("source", {"name": "mixture", "parts": [{"source": "stdlib"}, {"source": "stdin"}]})
    assert not with_stdin.persistent
