"""Atomic writes, checks of output paths, and folders that are built once, by one process at a time."""

from __future__ import annotations

import errno
import os
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors import SafetensorError

from unmask.data.sources.huggingface import HuggingFaceSource
from unmask.errors import UnmaskError
from unmask.evaluation.judge import open_judge
from unmask.io import (
    atomic_folder,
    atomic_text,
    build_once,
    cache_dir,
    check_new_folder,
    check_output_file,
    check_writable,
    find_damage,
    offline_if_unreachable,
    write_checksums,
)


def test_a_folder_appears_when_it_is_complete(tmp_path: Path):
    with atomic_folder(tmp_path / "new") as folder:
        (folder / "a.txt").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"
    assert (tmp_path / "new" / "a.txt").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("disk is full")])
def test_a_full_disk_leaves_the_old_folder(tmp_path: Path, error: Exception):
    def write(text: str, error: Exception | None = None) -> None:
        with atomic_folder(tmp_path / "kept") as folder:
            (folder / "a.txt").write_text(text)
            if error is not None:
                raise error

    write("older")
    write("old")
    with pytest.raises(UnmaskError, match="free space"):
        write("ne", error)
    assert (tmp_path / "kept" / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "deep" / "report.json"
    atomic_text(target, "older")
    first = target.stat().st_ino
    atomic_text(target, "old")
    assert target.stat().st_ino != first, "the file is replaced, not overwritten"

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("unmask.io.os.fsync", full)
    with pytest.raises(UnmaskError, match=r"report.json' could not be written \(No space left on device\); free space"):
        atomic_text(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in target.parent.iterdir()] == ["report.json"]


def test_output_paths_are_checked_and_nothing_is_left(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    check_new_folder(tmp_path / "nothing", "choose another")
    check_writable(tmp_path / "deep" / "down" / "x.json")
    check_output_file(tmp_path / "x.json")
    for check, message in (
        (lambda: check_new_folder(tmp_path / "file", "choose another"), "is not a folder; choose another"),
        (lambda: check_new_folder(Path("/dev/null"), "choose another"), "is not a folder"),
        (lambda: check_new_folder(tmp_path, "choose another"), "not empty; choose another"),
        (lambda: check_writable(tmp_path / "file" / "x.json"), r"cannot be written .*; choose another path"),
        (lambda: check_writable(Path("/proc/nope/x")), r"cannot be written .*; choose another path"),
        (lambda: check_output_file(Path("/proc/x.json")), r"cannot be written .*; choose another path"),
        (lambda: check_output_file(tmp_path / "new" / "x.json"), r"folder '.*new' does not exist; create it first"),
        (lambda: check_output_file(tmp_path), "is a folder; name a file"),
    ):
        with pytest.raises(UnmaskError, match=message):
            check()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["a"]


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


@pytest.mark.parametrize("place", ["checksums.json", "state/checksums.json"])
def test_checksums_find_changed_missing_and_unreadable_files(tmp_path: Path, place: str):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "trainer.json").write_text("{}")
    (tmp_path / "config.json").write_text("1")
    write_checksums(tmp_path)
    (tmp_path / "checksums.json").rename(tmp_path / place)  # earlier versions wrote it beside the training state
    assert find_damage(tmp_path) is None
    (tmp_path / "config.json").write_text("2")
    assert find_damage(tmp_path) == "config.json does not match its checksum"
    (tmp_path / "config.json").unlink()
    assert find_damage(tmp_path) == "config.json cannot be read"
    (tmp_path / place).write_text("[1]")
    assert find_damage(tmp_path) == "checksums.json cannot be parsed"


def test_devices_and_pipes_are_never_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (lambda: atomic_text(pipe, "x"), lambda: check_output_file(pipe)):
        with pytest.raises(UnmaskError, match="is a device or a pipe, which would be replaced; name a file"):
            write()
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]


def test_without_a_connection_judges_and_datasets_fail_at_once(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with offline_if_unreachable():
        assert constants.is_offline_mode()
    assert not constants.is_offline_mode()
    pytest.importorskip("datasets")
    start = time.monotonic()
    with pytest.raises(UnmaskError, match="judge 'org/none' cannot be opened"):
        open_judge("org/none")
    with pytest.raises(UnmaskError, match="dataset 'org/none' could not be read"):
        list(HuggingFaceSource(path="org/none").documents())
    assert time.monotonic() - start < 10, "no retries"
