"""Files and folders are written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from unmask.errors import UnmaskError
from unmask.io import atomic_folder, atomic_text, check_new_folder, check_output_file, check_writable


def test_a_folder_takes_its_name_when_it_is_complete(tmp_path: Path):
    with atomic_folder(tmp_path / "new") as folder:
        (folder / "a.txt").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"
    assert (tmp_path / "new" / "a.txt").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("disk is full")])
def test_a_full_disk_leaves_the_old_folder_and_says_what_to_do(tmp_path: Path, error: Exception):
    with atomic_folder(tmp_path / "kept") as folder:
        (folder / "a.txt").write_text("old")

    def fill_the_disk() -> None:
        with atomic_folder(tmp_path / "kept") as folder:
            (folder / "a.txt").write_text("ne")
            raise error

    with pytest.raises(UnmaskError, match="free space"):
        fill_the_disk()
    assert (tmp_path / "kept" / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_text_is_replaced_in_one_step(tmp_path: Path):
    target = tmp_path / "deep" / "a.txt"
    atomic_text(target, "one")
    atomic_text(target, "two")
    assert target.read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_a_folder_that_holds_something_is_refused(tmp_path: Path):
    check_new_folder(tmp_path / "nothing", "choose another")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnmaskError, match="is a file"):
        check_new_folder(tmp_path / "file", "choose another")
    with pytest.raises(UnmaskError, match="not empty; choose another"):
        check_new_folder(tmp_path, "choose another")


def test_a_place_is_tried_before_it_is_needed_and_nothing_is_left_of_that(tmp_path: Path):
    (tmp_path / "file.txt").write_text("mine")
    check_writable(tmp_path / "deep" / "down" / "x.json")
    check_writable(tmp_path / "file.txt")
    for wrong in (tmp_path / "file.txt" / "x.json", tmp_path / "file.txt" / "deep" / "x.json", Path("/proc/nope/x")):
        with pytest.raises(UnmaskError, match=r"cannot be written .*; choose another path"):
            check_writable(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_file_that_is_named_goes_into_a_folder_that_is_there(tmp_path: Path):
    check_output_file(tmp_path / "x.json")
    with pytest.raises(UnmaskError, match=r"folder '.*new' does not exist; create it first"):
        check_output_file(tmp_path / "new" / "x.json")
    with pytest.raises(UnmaskError, match=r"is a folder; name a file"):
        check_output_file(tmp_path)
    with pytest.raises(UnmaskError, match=r"cannot be written .*; choose another path"):
        check_output_file(Path("/proc/x.json"))
    assert not list(tmp_path.iterdir())


def test_a_file_that_a_full_disk_does_not_take_is_named_and_the_old_one_stays(tmp_path, monkeypatch):
    target = tmp_path / "report.json"
    atomic_text(target, "old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("unmask.io.os.fsync", full)
    with pytest.raises(UnmaskError, match=r"report.json' could not be written \(No space left on device\); free space"):
        atomic_text(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert target.read_text() == "old"
