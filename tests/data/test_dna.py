"""DNA: sequences out of FASTA, one token a base, and the opposite strand as a law."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from unmask import registry
from unmask.data.dna import LETTERS, reverse_complement, reverse_complement_of_text
from unmask.data.encoding import encode
from unmask.data.sources import base as pieces
from unmask.data.sources import readers as fasta
from unmask.errors import UnmaskError

RECORDS = b""">chr1 the first | one
ACGTacgtn
RYSWKMBDHV-x

>empty
>chr2\ttabbed\r
AAC\r
GU u\r
"""


def read(path: Path, **options: object) -> list[tuple[str, str]]:
    source = registry.build("source", {"name": "fasta", "paths": path, **options})
    return [(document.name, document.text) for document in source.documents()]


@pytest.fixture
def genome(tmp_path: Path) -> Path:
    (tmp_path / "g.fa").write_bytes(RECORDS)
    return tmp_path / "g.fa"


def test_records_are_cleaned_and_named_by_the_first_word(genome: Path) -> None:
    assert read(genome) == [("g.fa#chr1", "ACGTACGTN" + "N" * 12), ("g.fa#chr2", "AACGTT")]


def test_a_named_file_is_fasta_whatever_its_suffix_and_a_folder_is_searched(genome: Path) -> None:
    genome.with_name("notes.txt").write_text("no DNA")
    assert [name for name, _ in read(genome.parent)] == ["g.fa#chr1", "g.fa#chr2"]
    renamed = genome.rename(genome.with_name("g.seq"))
    assert [name for name, _ in read(renamed)] == ["g.seq#chr1", "g.seq#chr2"]
    with pytest.raises(UnmaskError, match=r"has no files to read \(\.fa, \.fasta, \.fna\)"):
        read(genome.parent)


def test_each_record_is_followed_by_its_opposite_strand(genome: Path) -> None:
    assert read(genome, reverse_complement=True)[1:] == [
        ("g.fa#chr1/rc", "N" * 12 + "NACGTACGT"),
        ("g.fa#chr2", "AACGTT"),
        ("g.fa#chr2/rc", "AACGTT"),
    ]


def test_both_strands_have_one_key_for_the_split(genome: Path) -> None:
    both = registry.build("source", {"name": "fasta", "paths": genome, "reverse_complement": True})
    assert [both.split_key(document.name) for document in both.documents()] == ["g.fa#chr1"] * 2 + ["g.fa#chr2"] * 2
    alone = registry.build("source", {"name": "fasta", "paths": genome})
    assert alone.split_key("x/rc") == "x/rc"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("width", [1, 7, 1000])
def test_long_records_come_in_pieces_on_both_strands(
    tmp_path: Path, seed: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    sequence = "".join(rng.choices(LETTERS, k=rng.randrange(1, 200)))
    wrapped = "\n".join(sequence[start : start + width] for start in range(0, len(sequence), width))
    (tmp_path / "a.fa").write_text(f">a\n{wrapped}\n>b\nAC")
    monkeypatch.setattr(pieces, "PIECE", rng.randrange(1, 30))
    for constant in ("FASTA_LINE", "LINES", "FASTA_CHUNK"):
        monkeypatch.setattr(fasta, constant, rng.randrange(3, 30))
    source = registry.build("source", {"name": "fasta", "paths": tmp_path / "a.fa", "reverse_complement": True})
    whole: dict[str, str] = {}
    for document in source.documents():
        assert len(document.text) <= 2 * pieces.PIECE
        whole[document.name] = whole.get(document.name, "") + document.text
    opposite = reverse_complement_of_text(sequence)
    assert whole == {"a.fa#a": sequence, "a.fa#a/rc": opposite, "a.fa#b": "AC", "a.fa#b/rc": "GT"}


def test_a_known_opposite_strand() -> None:
    assert reverse_complement_of_text("AACGTN") == "NACGTT"
    ids = np.array([0, 0, 1, 2, 3, 4, 5], dtype=np.uint8)
    assert reverse_complement(ids).tolist() == [5, 4, 0, 1, 2, 3, 3]
    assert reverse_complement(ids).dtype == np.uint8


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_the_opposite_of_the_opposite_is_the_strand(dtype: type) -> None:
    ids = np.random.default_rng(0).integers(0, 7, size=(5, 33)).astype(dtype)
    twice = reverse_complement(reverse_complement(ids))
    assert np.array_equal(twice, ids)
    assert not np.array_equal(reverse_complement(ids), ids)
    assert np.array_equal(reverse_complement(ids)[2], reverse_complement(ids[2])), "each row by itself"


def test_the_tokenizer_agrees_with_the_letters() -> None:
    tokenizer = registry.build("tokenizer", "dna").build(lambda: iter(()))
    assert (len(tokenizer), tokenizer.mask_token_id, tokenizer.eos_token_id) == (6, 5, None)
    text = "ACGTNTTGA"
    (ids,) = encode(tokenizer, [text])
    assert ids[:5] == [0, 1, 2, 3, 4]
    assert tokenizer.decode(ids) == text
    (opposite,) = encode(tokenizer, [reverse_complement_of_text(text)])
    assert reverse_complement(np.array(ids)).tolist() == opposite
    with pytest.raises(UnmaskError, match="'R'"):
        encode(tokenizer, ["ACR"])
