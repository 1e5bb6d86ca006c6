"""The run folder: which checkpoint is the newest, what OUT shows, what is cleared away."""

from __future__ import annotations

from pathlib import Path

from unmask.training.checkpointing import all_checkpoints, checkpoint_path, find_latest, prune, publish


def make(out: Path, step: int) -> Path:
    path = checkpoint_path(out, step)
    (path / "state").mkdir(parents=True)
    (path / "config.json").write_text(str(step))
    return path


def test_the_newest_is_that_of_most_steps(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None
    steps = [500, 20, 123_456_789, 99_999_999]
    paths = {step: make(tmp_path, step) for step in steps}
    (tmp_path / "checkpoints" / ".step-99999999999.half.tmp").mkdir()
    (tmp_path / "checkpoints" / "notes.txt").touch()
    assert all_checkpoints(tmp_path) == [paths[step] for step in sorted(steps)]
    assert find_latest(tmp_path) == paths[123_456_789]


def test_the_folder_shows_what_was_published_last(tmp_path: Path) -> None:
    for step in (1, 2):
        publish(tmp_path, make(tmp_path, step))
        assert (tmp_path / "config.json").read_text() == str(step)
    assert (tmp_path / "latest").resolve() == checkpoint_path(tmp_path, 2)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert (moved / "config.json").read_text() == "2"


def test_old_and_half_written_checkpoints_are_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        make(tmp_path, step)
    (tmp_path / "checkpoints" / ".step-00000011.x.tmp" / "state").mkdir(parents=True)
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003", "step-00000010"]


def test_a_run_without_a_checkpoint_is_begun_again_and_anything_else_is_kept(tmp_path: Path) -> None:
    from unmask.training.checkpointing import clear_abandoned

    abandoned, other = tmp_path / "run", tmp_path / "other"
    (abandoned / "checkpoints" / ".step-00000001.x.tmp").mkdir(parents=True)
    (abandoned / "recipe.yaml").write_text("")
    clear_abandoned(abandoned)
    assert not abandoned.exists()
    other.mkdir()
    (other / "recipe.yaml").write_text("")
    (other / "thesis.tex").write_text("years of work")
    clear_abandoned(other)
    assert (other / "thesis.tex").exists()
