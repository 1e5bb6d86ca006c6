"""Training and validation documents: apart, the same each time, never empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from unmask import registry
from unmask.data import split as sides
from unmask.data.sources import Document, Source, TextSource
from unmask.data.sources.base import joined, take_inventory
from unmask.data.sources.text import FastaSource
from unmask.data.split import prepare, take_sides
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer
from unmask.errors import UnmaskError


class Listed(Source):
    """Documents that are given as they are, or in parts of some size."""

    name: Literal["listed"] = "listed"
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


def many(n: int, **options: object) -> Listed:
    return Listed(texts={f"document {number}": f"text {number}" for number in range(n)}, **options)


def flags(source: Listed, fraction: float = 0.05, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Which documents are held out; the inventories must say the same."""
    sides = take_sides(source, fraction, seed)
    held_out = [sides.split.holds_out(name) for name in source.texts]
    for inventory, side in ((sides.train, False), (sides.validation, True)):
        chosen = [name for name, flag in zip(source.texts, held_out, strict=True) if flag == side]
        expected = take_inventory(Document(name, source.texts[name]) for name in chosen)
        assert inventory.digest == expected.digest
        assert (inventory.documents, inventory.characters) == (len(chosen), expected.characters)
    return np.array(held_out)


def cut_of(text: str, fraction: float, size: int = 1 << 20) -> tuple[int | None, str, str]:
    """Where a lone document is cut, and its two parts."""
    split = take_sides(Listed(texts={"only": text}, size=size), fraction).split
    left, right = ("".join(part.text for part in split.part(side)) for side in (False, True))
    return split.cut, left, right


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))


def decoded(corpus: object, part: str) -> list[str]:
    tokens = getattr(corpus, part)
    return [bytes(tokens.document(index).tolist()).decode() for index in range(len(tokens))]


def test_the_fraction_and_the_seed() -> None:
    first = flags(many(4000))
    assert abs(first.sum() - 200) < 5 * np.sqrt(190)
    assert np.array_equal(first, flags(many(4000)))
    assert (first & flags(many(4000), seed=1)).sum() < 40, "seeds choose independently"
    assert (flags(many(4000), fraction=0.1) >= first).all(), "a larger fraction keeps the smaller one's"


def test_a_document_keeps_its_side_when_others_come_and_go() -> None:
    few, all_of_them = many(400), many(1000)
    assert np.array_equal(flags(few, 0.3), flags(all_of_them, 0.3)[:400])


def test_the_values_do_not_change_between_versions() -> None:
    assert np.flatnonzero(flags(many(100))).tolist() == [2, 12, 13, 26, 38, 41, 65, 88]


def test_no_side_is_empty() -> None:
    for n in (2, 3, 5):
        for seed in range(20):
            assert 0 < flags(many(n), 0.5, seed).sum() < n
            assert flags(many(n), 0.001, seed).sum() == 1
            assert flags(many(n), 0.999, seed).sum() == n - 1


def test_documents_with_one_key_are_on_one_side() -> None:
    texts = {f"{letter}/{number}": letter for letter in "abcdefghij" for number in range(10)}
    held_out = flags(Listed(texts=texts, key="/"), 0.4).reshape(10, 10)
    assert (held_out.all(axis=1) | ~held_out.any(axis=1)).all()
    assert 0 < held_out.sum() < 100
    lowest = flags(Listed(texts=texts, key="/"), 0.001).reshape(10, 10)
    assert lowest.sum() == 10, "where none would be held out one whole key is"
    with pytest.raises(UnmaskError, match=r"holds out 20 of its 20 documents, .* give them different names"):
        take_sides(Listed(texts={f"a/{number}": "x" for number in range(20)}, key="/"))


def test_the_only_record_with_its_opposite_strand_is_told_what_to_do(tmp_path: Path) -> None:
    genome = tmp_path / "genome.fa"
    genome.write_text(">chr1\n" + "ACGTTGCA" * 40)
    with pytest.raises(UnmaskError, match="give it more records, or set reverse_complement=false"):
        take_sides(FastaSource(paths=str(genome), reverse_complement=True))
    sides = take_sides(FastaSource(paths=str(genome)))
    assert sides.train.characters + sides.validation.characters == 320


def test_parts_are_disjoint_and_complete() -> None:
    source = many(50, size=3)
    split = take_sides(source, 0.3).split
    training, validation = (list(split.part(side)) for side in (False, True))
    assert not {d.name for d in training} & {d.name for d in validation}
    assert len({d.name for d in training + validation}) == 50
    assert sorted("".join(d.text for d in part) for part in (training, validation)) == sorted(
        "".join(text for name, text in source.texts.items() if split.holds_out(name) == side) for side in (False, True)
    )


def test_the_source_decides_where_it_has_an_opinion() -> None:
    source = Listed(texts=dict.fromkeys(("b", "held", "c", "held too"), "x"), kept="held")
    assert flags(source).tolist() == [False, True, False, True]
    with pytest.raises(UnmaskError, match=r"holds out 0 of its 4 documents.*nothing for validation"):
        take_sides(Listed(texts=source.texts, kept="nothing"))
    with pytest.raises(UnmaskError, match="nothing to train on"):
        take_sides(Listed(texts=source.texts, kept=""))


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("word and word\n" * 40, "word and word\n" * 36),
        ("word " * 100, "word " * 90),
        ("abc  " * 10 + "x" * 50, "abc  " * 10 + "x" * 40),
        ("ab" * 50, "ab" * 45),
    ],
)
def test_a_lone_document_is_cut_at_a_boundary(text: str, left: str, size: int) -> None:
    assert cut_of(text, 0.1, size) == (len(left), left, text[len(left) :])


