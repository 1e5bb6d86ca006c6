"""Atomic writes, and checks of output paths."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from unmask.errors import UnmaskError
from unmask.io import atomic_folder, atomic_text, check_new_folder, check_output_file, check_writable


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
        (lambda: check_new_folder(tmp_path / "file", "choose another"), "is a file"),
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
