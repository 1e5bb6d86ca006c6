"""Folders are built once, by one process at a time, and a killed build leaves no half."""

from __future__ import annotations

import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from unmask.data.build_once import build_once, cache_dir
from unmask.errors import UnmaskError


def is_complete(folder: Path) -> bool:
    return (folder / "done").is_file()


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("UNMASK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/unmask")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_dir() == Path("/home/me/.cache/unmask")


def test_a_folder_is_built_once_and_again_when_damaged(tmp_path: Path) -> None:
    calls = []

    def write(folder: Path) -> None:
        calls.append(folder)
        assert not (tmp_path / "a").exists() or not is_complete(tmp_path / "a")
        (folder / "done").write_text("done")

    for _ in range(2):
        build_once(tmp_path / "a", is_complete, write)
    assert len(calls) == 1
    (tmp_path / "a" / "done").rename(tmp_path / "a" / "other")
    build_once(tmp_path / "a", is_complete, write)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["done"]


def test_a_failed_build_is_not_seen(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise error

    for error, left in ((RuntimeError("broken"), True), (UnmaskError("bad text"), False)):
        with pytest.raises(type(error)):
            build_once(tmp_path / "a", is_complete, write)
        assert not (tmp_path / "a").exists()
        assert (tmp_path / ".a.partial").exists() == left, "an error of the user's data leaves nothing"


def test_other_processes_wait_and_find_the_folder(tmp_path: Path) -> None:
    fork = get_context("fork")
    begun, go = fork.Event(), fork.Event()

    def slow(folder: Path) -> None:
        begun.set()
        go.wait()
        (folder / "done").write_text("first")

    def second(folder: Path) -> None:
        (folder / "done").write_text("second")

    processes = [fork.Process(target=build_once, args=(tmp_path / "a", is_complete, w)) for w in (slow, second)]
    processes[0].start()
    begun.wait()
    processes[1].start()
    time.sleep(0.2)
    assert processes[1].is_alive()
    assert not (tmp_path / "a").exists()
    go.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "a" / "done").read_text() == "first"


def test_a_process_that_waits_takes_over_from_one_that_is_killed(tmp_path: Path) -> None:
    fork = get_context("fork")
    begun = fork.Event()

    def stuck(folder: Path) -> None:
        (folder / "half").write_text("half")
        begun.set()
        time.sleep(60)

    def finish(folder: Path) -> None:
        assert (folder / "half").read_text() == "half", "what was written is found"
        (folder / "done").touch()

    first = fork.Process(target=build_once, args=(tmp_path / "a", is_complete, stuck))
    first.start()
    begun.wait()
    second = fork.Process(target=build_once, args=(tmp_path / "a", is_complete, finish))
    second.start()
    first.kill()
    first.join()
    second.join()
    assert second.exitcode == 0
    assert is_complete(tmp_path / "a")


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnmaskError, match=r"cannot be used .* set the environment variable UNMASK_CACHE"):
        build_once(tmp_path / "file" / "a", is_complete, lambda folder: None)
