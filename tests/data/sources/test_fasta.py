"""DNA: sequences from FASTA files and reverse complements."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from unmask import registry
from unmask.data.encoding import encode
from unmask.data.sources import fasta
from unmask.data.sources.fasta import LETTERS
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


def test_a_folder_is_searched_and_an_explicit_file_is_read_whatever_its_suffix(genome: Path) -> None:
    genome.with_name("notes.txt").write_text("not DNA")
    assert [name for name, _ in read(genome.parent)] == ["g.fa#chr1", "g.fa#chr2"]
    renamed = genome.rename(genome.with_name("g.seq"))
    assert [name for name, _ in read(renamed)] == ["g.seq#chr1", "g.seq#chr2"]
    with pytest.raises(UnmaskError, match=r"has no files to read \(\.fa, \.fasta, \.fna\)"):
        read(genome.parent)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"ACGT\n>a\nACGT\n", r"a\.fa must begin with a line '>name'"),
        (b">a\nACGT\n>MEK\nMEKL\n", r"a\.fa, line 4, has 'E' in a sequence, which is not a nucleotide code"),
    ],
)
def test_bad_files_are_errors(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "a.fa").write_bytes(raw)
    with pytest.raises(UnmaskError, match=message):
        read(tmp_path / "a.fa")


def test_both_strands_go_to_the_same_side_of_the_split(genome: Path) -> None:
    assert read(genome, reverse_complement=True)[1:] == [
        ("g.fa#chr1/rc", "N" * 12 + "NACGTACGT"),
        ("g.fa#chr2", "AACGTT"),
        ("g.fa#chr2/rc", "AACGTT"),
    ]
    both = registry.build("source", {"name": "fasta", "paths": genome, "reverse_complement": True})
    assert [both.split_key(document.name) for document in both.documents()] == ["g.fa#chr1"] * 2 + ["g.fa#chr2"] * 2
    assert registry.build("source", {"name": "fasta", "paths": genome}).split_key("x/rc") == "x/rc"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("width", [1, 7, 1000])
def test_long_records_come_in_parts_on_both_strands(tmp_path, seed, width, monkeypatch) -> None:
    rng = random.Random(seed)
    sequence = "".join(rng.choices(LETTERS, k=rng.randrange(1, 200)))
    wrapped = "\n".join(sequence[start : start + width] for start in range(0, len(sequence), width))
    (tmp_path / "a.fa").write_text(f">a\n{wrapped}\n>b\nAC")
    monkeypatch.setattr("unmask.data.documents.MAX_CHARACTERS", rng.randrange(1, 30))
    for constant in ("LINE_BYTES", "LINES_AT_ONCE", "CHUNK_BYTES"):
        monkeypatch.setattr(fasta, constant, rng.randrange(3, 30))
    whole: dict[str, str] = {}
    for name, text in read(tmp_path / "a.fa", reverse_complement=True):
        whole[name] = whole.get(name, "") + text
    opposite = sequence.translate(str.maketrans("ACGTN", "TGCAN"))[::-1]
    assert whole == {"a.fa#a": sequence, "a.fa#a/rc": opposite, "a.fa#b": "AC", "a.fa#b/rc": "GT"}


def test_the_tokenizer_agrees_with_the_letters() -> None:
    tokenizer = registry.build("tokenizer", "dna").build()
    assert (len(tokenizer), tokenizer.mask_token_id, tokenizer.eos_token_id) == (6, 5, None)
    text = "ACGTNTTGA"
    (ids,) = encode(tokenizer, [text])
    assert ids[:5] == [0, 1, 2, 3, 4]
    assert tokenizer.decode(ids) == text
    with pytest.raises(UnmaskError, match="'R'"):
        encode(tokenizer, ["ACR"])