def test_the_cut_waits_for_the_end_of_a_line_or_word() -> None:
    text = "alpha beta gamma\n" * 20
    cut, left, right = cut_of(text, 0.31)
    assert cut == len(left)
    assert left[-1] == "\n"
    assert left + right == text
    assert 0.68 * len(text) < len(left) < 0.8 * len(text)
    assert cut_of(text.replace("\n", " "), 0.31)[1][-1] == " "


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("fraction", [0.03, 0.31, 0.5, 0.9])
def test_the_cut_of_a_random_text(fraction: float, size: int) -> None:
    """Against the rule written down for a whole text."""
    random = np.random.default_rng(int(100 * fraction))
    for _ in range(20):
        text = "x" + "".join(random.choice(list("abcdefgh \n"), 90, p=[0.11] * 8 + [0.1, 0.02])) + "x"
        target = int(len(text) * (1 - fraction))
        stop = target + (len(text) - target) // 2
        ends = [text.find(space, target - 1, stop) + 1 for space in "\n "]
        assert cut_of(text, fraction, size)[0] == next((end for end in ends if end), target)


@pytest.mark.parametrize("size", [7, 50])
def test_both_sides_of_a_cut_are_documents_of_their_own(size: int) -> None:
    split = take_sides(Listed(texts={"only": "word " * 100}, size=size), 0.1).split
    for side in (False, True):
        *before, last = split.part(side)
        assert all(part.more and part.text for part in before)
        assert not last.more


@pytest.mark.parametrize("text", ["a", "   a", "a    "])
def test_too_short_to_cut(text: str) -> None:
    with pytest.raises(
        UnmaskError, match=r"only is the only document .* too few .* give more text or a larger fraction"
    ):
        cut_of(text, 0.3)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_the_fraction_is_checked(fraction: float) -> None:
    with pytest.raises(UnmaskError, match="between 0 and 1"):
        take_sides(many(3), fraction)


def test_no_documents() -> None:
    with pytest.raises(UnmaskError, match="no documents"):
        take_sides(Listed(texts={}))


def test_an_inventory_is_of_documents_not_of_parts() -> None:
    def digest(*documents: Document) -> str:
        return take_inventory(documents).digest

    whole = digest(Document("a", "héllo"), Document("b", ""))
    assert digest(Document("a", "h", True), Document("a", "éllo", True), Document("a", ""), Document("b", "")) == whole
    for other in (
        [Document("a", "h"), Document("a", "éllo"), Document("b", "")],
        [Document("a", "héllob"), Document("", "")],
        [Document("", "héllo"), Document("ab", "")],
        [Document("b", ""), Document("a", "héllo")],
        [Document("a", "héllo")],
    ):
        assert digest(*other) != whole


def test_inventories_of_several_corpora_join_in_order() -> None:
    one, other = (take_inventory([Document(name, name * 3)]) for name in "aé")
    both = joined([one, other])
    assert (both.documents, both.bytes, both.characters) == (2, 9, 6)
    assert both.digest != joined([other, one]).digest
    assert joined([one]).digest == one.digest != both.digest


def test_prepare_encodes_both_parts() -> None:
    source = Listed(texts={f"d{number}": f"text {number}" for number in range(40)})
    corpus = prepare(source, ByteTokenizer(), fraction=0.2)
    assert corpus.cut is None
    assert sorted(decoded(corpus, "train") + decoded(corpus, "validation")) == sorted(source.texts.values())
    assert [int(name[1:]) for name in corpus.validation.names] == np.flatnonzero(flags(source, 0.2)).tolist()
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


def test_progress_while_a_large_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "REPORT_CHARACTERS", 40)
    seen: list[tuple[str, int, int]] = []
    source = Listed(texts={f"d{number}": "1234567890" for number in range(10)})
    prepare(source, BPETokenizer(), progress=lambda *report: seen.append(report))
    first, tokenizer = [("corpus", 40, 0), ("corpus", 80, 0)], [("corpus", 40, 0), ("corpus", 80, 0)]
    assert seen == [*first, *tokenizer, ("train", 80, 80), ("validation", 20, 20)]


def test_text_file_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("A story.\n<|endofstory|>\nAnother one.\n<|endofstory|>\nA third.\n")
    source = registry.build(
        "source", {"name": "text", "paths": str(tmp_path / "my.txt"), "separator": "<|endofstory|>"}
    )
    corpus = prepare(source, registry.build("tokenizer", "byte"))
    assert sorted(decoded(corpus, "train") + decoded(corpus, "validation")) == ["A story.", "A third.", "Another one."]
    assert isinstance(source, TextSource)


@pytest.mark.parametrize(("pattern", "held_out"), [("valid.txt", 3), ("v*", 3), ("*.jsonl", 1), ("sub/*", 1)])
def test_files_are_held_out_by_name_whether_they_hold_one_document_or_several(tmp_path, pattern, held_out):
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "valid.txt").write_text("e\nf\ng\n")
    (tmp_path / "more.jsonl").write_text('{"text": "h"}\n')
    (tmp_path / "sub" / "train.txt").write_text("i\n")
    source = TextSource(paths=tmp_path, separator="line", validation_files=pattern)
    sides = take_sides(source, fraction=0.9)
    assert (sides.validation.documents, sides.train.documents) == (held_out, 9 - held_out)


def test_a_pattern_that_no_file_has_is_an_error(tmp_path):
    (tmp_path / "train.txt").write_text("a\nb\n")
    with pytest.raises(UnmaskError, match=r"holds out 0 of its 2 documents.*validation_files='valid\*'"):
        take_sides(TextSource(paths=tmp_path, separator="line", validation_files="valid*"))
