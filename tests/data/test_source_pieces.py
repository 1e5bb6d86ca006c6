"""Texts of any length come in pieces that make up the text, and memory stays small."""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from unmask import registry
from unmask.data.sources import Document
from unmask.data.sources import base as cutting
from unmask.data.sources import readers as plain

ALPHABET = "abcdé日\U0001f600" + "    \n\n\r\t\u3000"


def joined(documents: Iterator[Document]) -> list[tuple[str, str]]:
    """Names and texts, the pieces of each put together again."""
    whole: list[tuple[str, str]] = []
    goes_on = False
    for document in documents:
        if goes_on:
            name, text = whole.pop()
            assert document.name == name
            whole.append((name, text + document.text))
        else:
            whole.append((document.name, document.text))
        goes_on = document.more
    assert not goes_on, "the last piece says that it is the last"
    return whole


def random_text(rng: random.Random, size: int) -> str:
    return "".join(rng.choices(ALPHABET, k=size))


def random_parts(rng: random.Random, text: str) -> list[str]:
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("seed", range(200))
def test_pieces_make_up_the_text_and_end_with_words(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    size = rng.randrange(1, 12)
    monkeypatch.setattr(cutting, "PIECE", size)
    text = random_text(rng, rng.randrange(1, 80))
    cut = list(cutting.in_pieces("a", text))
    assert "".join(piece.text for piece in cut) == text
    assert [piece.more for piece in cut] == [True] * (len(cut) - 1) + [False]
    for piece, following in pairwise(cut):
        assert size <= len(piece.text) <= 2 * size
        after = piece.text + following.text[:1]
        word_ends = [at for at in range(size, len(after)) if re.match(r"\S[ \n]", after[at - 1 : at + 1])]
        assert word_ends == ([len(piece.text)] if len(piece.text) < 2 * size or word_ends else [])
    assert cut == list(cutting.in_pieces("a", iter(random_parts(rng, text)))), "however the text comes in"


def test_a_text_of_one_piece_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE", 4)
    assert list(cutting.in_pieces("a", "ab c")) == [Document("a", "ab c")]
    assert list(cutting.in_pieces("a", "abcd e")) == [Document("a", "abcd", more=True), Document("a", " e")]
    assert list(cutting.in_pieces("a", "")) == []
    assert list(cutting.in_pieces("a", "abcdefgh")) == [Document("a", "abcdefgh")]
    assert [piece.text for piece in cutting.in_pieces("a", "abcdefghi")] == ["abcdefgh", "i"]


def test_numbers_count_texts_and_not_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE", 2)
    texts = ["one two", "", iter([]), iter(["", "a"]), iter(["four ", "five"]), "z"]
    documents = list(cutting.numbered("f", texts))
    assert joined(iter(documents)) == [("f#0", "one two"), ("f#1", "a"), ("f#2", "four five"), ("f#3", "z")]
    assert len(documents) > 4
    assert max(len(document.text) for document in documents) == 4, "two pieces' worth"


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("separator", [None, "line", "paragraph", "ab"])
def test_files_read_the_same_in_small_pieces(
    tmp_path: Path, seed: int, separator: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the size of a piece nor that of a read changes a document, and no character is lost or cut."""
    rng = random.Random(seed)
    text = random_text(rng, rng.randrange(1, 150)).replace("\t", "\r\n").replace("c", "\nab\n")
    (tmp_path / "a.txt").write_bytes(text.encode())
    source = registry.build("source", {"name": "text", "paths": tmp_path / "a.txt", "separator": separator})
    whole = list(source.documents())
    assert not any(document.more for document in whole)
    if separator is None:
        assert whole == [Document("a.txt", text)]
    monkeypatch.setattr(cutting, "PIECE", rng.randrange(1, 20))
    monkeypatch.setattr(plain, "PLAIN_CHUNK", rng.randrange(1, 20))
    if separator in (None, "line"):
        monkeypatch.setattr(plain, "PLAIN_LINE", rng.randrange(1, 20))
    small = list(source.documents())
    assert joined(iter(small)) == [(document.name, document.text) for document in whole]


@pytest.mark.parametrize(
    ("separator", "mark", "long"),
    [("paragraph", " ", " " * 8 + "end"), ("paragraph", "", "abcdefgh" + "  "), ("ab", "ab", "abcdefgh" + "ab")],
)
def test_a_very_long_line_is_read_in_parts(
    tmp_path: Path, separator: str, mark: str, long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the beginning nor the end of a long line is taken for a separator, though it looks like one."""
    monkeypatch.setattr(plain, "PLAIN_LINE", 8)
    monkeypatch.setattr(cutting, "PIECE", 4)
    (tmp_path / "a.txt").write_bytes(f"{long}\r\n{mark}\r\none\r\n{long}\r\n{mark}\r\nabcdefg\r\n".encode())
    source = registry.build("source", {"name": "text", "paths": tmp_path / "a.txt", "separator": separator})
    expected = [("a.txt#0", long), ("a.txt#1", f"one\r\n{long}"), ("a.txt#2", "abcdefg")]
    assert joined(source.documents()) == expected


PROGRAM = """
import resource, sys
from unmask import registry
from unmask.data.sources import base as pieces
pieces.PIECE = 1 << 20
source = registry.build("source", {"name": sys.argv[1], "paths": sys.argv[2], **eval(sys.argv[3])})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = sum(len(document.text) for document in source.documents())
print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_SELF") or sys.platform != "linux", reason="memory in other units")
@pytest.mark.parametrize(
    ("name", "unit", "source", "options"),
    [
        ("one_line.txt", b"word ", "text", {}),
        ("one_line.txt", b"word ", "text", {"separator": "line"}),
        ("one_paragraph.txt", b"word and " * 8 + b"\n", "text", {"separator": "paragraph"}),
        ("wrapped.fa", b"ACGT" * 15 + b"\n", "fasta", {"reverse_complement": True}),
        ("unwrapped.fa", b"ACGT" * 16, "fasta", {}),
    ],
)
def test_a_large_file_is_never_held(tmp_path: Path, name: str, unit: bytes, source: str, options: dict) -> None:
    """60 MB of one document, in pieces of a million characters, cost less than a third of that."""
    block = unit * (2_000_000 // len(unit))
    with open(tmp_path / name, "wb") as file:
        file.write(b">r\n" if source == "fasta" else b"")
        for _ in range(30):
            file.write(block)
    command = [sys.executable, "-c", PROGRAM, source, str(tmp_path / name), repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, megabytes = map(float, done.stdout.split())
    letters = 30 * len(block.replace(b"\n", b"") if source == "fasta" else block)
    assert size in ((2 * letters if options.get("reverse_complement") else letters), letters - 1)
    assert megabytes < 20
