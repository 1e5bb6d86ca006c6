"""The token cache: right tokens, found again by content, rebuilt when damaged, never half-written."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from unmask.data import build_once as partial
from unmask.data import cache as module
from unmask.data import pieces
from unmask.data.cache import FILES, META, TokenCache, Tokens, cache_dir
from unmask.data.encoding import Encoder, encode
from unmask.data.pieces import Joined
from unmask.data.sources import Document
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer
from unmask.errors import UnmaskError

DOCUMENTS = [Document("a", "héllo"), Document("b/ü", "\U0001f600"), Document("c", "x" * 50), Document("a", "héllo")]
BYTES = ByteTokenizer().build(lambda: iter(()))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(documents: list[Document] = DOCUMENTS, tokenizer: object = BYTES, **options: object) -> TokenCache:
    return TokenCache.build(lambda: iter(documents), tokenizer, **options)  # type: ignore[arg-type]


def count_encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one each time a batch is encoded for a cache."""
    calls: list[int] = []
    original = Encoder.encode

    def counted(encoder: Encoder, joined: Joined) -> object:
        calls.append(len(joined.pieces))
        return original(encoder, joined)

    monkeypatch.setattr(Encoder, "encode", counted)
    return calls


def test_it_holds_the_tokens_and_sizes_of_each_document() -> None:
    cache = build()
    assert len(cache) == 4
    assert [cache.document(index).tolist() for index in range(4)] == encode(BYTES, [d.text for d in DOCUMENTS])
    assert cache.byte_counts.tolist() == [6, 4, 50, 6]
    assert cache.character_counts.tolist() == [5, 1, 50, 5]
    assert cache.names == ["a", "b/ü", "c", "a"]
    assert cache.name(1) == "b/ü"
    assert sorted(path.name for path in cache.folder.iterdir()) == sorted([*FILES, META])
    assert cache.offsets.dtype == np.int64
    assert cache.ids.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        cache.ids[0] = 1


def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(tokenizer=BPETokenizer(vocab_size=260).build(lambda: iter(DOCUMENTS)))
    expected = whole.ids.tolist(), whole.offsets.tolist()
    monkeypatch.setattr(pieces, "BATCH_CHARACTERS", 3)
    monkeypatch.setenv("UNMASK_CACHE", str(whole.folder.parent / "other"))
    calls = count_encodings(monkeypatch)
    streamed = build(tokenizer=BPETokenizer(vocab_size=260).build(lambda: iter(DOCUMENTS)))
    assert calls == [1, 2, 1]
    assert (streamed.ids.tolist(), streamed.offsets.tolist()) == expected


def test_it_is_found_again_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()
    calls = count_encodings(monkeypatch)
    assert build().folder == first.folder
    assert not calls
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
    large = ByteTokenizer().build(lambda: iter(()))
    large.add_tokens([f"<{number}>" for number in range(65_400)])
    cache = build([Document("a", "x<65399>")], large)
    assert cache.ids.dtype == np.uint32
    assert cache.ids.tolist() == [120, 258 + 65_399]


@pytest.mark.parametrize("damage", [*FILES, "meta.json", "missing", "meta"])
def test_a_damaged_cache_is_noticed_and_rebuilt(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()
    expected = first.ids.tolist()
    if damage == "missing":
        (first.folder / "ids.bin").unlink()
    elif damage == "meta":
        (first.folder / "meta.json").write_text("[]")
    else:
        os.truncate(first.folder / damage, (first.folder / damage).stat().st_size // 2)
    with pytest.raises(UnmaskError, match="missing or damaged"):
        TokenCache.open(first.folder)
    calls = count_encodings(monkeypatch)
    again = build()
    assert calls
    assert again.folder == first.folder
    assert again.ids.tolist() == expected
    assert len(list(again.folder.parent.iterdir())) == 1, "nothing temporary is left"


def test_a_failure_leaves_nothing(folder: Path) -> None:
    def breaking() -> Iterator[Document]:
        yield Document("a", "fine")
        if (folder / "tokens").exists():
            raise RuntimeError("the disk went away")
        yield Document("b", "fine")

    with pytest.raises(RuntimeError, match="went away"):
        TokenCache.build(breaking, BYTES)
    assert list((folder / "tokens").iterdir()) == []


def test_a_text_that_changes_meanwhile_is_noticed(folder: Path) -> None:
    with pytest.raises(UnmaskError, match="changed while it was read"):
        TokenCache.build(lambda: iter([Document("a", "new" if (folder / "tokens").exists() else "old")]), BYTES)
    assert list((folder / "tokens").iterdir()) == []


def test_without_locks_who_loses_the_race_uses_the_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "fcntl", None)
    original = module._write
    winners: list[float] = []

    def late(folder: Path, *rest: object) -> None:
        original(folder, *rest)  # type: ignore[arg-type]
        monkeypatch.setattr(module, "_write", original)
        winners.append((build().folder / "ids.bin").stat().st_ino)

    monkeypatch.setattr(module, "_write", late)
    cache = build()
    assert (cache.folder / "ids.bin").stat().st_ino == winners[0]
    assert len(list(cache.folder.parent.iterdir())) == 1


def build_in_a_process(root: str) -> list[int]:
    os.environ["UNMASK_CACHE"] = root
    return build([Document(str(number), f"text {number}" * 20) for number in range(300)]).ids.tolist()


def test_processes_that_build_at_once_agree(folder: Path) -> None:
    with get_context("fork").Pool(2) as pool:
        results = pool.map(build_in_a_process, [str(folder)] * 4, chunksize=1)
    assert all(result == results[0] for result in results)
    assert len(list((folder / "tokens").iterdir())) == 1


def test_an_empty_corpus_is_an_error() -> None:
    with pytest.raises(UnmaskError, match="no tokens"):
        build([])


def test_errors_name_the_document() -> None:
    with pytest.raises(UnmaskError, match=r"second\.txt has the character 'B'"):
        build([Document("first.txt", "a"), Document("second.txt", "aB")], CharTokenizer().build(lambda: iter(())))


def test_progress_counts_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BATCH_CHARACTERS", 6)
    seen: list[tuple[int, int]] = []
    build(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(6, 61), (56, 61), (61, 61)]


def test_another_process_opens_the_folder_instead_of_receiving_tokens() -> None:
    cache = build([Document("a", "x" * 100_000)])
    pickled = pickle.dumps(cache)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).ids.tolist() == cache.ids.tolist()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("UNMASK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/unmask")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_dir() == Path("/home/me/.cache/unmask")


def test_a_place_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnmaskError, match=r"cannot be used .* set the environment variable UNMASK_CACHE"):
        build()


def test_tokens_in_memory() -> None:
    tokens = Tokens.of([[1, 2], [], [3]], ["é", "", "b"])
    assert tokens.offsets.tolist() == [0, 2, 2, 3]
    assert tokens.document(0).tolist() == [1, 2]
    assert tokens.byte_counts.tolist() == [2, 0, 1]
    assert tokens.character_counts.tolist() == [1, 0, 1]
    assert Tokens.of([[1]]).byte_counts is None
    with pytest.raises(ValueError, match="1 lists of ids for 2 texts"):
        Tokens.of([[1]], ["a", "b"])
