"""Training and validation documents: apart, the same each time, never empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from unmask import registry
from unmask.data.sources import Document, Source, TextSource
from unmask.data.split import prepare, split
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer
from unmask.errors import UnmaskError


class Listed(Source):
    """Documents that are given as they are."""

    name: Literal["listed"] = "listed"
    texts: dict[str, str]
    kept: str = "?"

    def documents(self) -> Iterator[Document]:
        return (Document(name, text) for name, text in self.texts.items())

    def held_out(self, name: str) -> bool | None:
        return None if self.kept == "?" else name.startswith(self.kept)


def many(n: int) -> list[Document]:
    return [Document(f"document {number}", f"text {number}") for number in range(n)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))


def decoded(corpus: object, part: str) -> list[str]:
    tokens = getattr(corpus, part)
    return [bytes(tokens.document(index).tolist()).decode() for index in range(len(tokens))]


def test_the_fraction_and_the_seed() -> None:
    first = split(many(4000), fraction=0.05).validation
    assert abs(first.sum() - 200) < 5 * np.sqrt(190)
    assert np.array_equal(first, split(many(4000), fraction=0.05).validation)
    other = split(many(4000), fraction=0.05, seed=1).validation
    assert (first & other).sum() < 40, "seeds choose independently"
    assert (split(many(4000), fraction=0.1).validation >= first).all(), "a larger fraction keeps the smaller one's"


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_no_side_is_empty(fraction: float) -> None:
    for n in (2, 3, 5):
        for seed in range(20):
            assert 0 < split(many(n), fraction=fraction, seed=seed).validation.sum() < n


def test_parts_are_disjoint_and_complete() -> None:
    documents = many(50)
    parted = split(documents, fraction=0.3)
    training, validation = (list(parted.part(documents, side)) for side in (False, True))
    assert sorted(d.name for d in training + validation) == sorted(d.name for d in documents)
    assert not {d.name for d in training} & {d.name for d in validation}


def test_the_source_decides_where_it_has_an_opinion() -> None:
    documents = [Document(name, "x") for name in ("b", "held", "c", "held too")]
    assert split(documents, lambda name: name.startswith("held")).validation.tolist() == [False, True, False, True]
    with pytest.raises(UnmaskError, match=r"holds out 0 of its 4 documents.*nothing for validation"):
        split(documents, lambda name: False)
    with pytest.raises(UnmaskError, match="nothing to train on"):
        split(documents, lambda name: True)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("word and word\n" * 40, "word and word\n" * 36),
        ("word " * 100, "word " * 90),
        ("abc  " * 10 + "x" * 50, "abc  " * 10 + "x" * 40),
        ("ab" * 50, "ab" * 45),
    ],
)
def test_a_lone_document_is_cut_at_a_boundary(text: str, left: str) -> None:
    parted = split([Document("only", text)], fraction=0.1)
    assert parted.cut == len(left)
    (training,), (validation,) = (list(parted.part([Document("only", text)], side)) for side in (False, True))
    assert (training.text, validation.text) == (left, text[len(left) :])


def test_the_cut_waits_for_the_end_of_a_line_or_word() -> None:
    text = "alpha beta gamma\n" * 20
    cut = split([Document("only", text)], fraction=0.31).cut
    assert cut is not None
    assert text[cut - 1] == "\n"
    assert 0.68 * len(text) < cut < 0.8 * len(text)
    text = text.replace("\n", " ")
    cut = split([Document("only", text)], fraction=0.31).cut
    assert cut is not None
    assert text[cut - 1] == " "


@pytest.mark.parametrize("text", ["a", "   a", "a    "])
def test_too_short_to_cut(text: str) -> None:
    with pytest.raises(
        UnmaskError, match=r"only is the only document .* too few .* give more text or a larger fraction"
    ):
        split([Document("only", text)], fraction=0.3)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_the_fraction_is_checked(fraction: float) -> None:
    with pytest.raises(UnmaskError, match="between 0 and 1"):
        split(many(3), fraction=fraction)


def test_no_documents() -> None:
    with pytest.raises(UnmaskError, match="no documents"):
        split([])


def test_prepare_encodes_both_parts() -> None:
    source = Listed(texts={f"d{number}": f"text {number}" for number in range(40)})
    corpus = prepare(source, ByteTokenizer(), fraction=0.2)
    assert corpus.cut is None
    assert sorted(decoded(corpus, "train") + decoded(corpus, "validation")) == sorted(source.texts.values())
    flags = split(source.documents(), fraction=0.2).validation
    assert [int(name[1:]) for name in corpus.validation.names] == np.flatnonzero(flags).tolist()
    again = prepare(source, corpus.tokenizer, fraction=0.2)
    assert (again.train.folder, again.validation.folder) == (corpus.train.folder, corpus.validation.folder)
    assert again.tokenizer is corpus.tokenizer


def test_prepare_tells_that_it_cut() -> None:
    text = "one line of text\n" * 100
    corpus = prepare(Listed(texts={"only": text}), ByteTokenizer(), fraction=0.1)
    assert corpus.cut == len(decoded(corpus, "train")[0])
    assert decoded(corpus, "train")[0] + decoded(corpus, "validation")[0] == text


def test_the_tokenizer_never_sees_validation_text() -> None:
    texts = {"a": "abcd efgh " * 50, "held": "zyxw " * 500, "b": "efgh abcd " * 50}
    corpus = prepare(Listed(texts=texts, kept="held"), BPETokenizer(vocab_size=400))
    assert corpus.validation.names == ["held"]
    learnt = [token for token in corpus.tokenizer.get_vocab() if len(token) > 1]
    assert any("abcd" in token for token in learnt)
    assert not [token for token in learnt if "z" in token or "xw" in token]


def test_a_validation_source_of_its_own() -> None:
    corpus = prepare(
        Listed(texts={"a": "train", "b": "too"}), ByteTokenizer(), validation=Listed(texts={"c": "validation"})
    )
    assert decoded(corpus, "train") == ["train", "too"]
    assert decoded(corpus, "validation") == ["validation"]


def test_progress_names_the_part() -> None:
    seen: list[tuple[str, int, int]] = []
    source = Listed(texts={"a": "12345", "held": "123"}, kept="held")
    prepare(source, ByteTokenizer(), progress=lambda *report: seen.append(report))
    assert seen == [("train", 5, 5), ("validation", 3, 3)]


def test_text_file_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("A story.\n<|endofstory|>\nAnother one.\n<|endofstory|>\nA third.\n")
    source = registry.build(
        "source", {"name": "text", "paths": str(tmp_path / "my.txt"), "separator": "<|endofstory|>"}
    )
    corpus = prepare(source, registry.build("tokenizer", "byte"))
    assert sorted(decoded(corpus, "train") + decoded(corpus, "validation")) == ["A story.", "A third.", "Another one."]
    assert isinstance(source, TextSource)
