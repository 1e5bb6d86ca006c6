"""The token cache: the right tokens, found again by content, resumed after a kill, rebuilt when damaged."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.data import cache as module
from unmask.data import encoding
from unmask.data.cache import FILES, JOURNAL, META, TokenCache, TokenWriter
from unmask.data.documents import Document
from unmask.data.encoding import ChunkBatch, TextEncoder, encode
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer
from unmask.errors import UnmaskError

DOCUMENTS = [Document("a", "héllo"), Document("b/ü", "\U0001f600"), Document("c", "x" * 50), Document("a", "héllo")]
BYTES = ByteTokenizer().build()
WORDS = [f"wörd{number} of the {number % 7}th line" + "\n" * (number % 3) for number in range(900)]


def corpus() -> Iterator[Document]:
    """Short documents, a long one in parts, and short ones again."""
    for number in range(60):
        yield Document(f"short {number}", " ".join(WORDS[number : number + number % 5]))
    text = " ".join(WORDS)
    yield from (Document("long", text[start : start + 777], True) for start in range(0, len(text), 777))
    yield Document("long", " the end")
    for number in range(40):
        yield Document(f"later {number}", WORDS[number])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


def build(documents: list[Document] = DOCUMENTS, tokenizer: object = BYTES, **options: object) -> TokenCache:
    return TokenCache.build(lambda: iter(documents), tokenizer, **options)  # type: ignore[arg-type]


def entries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def record_encodings(path: Path) -> Callable[[TextEncoder, ChunkBatch], Any]:
    """Return `TextEncoder.encode` that also writes the names and positions of the chunks to a file."""
    original = TextEncoder.encode

    def recorded(encoder: TextEncoder, batch: ChunkBatch) -> Any:
        with path.open("a") as record:
            record.writelines(json.dumps([chunk.name, chunk.start]) + "\n" for chunk in batch.chunks)
        return original(encoder, batch)

    return recorded


def test_it_holds_the_tokens_and_sizes_of_each_document() -> None:
    cache = build()
    assert len(cache) == 4
    assert [cache.document(index).tolist() for index in range(4)] == encode(BYTES, [d.text for d in DOCUMENTS])
    assert cache.byte_counts.tolist() == [6, 4, 50, 6]
    assert cache.character_counts.tolist() == [5, 1, 50, 5]
    assert [cache.name(index) for index in range(4)] == ["a", "b/ü", "c", "a"]
    assert sorted(path.name for path in cache.folder.iterdir()) == sorted([*FILES, META])
    assert (cache.offsets.dtype, cache.ids.dtype) == (np.int64, np.uint16)
    with pytest.raises(ValueError, match="read-only"):
        cache.ids[0] = 1


def test_it_is_found_again_by_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = build()
    with monkeypatch.context() as patch:
        patch.setattr(TextEncoder, "encode", None)
        assert build().folder == first.folder
    for changed in (
        [Document("A", "héllo"), *DOCUMENTS[1:]],
        [Document("a", "hallo"), *DOCUMENTS[1:]],
        [Document("ah", "éllo"), *DOCUMENTS[1:]],
        DOCUMENTS[::-1],
        DOCUMENTS[:3],
    ):
        assert build(changed).folder != first.folder
    assert build(tokenizer=BPETokenizer(vocab_size=260).build(lambda: iter(DOCUMENTS))).folder != first.folder


def test_a_large_vocabulary_takes_four_bytes() -> None:
    large = ByteTokenizer().build()
    large.add_tokens([f"<{number}>" for number in range(65_400)])
    cache = build([Document("a", "x<65399>")], large)
    assert cache.ids.dtype == np.uint32
    assert cache.ids.tolist() == [120, 258 + 65_399]


@pytest.mark.parametrize("damage", [*FILES, META, "missing", "no mapping"])
def test_a_damaged_cache_is_rebuilt(damage: str, folder: Path) -> None:
    first = build()
    expected = first.ids.tolist()
    if damage == "missing":
        (first.folder / "ids.bin").unlink()
    elif damage == "no mapping":
        (first.folder / META).write_text("[]")
    else:
        os.truncate(first.folder / damage, (first.folder / damage).stat().st_size // 2)
    with pytest.raises(UnmaskError, match="missing or damaged"):
        TokenCache.open(first.folder)
    again = build()
    assert (again.folder, again.ids.tolist()) == (first.folder, expected)
    assert entries(folder) == [first.folder.name], "nothing temporary is left"


def test_bad_texts_are_errors_and_leave_nothing(folder: Path) -> None:
    letters = CharTokenizer().build()
    with pytest.raises(UnmaskError, match=r"second\.txt has the character 'B'"):
        build([Document("first.txt", "a"), Document("second.txt", "aB")], letters)
    with pytest.raises(UnmaskError, match="has no tokens"):
        build([])
    assert entries(folder) == []
    versions = iter(["old", "new"])
    with pytest.raises(UnmaskError, match="changed while it was read"):
        TokenCache.build(lambda: iter([Document("a", next(versions))]), BYTES)
    assert entries(folder) == []


def test_pickling_keeps_the_folder_and_not_the_tokens() -> None:
    cache = build([Document("a", "x" * 100_000)])
    pickled = pickle.dumps(cache)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).ids.tolist() == cache.ids.tolist()


def contents(cache: TokenCache) -> dict[str, bytes]:
    return {name: (cache.folder / name).read_bytes() for name in (*FILES, META)}


@pytest.fixture
def unbroken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """The files of the corpus's cache; from then on chunks, batches and commits are small."""
    with monkeypatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(tmp_path / "unbroken"))
        expected = contents(TokenCache.build(corpus, BYTES))
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 300)
    monkeypatch.setattr(module, "COMMIT_BYTES", 2000)
    return expected


