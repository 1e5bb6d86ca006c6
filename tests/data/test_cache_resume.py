"""Encoding that is killed goes on where it was, with the same bytes in the end; one process at a time writes."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from unmask.data import build_once as partial
from unmask.data import cache as writing
from unmask.data import pieces
from unmask.data.cache import FILES, META, TokenCache
from unmask.data.encoding import Encoder
from unmask.data.pieces import Joined
from unmask.data.sources import Document
from unmask.data.tokenizers import ByteTokenizer
from unmask.errors import UnmaskError

FORK = get_context("fork")
WORDS = [f"wörd{number} of the {number % 7}th line" + "\n" * (number % 3) for number in range(900)]
TOKENIZER = ByteTokenizer().build(lambda: iter(()))


def documents() -> Iterator[Document]:
    """Short ones, a long one in parts, and short ones again."""
    for number in range(60):
        yield Document(f"short {number}", " ".join(WORDS[number : number + number % 5]))
    text = " ".join(WORDS)
    yield from (Document("long", text[start : start + 777], True) for start in range(0, len(text), 777))
    yield Document("long", " the end")
    for number in range(40):
        yield Document(f"later {number}", WORDS[number])


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pieces, "LONG", 100)
    monkeypatch.setattr(writing, "LONG", 100)
    monkeypatch.setattr(pieces, "BATCH_CHARACTERS", 300)
    monkeypatch.setattr(writing, "COMMIT_BYTES", 2000)


def build() -> TokenCache:
    return TokenCache.build(documents, TOKENIZER)


def contents(cache: TokenCache) -> dict[str, bytes]:
    return {name: (cache.folder / name).read_bytes() for name in (*FILES, META)}


@pytest.fixture
def unbroken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    with monkeypatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(tmp_path / "unbroken"))
        return contents(build())


def partial_folder(root: Path) -> Path:
    (folder,) = (root / "cache" / "tokens").iterdir()
    return folder


def killing(function: Callable[..., Any], number: int, after: bool = False) -> Callable[..., Any]:
    """The function, at whose call of that number the process is gone."""
    calls = iter(range(number))

    def call(*arguments: Any, **options: Any) -> Any:
        killed = next(calls, None) is None
        if killed and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


def written_at_once(writer: writing.Writer, name: str, values: Any) -> None:
    """Leave nothing in a buffer, so that files are torn anywhere."""
    writer._uncommitted += writer._files[name].write(values if isinstance(values, bytes) else values.data)
    writer._files[name].flush()


def recording(path: Path) -> Callable[[Encoder, Joined], Any]:
    original = Encoder.encode

    def encode(encoder: Encoder, joined: Joined) -> Any:
        with path.open("a") as record:
            record.writelines(json.dumps([piece.name, piece.start]) + "\n" for piece in joined.pieces)
        return original(encoder, joined)

    return encode


POINTS: dict[str, tuple[object, str, int, bool]] = {
    "encoding": (Encoder, "encode", 7, False),
    "between files": (writing.Writer, "_write", 33, True),
    "before the journal": (writing, "atomic_text", 2, False),
    "after the journal": (writing, "atomic_text", 2, True),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_goes_on(point: str, unbroken: dict[str, bytes], tmp_path: Path) -> None:
    owner, name, number, after = POINTS[point]

    def run() -> None:
        Encoder.encode = recording(tmp_path / "record")  # type: ignore[method-assign]
        writing.Writer._write = written_at_once  # type: ignore[method-assign]
        setattr(owner, name, killing(getattr(owner, name), number, after))
        build()

    exits = []
    while len(exits) < 50 and (not exits or exits[-1]):
        child = FORK.Process(target=run)
        child.start()
        child.join()
        exits.append(child.exitcode)
    assert set(exits[:-1]) == {-signal.SIGKILL}
    assert len(exits) > 3
    assert contents(build()) == unbroken
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1
    encoded = (tmp_path / "record").read_text().splitlines()
    distinct = dict.fromkeys(encoded)
    assert list(distinct) == [json.dumps([p.name, p.start]) for p in Encoder(TOKENIZER).pieces(documents())]
    assert len(encoded) < 1.8 * len(distinct), "what the journal has is not encoded again"


def test_what_is_in_the_journal_is_encoded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "COMMIT_BYTES", 1)

    def run() -> None:
        Encoder.encode = killing(recording(tmp_path / "record"), 10)  # type: ignore[method-assign]
        build()

    for _ in range(3):
        child = FORK.Process(target=run)
        child.start()
        child.join()
    monkeypatch.setattr(Encoder, "encode", recording(tmp_path / "record"))
    build()
    encoded = (tmp_path / "record").read_text().splitlines()
    assert len(encoded) == len(set(encoded))


@pytest.mark.parametrize("point", [(partial, "_moved", False), (partial, "_moved", True)])
def test_killed_at_the_very_end(point: tuple[object, str, bool], unbroken: dict[str, bytes], tmp_path: Path) -> None:
    def run() -> None:
        setattr(*point[:2], killing(getattr(*point[:2]), 0, point[2]))
        build()

    child = FORK.Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert contents(build()) == unbroken
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


def test_others_wait_and_find_the_work_done(unbroken: dict[str, bytes], tmp_path: Path) -> None:
    go, begun = FORK.Event(), FORK.Event()
    original = Encoder.encode

    def slow(encoder: Encoder, joined: Joined) -> Any:
        begun.set()
        go.wait()
        return original(encoder, joined)

    def run(name: str, encode: Callable[..., Any]) -> None:
        Encoder.encode = encode  # type: ignore[method-assign]
        build()
        (tmp_path / name).touch()

    first = FORK.Process(target=run, args=("first", slow), daemon=True)
    first.start()
    begun.wait()
    others = [FORK.Process(target=run, args=(f"other {n}", killing(original, 0)), daemon=True) for n in range(2)]
    for other in others:
        other.start()
    time.sleep(0.3)
    assert all(other.is_alive() for other in others), "they wait"
    go.set()
    for process in (first, *others):
        process.join()
        assert process.exitcode == 0
    assert contents(build()) == unbroken
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_who_waits_goes_on_when_the_first_does_not(end: str, unbroken: dict[str, bytes]) -> None:
    begun, go = FORK.Event(), FORK.Event()

    def stuck(encoder: Encoder, joined: Joined) -> None:
        begun.set()
        go.wait()
        raise RuntimeError("broken")

    def run() -> None:
        Encoder.encode = stuck  # type: ignore[method-assign,assignment]
        with contextlib.suppress(RuntimeError):
            build()

    first = FORK.Process(target=run, daemon=True)
    first.start()
    begun.wait()
    second = FORK.Process(target=build, daemon=True)
    second.start()
    time.sleep(0.3)
    assert second.is_alive()
    first.kill() if end == "killed" else go.set()
    first.join()
    second.join()
    assert second.exitcode == 0
    assert contents(build()) == unbroken


def test_the_files_are_safe_before_the_journal_speaks_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    original = writing.atomic_text
    monkeypatch.setattr(writing.os, "fsync", lambda handle: happened.append("safe"))
    monkeypatch.setattr(writing, "atomic_text", lambda path, text: [happened.append(path.name), original(path, text)])
    build()
    steps = [happened[start : start + 6] for start in range(0, len(happened), 7)]
    assert steps[:-1] == [["safe"] * 5 + [partial.JOURNAL]] * (len(steps) - 1)
    assert steps[-1] == ["safe"] * 5 + [META]
    assert len(steps) > 5


def failing_after(number: int, error: BaseException) -> Callable[..., Any]:
    original = Encoder.encode
    calls = iter(range(number))

    def encode(encoder: Encoder, joined: Joined) -> Any:
        if next(calls, None) is None:
            raise error
        return original(encoder, joined)

    return encode


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), RuntimeError("broken")])
def test_an_interrupted_run_leaves_its_journal(
    error: BaseException, unbroken: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "encode", failing_after(20, error))
        with pytest.raises((type(error), UnmaskError)) as raised:
            build()
    assert isinstance(error, OSError) == ("cannot be used (No space left on device)" in str(raised.value))
    assert (partial_folder(tmp_path) / partial.JOURNAL).exists()
    monkeypatch.setattr(Encoder, "encode", recording(tmp_path / "record"))
    assert contents(build()) == unbroken
    again = (tmp_path / "record").read_text().splitlines()
    assert 0 < len(again) < len(list(Encoder(TOKENIZER).pieces(documents()))) - 20


def test_a_text_that_cannot_be_encoded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "encode", failing_after(20, UnmaskError("not in the alphabet")))
    with pytest.raises(UnmaskError, match="not in the alphabet"):
        build()
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


@pytest.mark.parametrize("damage", ["journal", "pieces", "files"])
def test_a_journal_that_does_not_fit_is_not_believed(
    damage: str, unbroken: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "encode", failing_after(20, RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            build()
    folder = partial_folder(tmp_path)
    if damage == "journal":
        (folder / partial.JOURNAL).write_text('{"format"')
    elif damage == "files":
        os.truncate(folder / "ids.bin", 100)
    else:
        monkeypatch.setattr(pieces, "LONG", 90)
        monkeypatch.setattr(writing, "LONG", 90)
    assert contents(build()) == unbroken


def test_other_partial_folders_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "cache" / "tokens" / ".0123.partial"
    other.mkdir(parents=True)
    (other / partial.JOURNAL).write_text("{}")
    build()
    assert (other / partial.JOURNAL).exists()


def test_a_full_disk_is_one_sentence_and_can_be_mended(unbroken: dict[str, bytes], tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        try:
            build()
        except UnmaskError as error:
            (tmp_path / "said").write_bytes(str(error).encode()[:5000])

    child = FORK.Process(target=run)
    child.start()
    child.join()
    said = (tmp_path / "said").read_text()
    assert f"The cache folder {tmp_path}/cache/tokens cannot be used (File too large); set the environment" in said
    assert (partial_folder(tmp_path) / partial.JOURNAL).exists()
    assert contents(build()) == unbroken
