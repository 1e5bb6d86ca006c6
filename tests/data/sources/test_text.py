"""Each format becomes the documents that were written to it; an error names the file, the line and the remedy."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from unmask import registry
from unmask.data.documents import Document
from unmask.data.sources import text
from unmask.data.sources.text import StdinSource, TextSource
from unmask.errors import UnmaskError

TEXTS = ["one", 'two\nlines, "quoted"\r\nand\ttabbed', "Ωmega \U0001f600 [MASK]", " "]


def source(path: Path, **options: object) -> object:
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
    raw = WRITE[name]([{"n": n, "text": text} for n, text in enumerate(TEXTS)])
    (tmp_path / name).write_bytes(raw)
    assert texts(tmp_path / name) == TEXTS
    if name.endswith(("json", "jsonl", "sv")):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(raw))
        assert texts(tmp_path / f"{name}.gz") == TEXTS
    if not name.endswith("sv"):
        (tmp_path / name).write_bytes(WRITE[name]([{"text": text} for text in ("a", None, "", "b")]))
        assert texts(tmp_path / name) == ["a", "b"], "null and the empty text are dropped"


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
        UnmaskError, match=rf"{name}.* several fields with text among 'head', 'n', 'body'; .*data\.source\.field=head"
    ):
        texts(path)
    path.write_bytes(WRITE[name]([{"n": 1, "m": 2}]))
    with pytest.raises(UnmaskError, match=rf"{name}.* no field with text among 'n', 'm'"):
        texts(path)


def test_null_in_the_first_record_may_stand_for_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "body": null}\n{"n": 2, "body": "b"}\n')
    assert texts(tmp_path / "a.jsonl") == ["b"]


def test_a_field_needs_a_file_with_records(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.jsonl").write_text('{"body": "b"}')
    TextSource(paths=str(tmp_path), field="body").check()
    with pytest.raises(
        UnmaskError, match=r"^data\.source\.field \(--field\) is 'body', and .*a\.txt has no fields; leave"
    ):
        TextSource(paths=str(tmp_path / "a.txt"), field="body").check()


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": b"}\n', r"a\.jsonl, line 2, is not JSON \(.*correct or remove it"),
        ("a.jsonl", b'{"text": "a"}\n\n{"txt": "b"}\n', r"a\.jsonl, line 3, has no field 'text'; .*data.source.field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 12}\n', r"a\.jsonl, line 2, has 12 instead of a text"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', r"a\.jsonl, line 2, has \['b'\] instead of a text"),
        ("a.jsonl", b'"a"\n"\xff"\n', r"a\.jsonl is not valid UTF-8 at byte 5"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1, is not JSON"),
        ("a.jsonl", b'{"text": ' + b"9" * 10_000 + b"}", r"a\.jsonl, line 1, is not JSON"),
        ("a.jsonl", b'{"text": 1e999}', r"a\.jsonl, line 1, has inf instead of a text"),
        ("a.csv", b"n\n" + b"9" * 10_000 + b"\n", r"a\.csv has no field with text"),
        ("a.json", b'{"text": "a"}', r"a\.json must be a JSON list; rename it to \.jsonl"),
        ("a.json", b'["a",\n "b" "c"]', r"a\.json, line 2, is not JSON \(Expecting ',' delimiter"),
        ("a.json", b'["a"]\n["b"]', r"a\.json, line 2, is not JSON \(Extra data"),
        ("a.json", b'[{"text": "a"}, {"txt": "a"}]', r"a\.json, entry 2, has no field 'text'"),
        ("a.csv", b'text,n\na,1\n"b,2\n', r"a\.csv, line 3, is not a row of the table \(.*quotes"),
        ("a.csv", b"text,n\na,1\nb, c,2\n", r"a\.csv, line 3, .*it has 3 columns, and the first row has 2"),
        ("a.csv", b"text,n\na,1\nb\n", r"a\.csv, line 3, .*it has 1 columns"),
        ("a.csv", b"text\n\xff\n", r"a\.csv is not valid UTF-8 at byte 5"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet is not a complete \.parquet file \(.*download it again"),
        ("a.arrow", b"ARROW1 and no more", r"a\.arrow is not a complete \.arrow file"),
        ("a.feather", b"something", r"a\.feather is not a complete \.feather file"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), r"a\.parquet\.gz must be decompressed first"),
    ],
)
def test_malformed_input_is_one_sentence(tmp_path: Path, name: str, raw: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UnmaskError, match=words) as caught:
        list(source(tmp_path / name).documents())
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", WRITE)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    whole = WRITE[name]([{"n": n, "text": text * 3} for n, text in enumerate(TEXTS * 20)])
    for seed in range(100):
        rng = random.Random(seed)
        raw = bytearray(whole)
        for start in rng.sample(range(len(raw)), rng.choice([1, 1, 2, 8])):
            raw[start : start + 4] = rng.choice([rng.randbytes(4), rng.randbytes(1), b"", b"\xff\xff\xff\x7f"])
        (tmp_path / name).write_bytes(raw)
        with contextlib.suppress(UnmaskError):
            list(source(tmp_path / name).documents())


def test_csv_has_long_cells_and_line_ends_of_every_system(tmp_path: Path) -> None:
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "a.csv").write_bytes(end.join(["n,text", "1,one", "", "2,two", ""]).encode())
        assert texts(tmp_path / "a.csv") == ["one", "two"]
    long = "word " * 100_000
    (tmp_path / "a.csv").write_bytes(csv_file([{"text": long}]))
    assert texts(tmp_path / "a.csv") == [long]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_string_columns_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["a", "b", None, "a"]).cast(kind)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        arrow_file(pa.table({"n": [1, 2, 3, 4], "s": column}), sink)
    assert texts(tmp_path / "a.arrow") == ["a", "b", "a"]
    (tmp_path / "a.parquet").write_bytes(WRITE["a.parquet"]([{"text": 1, "body": "b"}]))
    with pytest.raises(
        UnmaskError, match=r"The column 'text' of .*a\.parquet holds int64, not strings; .*data.source.field"
    ):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_pyarrow_is_optional(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnmaskError, match=r"needs the package pyarrow; run: pip install 'unmask\[data\]'"):
        list(source(tmp_path / name).documents())


def test_a_folder_of_all_formats(tmp_path: Path) -> None:
    for name, write in WRITE.items():
        (tmp_path / name).write_bytes(write([{"text": "one"}, {"text": "two"}]))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "g.fna.gz").write_bytes(gzip.compress(b">chr1 first\nACgt\nRYn\n>chr2\nTTTT\n"))
    (tmp_path / "sub" / "z.MD").write_bytes(b"# Title")
    documents = [(document.name, document.text) for document in source(tmp_path).documents()]
    expected = [(f"{name}#{n}", text) for name in sorted(WRITE) for n, text in enumerate(("one", "two"))]
    expected += [("sub/g.fna.gz#chr1", "ACGTNNN"), ("sub/g.fna.gz#chr2", "TTTT"), ("sub/z.MD", "# Title")]
    assert documents == expected


def test_plain_text_is_unchanged_except_for_a_byte_order_mark(tmp_path: Path) -> None:
    content = "Zeile\r\n\x00 \U0001f600 end\n\n"
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert list(source(tmp_path / "a.txt").documents()) == [Document("a.txt", content)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators(tmp_path: Path, end: str) -> None:
    lines = ["one", "still <|end|> one", "<|end|>", "<|end|>", " ", "<|end|>", "", "last"]
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    assert texts(tmp_path / "a.txt", separator="<|end|>") == [f"one{end}still <|end|> one", " ", f"{end}last"]
    (tmp_path / "a.txt").write_bytes(end.join(["one", "two", "", " ", "three", ""]).encode())
    assert texts(tmp_path / "a.txt", separator="line") == ["one", "two", " ", "three"]
    assert texts(tmp_path / "a.txt", separator="paragraph") == [f"one{end}two", "three"]
    for separator in ("", "two\nlines"):
        with pytest.raises(UnmaskError, match="a separator must be one line"):
            source(tmp_path, separator=separator)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("separator", [None, "line", "paragraph", "ab"])
def test_files_read_the_same_in_small_parts(tmp_path, seed, separator, monkeypatch) -> None:
    rng = random.Random(seed)
    alphabet = ["a", "b", "é", "日", "\U0001f600", " ", " ", "\n", "\n", "\r", "\r\n", "\u3000", "\nab\n"]
    content = "".join(rng.choices(alphabet, k=rng.randrange(1, 150)))
    (tmp_path / "a.txt").write_bytes(content.encode())
    made = source(tmp_path / "a.txt", separator=separator)
    whole = [(document.name, document.text) for document in made.documents()]
    if separator is None:
        assert whole == [("a.txt", content)]
    monkeypatch.setattr("unmask.data.documents.MAX_CHARACTERS", rng.randrange(1, 20))
    monkeypatch.setattr(text, "CHUNK_CHARACTERS", rng.randrange(1, 20))
    joined: list[tuple[str, str]] = []
    more = False
    for document in made.documents():
        joined.append((document.name, (joined.pop()[1] if more else "") + document.text))
        more = document.more
    assert joined == whole
    assert not more


MEMORY = """
import resource, sys
from unmask import registry
from unmask.data import documents
documents.MAX_CHARACTERS = 1_000_000
name, path, options = sys.argv[1:]
source = registry.build("source", {"name": name, "paths": path, **eval(options)})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = sum(len(document.text) for document in source.documents())
print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in other units")
@pytest.mark.parametrize(
    ("name", "unit", "source", "options"),
    [
        ("one_line.txt", b"word ", "text", {}),
        ("one_paragraph.txt", b"word and " * 8 + b"\n", "text", {"separator": "paragraph"}),
        ("lines.jsonl", b'"' + b"word and " * 8 + b'"\n', "text", {}),
        ("rows.csv", b"text of a cell,7\n", "text", {}),
        ("wrapped.fa", b"ACGT" * 15 + b"\n", "fasta", {"reverse_complement": True}),
        ("unwrapped.fa", b"ACGT" * 16, "fasta", {}),
    ],
)
def test_large_files_need_little_memory(tmp_path: Path, name: str, unit: bytes, source: str, options: dict) -> None:
    """40 MB are read in less than half of that."""
    block = unit * (2_000_000 // len(unit))
    with open(tmp_path / name, "wb") as file:
        file.write({".fa": b">r\n", ".csv": b"text,n\n"}.get(Path(name).suffix, b""))
        for _ in range(20):
            file.write(block)
    command = [sys.executable, "-c", MEMORY, source, str(tmp_path / name), repr(options)]
    size, megabytes = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert size > 30_000_000
    assert megabytes < 20


def test_standard_input_is_read_once_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    for _ in range(2):
        assert list(StdinSource(separator="line").documents()) == [
            Document("stdin#0", "one"),
            Document("stdin#1", "two"),
        ]
    assert [document.text for document in StdinSource().documents()] == ["one\ntwo\n"]


def test_standard_input_is_stored_until_the_process_ends(tmp_path: Path) -> None:
    program = (
        "import tempfile; from pathlib import Path; from unmask.data.sources.text import StdinSource\n"
        "(first,), (again,) = (list(StdinSource().documents()) for _ in range(2)); assert first == again\n"
        "(stored,) = Path(tempfile.gettempdir()).iterdir(); print(len(first.text), (stored / 'text').stat().st_size)"
    )
    content = "words and " * 20_000
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=content,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.split() == [str(len(content))] * 2
    assert list(tmp_path.iterdir()) == []


def test_bad_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for raw, message in ((b"one\xff", "Standard input is not valid UTF-8 at byte 3"), (b"", "Standard input is empty")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        with pytest.raises(UnmaskError, match=message):
            list(StdinSource().documents())