def run_in_child(function: Callable[[], None]) -> int | None:
    """Run a function in a forked process; returns its exit code."""
    child = get_context("fork").Process(target=function)
    child.start()
    child.join()
    return child.exitcode


def killed_at(function: Callable[..., Any], number: int, after: bool = False) -> Callable[..., Any]:
    """Return the function; its call of that number kills the process."""
    calls = iter(range(number))

    def call(*arguments: Any, **options: Any) -> Any:
        last = next(calls, None) is None
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


def unbuffered_write(writer: TokenWriter, name: str, values: Any) -> None:
    writer._uncommitted += writer._files[name].write(values if isinstance(values, bytes) else values.data)
    writer._files[name].flush()


POINTS: dict[str, tuple[object, str, int, bool]] = {
    "while encoding": (TextEncoder, "encode", 7, False),
    "between files": (TokenWriter, "_write", 33, True),
    "before the journal": (module, "atomic_text", 2, False),
    "after the journal": (module, "atomic_text", 2, True),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_encoding_continues(point: str, unbroken: dict[str, bytes], folder: Path, tmp_path: Path) -> None:
    owner, name, number, after = POINTS[point]

    def run() -> None:
        TextEncoder.encode = record_encodings(tmp_path / "record")  # type: ignore[method-assign]
        TokenWriter._write = unbuffered_write  # type: ignore[method-assign]
        setattr(owner, name, killed_at(getattr(owner, name), number, after))
        TokenCache.build(corpus, BYTES)

    exits = []
    while len(exits) < 50 and (not exits or exits[-1]):
        exits.append(run_in_child(run))
    assert set(exits[:-1]) == {-signal.SIGKILL}
    assert len(exits) > 3
    assert contents(TokenCache.build(corpus, BYTES)) == unbroken
    assert len(entries(folder)) == 1
    encoded = (tmp_path / "record").read_text().splitlines()
    assert list(dict.fromkeys(encoded)) == [json.dumps([c.name, c.start]) for c in TextEncoder(BYTES).split(corpus())]
    assert len(encoded) < 1.8 * len(set(encoded)), "what the journal records is not encoded again"


@pytest.mark.parametrize(("owner", "name"), [(Path, "unlink"), (TokenWriter, "__exit__")])
def test_a_kill_at_the_very_end(owner: type, name: str, unbroken: dict[str, bytes], folder: Path) -> None:
    """Before the journal is removed, and before the complete folder is renamed."""

    def run() -> None:
        setattr(owner, name, killed_at(getattr(owner, name), 0))
        TokenCache.build(corpus, BYTES)

    assert run_in_child(run) == -signal.SIGKILL
    assert contents(TokenCache.build(corpus, BYTES)) == unbroken
    assert len(entries(folder)) == 1


@pytest.mark.parametrize("damage", ["none", "journal", "chunks", "files"])
def test_an_interrupted_encoding_continues_only_from_a_journal_that_fits(
    damage: str, unbroken: dict[str, bytes], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = TextEncoder.encode, iter(range(20))

    def interrupted(encoder: TextEncoder, batch: ChunkBatch) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return original(encoder, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TextEncoder, "encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            TokenCache.build(corpus, BYTES)
    (partial,) = folder.glob(".*.partial")
    if damage == "journal":
        (partial / JOURNAL).write_text('{"format"')
    elif damage == "files":
        os.truncate(partial / "ids.bin", 100)
    elif damage == "chunks":
        monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 90)
        monkeypatch.setattr(module, "CHUNK_CHARACTERS", 90)
    monkeypatch.setattr(TextEncoder, "encode", record_encodings(tmp_path / "record"))
    assert contents(TokenCache.build(corpus, BYTES)) == unbroken
    again, total = (tmp_path / "record").read_text().count("\n"), sum(1 for _ in TextEncoder(BYTES).split(corpus()))
    assert again < total - 20 if damage == "none" else again == total


def test_files_are_flushed_before_the_journal_records_them(unbroken, monkeypatch) -> None:
    happened: list[str] = []
    original = module.atomic_text
    monkeypatch.setattr(module.os, "fsync", lambda handle: happened.append("flushed"))
    monkeypatch.setattr(module, "atomic_text", lambda path, text: [happened.append(path.name), original(path, text)])
    TokenCache.build(corpus, BYTES)
    steps = [happened[start : start + 6] for start in range(0, len(happened), 7)]
    assert steps[:-1] == [["flushed"] * 5 + [JOURNAL]] * (len(steps) - 1)
    assert steps[-1] == ["flushed"] * 5 + [META]
    assert len(steps) > 5


def test_a_full_disk_is_one_sentence_and_encoding_continues(unbroken, folder, tmp_path) -> None:
    """A limit on the size of files stands for the disk."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        try:
            TokenCache.build(corpus, BYTES)
        except UnmaskError as error:
            (tmp_path / "error").write_bytes(str(error).encode()[:5000])

    run_in_child(run)
    message = (tmp_path / "error").read_text()
    assert f"The cache folder {folder} cannot be used (File too large); set the environment" in message
    assert list(folder.glob(f".*.partial/{JOURNAL}"))
    assert contents(TokenCache.build(corpus, BYTES)) == unbroken
