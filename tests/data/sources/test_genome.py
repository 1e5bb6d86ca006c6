"""Intervals of an indexed FASTA: which bases they are, how odd files are read, and what is refused in one sentence."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest

from unmask.data.protocols import get_protocol
from unmask.data.sources.genome import Genome, GenomeSource
from unmask.data.split import prepare
from unmask.errors import UnmaskError
from unmask.registry import build

pytest.importorskip("pyfaidx")

DATA = os.environ.get("UNMASK_DATA")

ONE = "".join(random.Random(0).choices("ACGT", k=1000))
TWO = "acgtNNNNNNRYacgu"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_fasta(path, records, width=60, end="\n"):
    lines = []
    for name, text in records.items():
        lines += [f">{name} a record", *(text[i : i + width] for i in range(0, len(text), width))]
    content = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(content) if path.suffix.endswith("gz") else content)
    return str(path)


def texts(**options):
    return {document.name: document.text for document in GenomeSource(**options).documents()}


@pytest.mark.parametrize("name", ["g.fa", "g.fa.gz", "g.fa.bgz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_intervals_of_a_bed_file_are_those_bases(folder, name, end):
    write_fasta(folder / name, {"chr1": ONE, "empty": "", "2": TWO}, end=end)
    lines = ["# comment", "chr1\t0\t100\ttrain", "chr1 100 161 valid", "", "chr2\t1\t5\ttest", "chr2\t0\t16\ttrain"]
    (folder / "g.bed").write_text(end.join(lines), newline="")
    found = texts(fasta="g.fa", intervals="g.bed")  # a compressed file is found by its plain name
    assert found == {
        "train#chr1:0-100": ONE[:100],
        "valid#chr1:100-161": ONE[100:161],
        "train#chr2:0-16": "ACGTNNNNNNNNACGT",
    }
    assert texts(fasta="g.fa", intervals="g.bed", splits=["test"]) == {"test#chr2:1-5": "CGTN"}
    source = GenomeSource(fasta="g.fa", intervals="g.bed")
    assert [source.held_out(name) for name in found] == [False, True, False]
    source.check()


def test_soft_masked_bases(folder):
    path = write_fasta(folder / "g.fa", {"a": "ACgtnN"})
    for option, text in {"upper": "ACGTNN", "keep": "ACgtnN", "N": "ACNNNN"}.items():
        assert texts(fasta=path, soft_masked=option) == {"a:0-6": text}
        source = build("source", {"name": "fasta", "paths": path, "soft_masked": option, "reverse_complement": True})
        both = [document.text for document in source.documents()]
        assert both == [text, text[::-1].translate(str.maketrans("ACGTacgt", "TGCAtgca"))]


def test_regions_are_cut_into_intervals_and_gaps_are_left_out(folder):
    path = write_fasta(folder / "g.fa", {"a": ONE, "b": "ACGT" + "N" * 12})
    assert texts(fasta=path, regions=["a:100-1,000"], interval=500) == {
        "a:100-600": ONE[100:600],
        "a:600-1000": ONE[600:],
    }
    assert list(texts(fasta=path, interval=4, regions=["chrb"])) == ["b:0-4", "b:4-8", "b:8-12", "b:12-16"]
    assert list(texts(fasta=path, interval=8, regions=["b"], unknown=0.5)) == ["b:0-8"]
    assert sum(map(len, texts(fasta=path, interval=7).values())) == 1016


def test_a_chromosome_is_not_loaded(folder):
    """Reading an interval in the middle of a long record reads about as many bytes as it has bases."""
    path = write_fasta(folder / "g.fa", {"a": ONE * 2000})
    genome = Genome(folder / "g.fa")
    read = []
    raw = genome._records.faidx.file

    class Counting:
        def __getattr__(self, name):
            return getattr(raw, name)

        def read(self, size=-1):
            data = raw.read(size)
            read.append(len(data))
            return data

    genome._records.faidx.file = Counting()
    assert genome.read("a", 1_000_000, 1_001_000) == ONE
    assert 0 < sum(read) < 1100
    assert os.path.getsize(path) > 2_000_000


@pytest.mark.parametrize("seed", range(30))
def test_a_file_is_read_as_it_is_or_refused(folder, monkeypatch, seed):
    """Lines of any length, blank lines and both line ends, in pieces: whatever is read is what a plain parser reads."""
    rng = random.Random(seed)
    monkeypatch.setattr("unmask.data.sources.genome.LINE_BYTES", rng.randrange(2, 9))
    records, content = {}, ""
    for name in "abc":
        bases = "".join(rng.choices("ACGTN", k=rng.randrange(20)))
        width, ends = rng.randrange(1, 7), rng.choice((["\n"], ["\r\n"], ["\n", "\r\n"]))
        lines = [bases[i : i + width] for i in range(0, len(bases), width)]
        if rng.random() < 0.5:
            place = rng.randrange(len(lines) + 1)
            lines[place : place + 2] = rng.choice(
                (["".join(lines[place : place + 2])], ["", *lines[place : place + 2]])
            )
        content += "".join(line + rng.choice(ends) for line in (f">{name} a record", *lines))
        records[name] = bases
    (folder / "g.fa").write_text(rng.choice((content, content.rstrip())), newline="")
    try:
        genome = Genome(folder / "g.fa")
    except UnmaskError:
        return
    assert genome.sizes == {name: len(bases) for name, bases in records.items()}
    for name, bases in records.items():
        for start in range(len(bases)):
            assert genome.read(name, start, len(bases)) == bases[start:]
            assert genome.read(name, 0, start + 1) == bases[: start + 1]


def test_the_index_follows_a_changed_file(folder):
    path = write_fasta(folder / "g.fa", {"a": "ACGT"})
    assert texts(fasta=path) == {"a:0-4": "ACGT"}
    write_fasta(folder / "g.fa", {"a": "GGGGG", "b": "TT"})
    assert texts(fasta=path) == {"a:0-5": "GGGGG", "b:0-2": "TT"}
    assert {file.name for file in folder.iterdir()} == {"g.fa", "cache"}, "nothing is written beside the file"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (">a\nACGT\nAC\nACGT\n", "'g.fa', line 4: the lines of a record must be equally long"),
        (">a\nACGT\n\nACGT\n", "line 4: the lines of a record must be equally long"),
        (">a\nAC\nACG\n", "line 3: the lines of a record must be equally long"),
        (">a\nACGT\n>a\nAC\n", "line 3: a record must have a name of its own, got '>a'"),
        (">\nACGT\n", "line 1: a record must have a name of its own"),
        ("ACGT\n", "must begin with a line '>name'"),
        ("", "has no records"),
        (">a\nACE\n", "has 'E' at base 3 of 'a', which is not a nucleotide code"),
        (">a\nAC T\n", "has ' ' at base 3"),
        (">a\n", "has no intervals to read"),
    ],
)
def test_odd_files_are_refused_in_one_sentence(folder, content, words):
    (folder / "g.fa").write_text(content)
    with pytest.raises(UnmaskError) as error:
        texts(fasta="g.fa")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a\t0\t9\ttrain", "line 1: the end must be at most 8"),
        ("a\t4\t4\ttrain", "greater than the start"),
        ("a\t0\t4", "must be a record, a start, an end and a split"),
        ("a\tx\t4\ttrain", "must be a record"),
        (f"a\t0\t{5000 * '9'}\ttrain", "must be a record"),
        ("c\t0\t4\ttrain", "has no record 'c'"),
        ("a\t0\t4\tother", "no intervals of the splits train, valid"),
    ],
)
def test_odd_bed_files_are_refused_in_one_sentence(folder, line, words):
    write_fasta(folder / "g.fa", {"a": "ACGTACGT"})
    (folder / "g.bed").write_text(line + "\n")
    with pytest.raises(UnmaskError) as error:
        texts(fasta="g.fa", intervals="g.bed")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fasta": "none.fa"}, "no file 'none.fa'"),
        ({"fasta": "g.fa", "regions": ["a:4-2"]}, "inside its record"),
        ({"fasta": "g.fa", "regions": ["a:0-99"]}, "which has 8 bases"),
        ({"fasta": "g.fa", "regions": ["a:x"]}, "record:start-end"),
        ({"fasta": "g.fa", "regions": ["a"], "intervals": "g.bed"}, "exclude each other"),
        ({"fasta": "g.fa", "soft_masked": "lower"}, "soft_masked"),
    ],
)
def test_wrong_options(folder, options, words):
    write_fasta(folder / "g.fa", {"a": "ACGTACGT"})
    with pytest.raises(UnmaskError, match=words):
        list(build("source", {"name": "genome", **options}).documents())


def test_the_protocol_hg38_reads_the_published_split(folder):
    (folder / "hg38").mkdir()
    write_fasta(folder / "hg38/hg38.ml.fa", {"chr1": ONE.lower(), "chr2": TWO})
    lines = ["chr1\t0\t512\ttrain", "chr1\t512\t768\tvalid", "chr1\t768\t1000\ttest"]
    (folder / "hg38/human-sequences.bed").write_text("\n".join(lines) + "\n")
    protocol = get_protocol("hg38")
    parts = {part: [one.text for one in protocol.documents(part)] for part in ("train", "validation", "test")}
    assert parts == {"train": [ONE[:512]], "validation": [ONE[512:768]], "test": [ONE[768:]]}
    source = build("source", {"name": "protocol", "protocol": "hg38"})
    corpus = prepare(source, build("tokenizer", dict(protocol.tokenizer)))
    rows, _ = corpus.rows(build("policy", dict(protocol.policy)), 256)
    assert len(rows) == 2
    assert "".join(corpus.tokenizer.convert_ids_to_tokens(rows[0].input_ids[0])) == ONE[:256]


@pytest.mark.parametrize("name", ["chr20", "yeast"])
def test_the_parts_of_the_offline_protocols_do_not_overlap(name):
    parts = [set(place.source["regions"]) for place in get_protocol(name).parts.values()]
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]


@pytest.mark.skipif(not (DATA and Path(DATA, "dna/s_cerevisiae.fa.xz").is_file()), reason="UNMASK_DATA has no dna")
def test_the_yeast_genome_has_its_published_size(monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", DATA)
    sizes = [sum(len(one.text) for one in get_protocol("yeast").documents(p)) for p in ("train", "validation", "test")]
    assert sum(sizes) == 12_071_326
    assert sizes[1:] == [1_091_291, 948_066]
