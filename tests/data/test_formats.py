"""Each format becomes the documents that were put into it, packed or not; a mistake has a file, a line and a remedy."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather

from unmask import registry
from unmask.data.sources import base as pieces
from unmask.data.sources import readers as csv_rows
from unmask.data.sources import readers as json_list
from unmask.data.sources import source_spec
from unmask.data.sources.readers import READERS
from unmask.errors import UnmaskError

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
}
TEXTS = ["one", 'two\nlines, "quoted"\r\nand\ttabbed', "Ωmega \U0001f600 [MASK]", " "]


def source(path: Path | list[Path], **options: object) -> object:
    return registry.build("source", {"name": "text", "paths": path, **options})


def texts(path: Path, **options: object) -> list[str]:
    documents = list(source(path, **options).documents())
    assert [document.name for document in documents] == [f"{path.name}#{n}" for n in range(len(documents))]
    return [document.text for document in documents]


def table_file(write: Callable[[pa.Table, io.BytesIO], object]) -> Callable[[list[dict]], bytes]:
    def written(records: list[dict]) -> bytes:
        sink = io.BytesIO()
        write(pa.Table.from_pylist(records), sink)
        return sink.getvalue()

    return written


def csv_file(records: list[dict], **options: str) -> bytes:
    sink = io.StringIO(newline="")
    table = csv.DictWriter(sink, list(records[0]), **options)
    table.writeheader()
    table.writerows(records)
    return sink.getvalue().encode()


def arrow_stream(table: pa.Table, sink: io.BytesIO) -> None:
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)


def arrow_file(table: pa.Table, sink: io.BytesIO) -> None:
    with pa.ipc.new_file(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)


def json_lines(records: list[dict]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


WRITE: dict[str, Callable[[list[dict]], bytes]] = {
    "a.jsonl": json_lines,
    "a.NDJSON": lambda records: b"\xef\xbb\xbf\r\n" + json_lines(records).replace(b"\n", b"\r\n\n"),
    "a.json": lambda records: json.dumps(records, indent=1).encode(),
    "a.csv": csv_file,
    "a.tsv": lambda records: csv_file(records, delimiter="\t", lineterminator="\n"),
    "a.parquet": table_file(lambda table, sink: pq.write_table(table, sink, row_group_size=2)),
    "a.arrow": table_file(arrow_stream),
    "b.arrow": table_file(arrow_file),
    "a.feather": table_file(lambda table, sink: feather.write_feather(table, sink, chunksize=2)),
}


@pytest.mark.parametrize("name", WRITE)
def test_records_come_back_from_every_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WRITE[name]([{"n": n, "text": text} for n, text in enumerate(TEXTS)]))
    assert texts(tmp_path / name) == TEXTS


@pytest.mark.parametrize("name", WRITE)
def test_the_field_is_named_or_text_or_the_only_one_with_strings(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(WRITE[name]([{"n": 1, "body": "b", "text": "t"}, {"n": 2, "body": "c", "text": "u"}]))
    assert texts(path) == ["t", "u"]
    assert texts(path, field="body") == ["b", "c"]
    with pytest.raises(UnmaskError, match=r"has no field 'bodi'.* Did you mean 'body'\?"):
        texts(path, field="bodi")
    path.write_bytes(WRITE[name]([{"n": 1, "body": "b"}, {"n": 2, "body": "c"}]))
    assert texts(path) == ["b", "c"]
    path.write_bytes(WRITE[name]([{"head": "h", "n": 1, "body": "b"}]))
    with pytest.raises(
        UnmaskError, match=rf"{name}.* several fields with text among 'head', 'n', 'body'; set .* field"
    ):
        texts(path)
    path.write_bytes(WRITE[name]([{"n": 1, "m": 2}]))
    with pytest.raises(UnmaskError, match=rf"{name}.* no field with text among 'n', 'm'"):
        texts(path)


@pytest.mark.parametrize("name", [name for name in WRITE if not name.endswith("sv")])
def test_null_and_the_empty_text_are_dropped(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WRITE[name]([{"text": text} for text in ("a", None, "", "b")]))
    assert texts(tmp_path / name) == ["a", "b"]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.fa"])
def test_packed_equals_plain(tmp_path: Path, name: str, packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(name)
    made = ["".join(rng.choices("abc é\n", k=rng.randrange(1, 60))) for _ in range(50)]
    raw = {
        "a.txt": "".join(made).encode(),
        "a.fa": b"".join(b">r%d\n%s\n" % (n, bytes(rng.choices(b"ACGTacgtN\n", k=50))) for n in range(20)),
    }.get(name) or WRITE[name]([{"text": text} for text in made])
    (tmp_path / name).write_bytes(raw)
    (tmp_path / (name.upper() + packing.upper())).write_bytes(PACK[packing](raw))
    monkeypatch.setattr(pieces, "PIECE", 20)
    plain, packed = (
        [(document.text, document.more) for document in source(tmp_path / file).documents()]
        for file in (name, name.upper() + packing.upper())
    )
    assert plain == packed
    assert len(plain) > 1


@pytest.mark.parametrize("packing", [packing for packing in PACK if packing])
def test_streams_one_after_the_other_are_one_file(tmp_path: Path, packing: str) -> None:
    """As `cat a.gz b.gz` makes them; zstd also lets a frame stand between that holds no text."""
    skipped = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello" if packing == ".zst" else b""
    (tmp_path / f"a.txt{packing}").write_bytes(PACK[packing](b"one ") + skipped + PACK[packing](b"two"))
    assert [document.text for document in source(tmp_path / f"a.txt{packing}").documents()] == ["one two"]


@pytest.mark.parametrize("packing", [packing for packing in PACK if packing])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.fa"])
def test_a_broken_archive_is_named(tmp_path: Path, packing: str, name: str) -> None:
    path = tmp_path / (name + packing)
    line = {"a.txt": b"%s\n", "a.jsonl": b'"%s"\n', "a.fa": b">%s\nACGT\n"}[name]
    packed = PACK[packing](b"".join(line % os.urandom(8).hex().encode() for _ in range(4000)))
    for broken in (packed[: len(packed) // 2], packed[:-3], b"plain text"):
        path.write_bytes(broken)
        with pytest.raises(UnmaskError, match=rf"a\.\w+\{packing} is not a complete \{packing} file \(.*fetch or pack"):
            list(source(path).documents())


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("separator", [None, "line", "--"])
def test_bad_bytes_are_found_wherever_they_are(tmp_path: Path, packing: str, separator: str | None) -> None:
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACK[packing](b"\xef\xbb\xbf" + "é\n".encode() * 20_000 + b"\xff\n" + b"x\n" * 20_000))
    with pytest.raises(UnmaskError, match=r"is not valid UTF-8 at byte 60003 \(.*encoding_errors=replace"):
        list(source(path, separator=separator).documents())
    replaced = "".join(d.text for d in source(path, separator=separator, encoding_errors="replace").documents())
    assert replaced.count("\ufffd") == 1


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": b"}\n', r"a\.jsonl, line 2, is not JSON \(.*mend it"),
        ("a.jsonl", b'{"text": "a"}\n\n{"txt": "b"}\n', r"a\.jsonl, line 3, has no field 'text'; .*option field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 12}\n', r"a\.jsonl, line 2, has 12 where a text belongs"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', r"a\.jsonl, line 2, has \['b'\] where a text belongs"),
        ("a.jsonl", b'"a"\n"\xff"\n', r"a\.jsonl is not valid UTF-8 at byte 5"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1, is not JSON"),
        ("a.json", b'{"text": "a"}', r"a\.json, line 1, is no JSON list; rename it to \.jsonl"),
        ("a.json", b'\n["a",\n "b"\n', r"a\.json, line 4, has neither a comma nor the end"),
        ("a.json", b'["a",\n "b" "c"]', r"a\.json, line 2, has neither a comma nor the end"),
        ("a.json", b'["a",\n {"text": tru}]', r"a\.json, line 2, is not JSON \(Expecting value\)"),
        ("a.json", b'["a",\n "b]', r"a\.json, line 2, is not JSON \(Unterminated string"),
        ("a.json", b'["a",\n]', r"a\.json, line 2, is not JSON"),
        ("a.json", b'["a"]\n["b"]', r"a\.json, line 2, goes on after the end"),
        ("a.json", b'[{"text": "a"}, {"txt": "a"}]', r"a\.json, entry 2, has no field 'text'"),
        ("a.csv", b'text,n\na,1\n"b,2\n', r"a\.csv, line 3, is not a row of the table \(.*quotes"),
        ("a.csv", b'text\na\n"b\n', r"a\.csv, line 3, is not a row of the table \(unexpected end of data\)"),
        ("a.csv", b"text,n\na,1\nb, c,2\n", r"a\.csv, line 3, .*it has 3 columns, and the first row has 2"),
        ("a.csv", b"text,n\na,1\nb\n", r"a\.csv, line 3, .*it has 1 columns"),
        ("a.csv", b'text,n\na,1\n"' + b"b" * 200 + b'",2\n', r"a\.csv, line 3, .*field larger than field limit"),
        ("a.csv", b"text\n\xff\n", r"a\.csv is not valid UTF-8 at byte 5"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet is not a complete \.parquet file \(.*fetch it again"),
        ("a.arrow", b"ARROW1 and no more", r"a\.arrow is not a complete \.arrow file"),
        ("a.feather", b"something", r"a\.feather is not a complete \.feather file"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), r"a\.parquet\.gz can only be read unpacked"),
        ("a.fa", b"ACGT\n>a\nACGT\n", r"a\.fa does not begin with a line '>name'"),
        ("a.fa", b">a\nACGT\n>MEK\nMEKL\n", r"a\.fa, line 4, has 'E' in a sequence, which stands for no nucleotide"),
    ],
)
def test_malformed_input_is_one_sentence(
    tmp_path: Path, name: str, raw: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "LONGEST_CELL", 100)
    limit = csv.field_size_limit(50)
    (tmp_path / name).write_bytes(raw)
    try:
        with pytest.raises(UnmaskError, match=words) as caught:
            list(source(tmp_path / name).documents())
    finally:
        csv.field_size_limit(limit)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_a_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(WRITE["a.parquet"]([{"text": 1, "body": "b"}]))
    with pytest.raises(
        UnmaskError, match=r"The column 'text' of .*a\.parquet holds int64, not strings; .*option field"
    ):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_string_column(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["a", "b", None, "a"]).cast(kind)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        arrow_file(pa.table({"n": [1, 2, 3, 4], "s": column}), sink)
    assert texts(tmp_path / "a.arrow") == ["a", "b", "a"]


def test_strings_of_a_table_that_are_not_utf8(tmp_path: Path) -> None:
    bad = pa.array([b"good"] * 299 + [b"b\xffd"], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 300, bad.buffers())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UnmaskError, match=r"a\.parquet, row 300, is not valid UTF-8 at byte 1"):
        texts(tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", encoding_errors="replace") == ["good"] * 299 + ["b\ufffdd"]


@pytest.mark.parametrize("seed", range(40))
def test_a_json_list_is_read_in_small_chunks(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(json_list, "JSON_CHUNK", rng.randrange(1, 9))
    made = [
        "".join(rng.choices('ab"\\\n é{}[],\U0001f600', k=rng.randrange(1, 30))) for _ in range(rng.randrange(1, 9))
    ]
    nested = [rng.choice([text, {"text": text, "n": {"m": [1, -2.5e3, True, None]}}]) for text in made]
    raw = json.dumps(nested, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
    (tmp_path / "a.json").write_bytes(raw.encode() + b" \n" * rng.randrange(3))
    assert texts(tmp_path / "a.json") == made


def test_a_mistake_in_a_json_list_is_reported_without_reading_on(tmp_path: Path) -> None:
    """What follows is bad UTF-8, which only one who reads on would notice."""
    (tmp_path / "a.json").write_bytes(b'["a", {"text" "b"}, ' + b'"x", ' * 100_000 + b"\xff")
    with pytest.raises(UnmaskError, match="line 1, is not JSON"):
        texts(tmp_path / "a.json")


def test_line_ends_of_every_system(tmp_path: Path) -> None:
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "a.csv").write_bytes(end.join(["n,text", "1,one", "2,two", ""]).encode())
        assert texts(tmp_path / "a.csv") == ["one", "two"]


def test_cells_of_a_table_may_be_long(tmp_path: Path) -> None:
    long = "word " * 100_000
    (tmp_path / "a.csv").write_bytes(csv_file([{"text": long}]))
    assert texts(tmp_path / "a.csv") == [long]


def test_a_mixed_folder_in_sorted_order(tmp_path: Path) -> None:
    records = [{"text": "one"}, {"text": "two"}]
    for name, write in WRITE.items():
        (tmp_path / name).write_bytes(write(records))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "g.fna.zst").write_bytes(PACK[".zst"](b">chr1 first\nACgt\nRYn\n>chr2\nTTTT\n"))
    (tmp_path / "sub" / "z.MD.bz2").write_bytes(PACK[".bz2"](b"# Title"))
    for name in ("x.pdf", "y.pdf", "photo.png", "Makefile", "all.tar.gz", ".hidden.pdf"):
        (tmp_path / name).write_bytes(b"\x00\xff")
    mixed = source(tmp_path)
    documents = [(document.name, document.text) for document in mixed.documents()]
    expected = [(f"{name}#{n}", text) for name in sorted(WRITE) for n, text in enumerate(("one", "two"))]
    expected += [("sub/g.fna.zst#chr1", "ACGTNNN"), ("sub/g.fna.zst#chr2", "TTTT"), ("sub/z.MD.bz2", "# Title")]
    assert documents == expected
    assert mixed.skipped_files() == {".pdf": 2, ".png": 1, "": 1, ".tar.gz": 1}
    assert {Path(name.upper()).suffix.lower() for name in WRITE} | {".fna", ".fa", ".fasta", ".txt", ".md"} == set(
        READERS
    )


def test_what_is_named_is_read_and_nothing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes.LOG.gz").write_bytes(gzip.compress(b"plain", mtime=0))
    named = source([tmp_path / "notes.LOG.gz"])
    assert [document.text for document in named.documents()] == ["plain"]
    assert named.skipped_files() == {}
    assert registry.build("source", "stdlib").skipped_files() == {}


@pytest.mark.parametrize(
    ("package", "name"), [("zstandard", "a.txt.zst"), ("pyarrow", "a.parquet"), ("pyarrow", "a.arrow")]
)
def test_a_missing_package_says_what_to_install(
    tmp_path: Path, package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnmaskError, match=rf"needs the package {package}; run: pip install 'unmask\[data\]'"):
        list(source(tmp_path / name).documents())


def test_a_word_on_the_command_line_names_a_source(tmp_path: Path) -> None:
    assert source_spec("-") == {"name": "stdin"}
    assert source_spec("hf:org/stories") == {"name": "huggingface", "path": "org/stories"}
    assert source_spec(str(tmp_path)) == {"name": "text", "paths": [str(tmp_path)]}
    assert source_spec("missing.txt") == {"name": "text", "paths": ["missing.txt"]}
