"""The run folder: which checkpoint is the newest, what OUT shows, what is removed."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from unmask.data.rows import POSITIONS, TEXT_TOKENS
from unmask.errors import UnmaskError
from unmask.training.checkpointing import (
    TrainerState,
    all_checkpoints,
    clear_abandoned,
    find_latest,
    improves,
    publish,
    read_trainer_state,
    run_lock,
)


def make(out: Path, step: int, bits: float | None = None, **more: Any) -> Path:
    path = out / "checkpoints" / f"step-{step:08d}"
    (path / "state").mkdir(parents=True)
    (path / "config.json").write_text(str(step))
    state = TrainerState(step, step, 0.0, 0.0, "", {"data": {"policy": "supervised_eos"}}, bits, **more)
    (path / "state" / "trainer.json").write_text(json.dumps(asdict(state)))
    return path


def test_the_newest_checkpoint_has_the_most_steps(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None
    steps = [500, 20, 123_456_789, 99_999_999]
    paths = {step: make(tmp_path, step) for step in steps}
    (tmp_path / "checkpoints" / ".step-99999999999.half.tmp").mkdir()
    (tmp_path / "checkpoints" / "notes.txt").touch()
    assert all_checkpoints(tmp_path) == [paths[step] for step in sorted(steps)]
    assert find_latest(tmp_path) == paths[123_456_789]


def test_the_folder_shows_the_latest_and_the_best(tmp_path: Path) -> None:
    assert improves(tmp_path, 9.0, POSITIONS)
    for step, bits in ((1, 3.0), (2, 2.5), (3, None)):
        publish(tmp_path, make(tmp_path, step, bits), keep=3, keep_best=1)
        assert (tmp_path / "config.json").read_text() == str(step)
    assert (tmp_path / "latest").resolve() == tmp_path / "checkpoints/step-00000003"
    assert (tmp_path / "best").resolve() == tmp_path / "checkpoints/step-00000002"
    assert improves(tmp_path, 2.4, POSITIONS)
    assert not improves(tmp_path, 2.5, POSITIONS)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert (moved / "config.json").read_text() == "3"


WRONG = {
    "1.0": '"1.0"',
    '{"policy": "supervised_eos"}': "{}, []",
    '{"data"': '[{"data"',
    '"supervised_eos"': "[" * 9999,
}


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\xff", '{"step": 1}', None, *WRONG])
def test_a_damaged_older_checkpoint_is_not_the_best_one(tmp_path: Path, content: str | None) -> None:
    state = make(tmp_path, 1, 1.0) / "state" / "trainer.json"
    if content is None:
        state.unlink()
    else:
        text = state.read_text().replace(content, WRONG[content]) if content in WRONG else content
        state.write_bytes(text.encode("latin-1"))
    assert improves(tmp_path, 9.0, POSITIONS)
    publish(tmp_path, make(tmp_path, 2, 3.0), keep=2, keep_best=1)
    assert (tmp_path / "best").resolve() == tmp_path / "checkpoints/step-00000002"


@pytest.mark.parametrize("recipe", ["{}", '{"data": []}', '{"data": null}', '{"data": {"policy": [1]}}', "[]", "null"])
def test_a_damaged_recipe_in_an_older_checkpoint_does_not_end_a_run(tmp_path: Path, recipe: str) -> None:
    state = make(tmp_path, 1, 1.0) / "state" / "trainer.json"
    state.write_text(state.read_text().replace('{"data": {"policy": "supervised_eos"}}', recipe))
    improves(tmp_path, 9.0, TEXT_TOKENS)
    publish(tmp_path, make(tmp_path, 2, 3.0), keep=2, keep_best=1)
    assert (tmp_path / "best").is_symlink()


def test_old_and_half_written_checkpoints_are_removed(tmp_path: Path) -> None:
    for step, bits in ((1, 3.0), (2, 2.0), (3, 2.0), (10, None)):
        last = make(tmp_path, step, bits)
    (tmp_path / "checkpoints" / ".step-00000011.x.tmp" / "state").mkdir(parents=True)
    publish(tmp_path, last, keep=1, keep_best=1)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000010"]


def test_bounds_of_two_denominators_are_not_compared(tmp_path: Path) -> None:
    publish(tmp_path, make(tmp_path, 1, 1.5), keep=1, keep_best=1)
    assert improves(tmp_path, 2.2, TEXT_TOKENS), "the first bound per token, after one per position"
    for step, bits in ((2, 2.2), (3, 2.3)):
        publish(tmp_path, make(tmp_path, step, bits, denominator=TEXT_TOKENS), keep=1, keep_best=1)
    assert not improves(tmp_path, 2.25, TEXT_TOKENS)
    assert (tmp_path / "best").resolve() == tmp_path / "checkpoints/step-00000002"
    assert len(all_checkpoints(tmp_path)) == 3, "the best per position is kept too"
    packed = TrainerState(1, 1, 0.0, 0.0, "", {"data": {"policy": {"name": "packed"}}}, 1.5)
    assert packed.divides_by(TEXT_TOKENS), "without learned padding both are the same"


def test_a_run_without_a_checkpoint_is_removed_and_other_folders_are_kept(tmp_path: Path) -> None:
    abandoned, other = tmp_path / "run", tmp_path / "other"
    (abandoned / "checkpoints" / ".step-00000001.x.tmp").mkdir(parents=True)
    (abandoned / "recipe.yaml").write_text("")
    (abandoned / ".lock.json").write_text("a run that was killed")
    clear_abandoned(abandoned)
    assert [path.name for path in abandoned.iterdir()] == [".lock.json"]
    other.mkdir()
    (other / "recipe.yaml").write_text("")
    (other / "thesis.tex").write_text("years of work")
    clear_abandoned(other)
    assert (other / "thesis.tex").exists()


def test_a_trainer_state_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = make(tmp_path, 1)
    (path / "state" / "trainer.json").write_text("{}")
    with pytest.raises(UnmaskError, match=r"is damaged: trainer.json cannot be read .*--resume auto"):
        read_trainer_state(path)


def test_a_second_run_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "run"
    holder = rf"process {os.getpid()} on {re.escape(socket.gethostname())} has been training into it since 20\d\d-"
    with run_lock(out):
        with pytest.raises(UnmaskError, match=f"'{out}' is in use: {holder}.*; wait until it ends, or choose another"):
            run_lock(out).__enter__()
        (out / ".lock.json").write_text("[]")
        with pytest.raises(UnmaskError, match="is in use: another process is training into it; wait"):
            run_lock(out).__enter__()
    assert not out.parent.exists()


def test_lock_files_of_a_killed_run_hold_nothing(tmp_path: Path) -> None:
    for name in (".lock", ".lock.json", "recipe.yaml"):
        (tmp_path / name).write_text("{}")
    with run_lock(tmp_path):
        assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
