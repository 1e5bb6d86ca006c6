"""Stop and resume equals an unbroken run, bit by bit; a crash leaves the last checkpoint whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import StopAt, assert_same_tensors, everything, short_recipe, write_cats
from unmask.checkpoint import load_checkpoint, read_checkpoint_config
from unmask.config import Recipe
from unmask.errors import UnmaskError
from unmask.training import Interrupted, Progress, train
from unmask.training import checkpointing as checkpoints
from unmask.training.checkpointing import all_checkpoints, find_latest, write_checksums
from unmask.training.log import read_log

STEPS = 12


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "text.txt", 60)


@pytest.fixture(scope="module")
def unbroken(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all the broken ones must equal."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    train(recipe(text), out)
    return out


USUAL: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.2},
    "optimizer": {"learning_rate": 3e-3, "warmup": 5, "ema": 0.9},
    "training": {
        "steps": STEPS, "batch_size": 8, "accumulation": 2,
        "log_every": 4, "validate_every": 4, "validation_rows": 8, "save_every": 5, "keep": 5, "keep_best": 0,
    },
}  # fmt: skip


def recipe(text: Path, kind: str = "subs", **changes: dict[str, Any]) -> Recipe:
    return short_recipe(text, kind, USUAL, changes)


def timeless(out: Path) -> list[dict[str, Any]]:
    """The log without what a clock says."""
    measured = ("seconds", "tokens_per_second", "memory_gib", "mfu")
    return [{k: v for k, v in line.items() if k not in measured} for line in read_log(out)]


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_tensors(one, other)
    assert timeless(one) == timeless(other)


@pytest.mark.parametrize("objective", ["subs", "ar"])
def test_stop_and_resume_equals_an_unbroken_run(text: Path, tmp_path: Path, objective: str) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train(recipe(text, objective), whole)
    with pytest.raises(Interrupted):
        train(recipe(text, objective), broken, progress=StopAt(6))
    torch.rand(100)
    with pytest.raises(Interrupted):
        train(recipe(text, objective), broken, resume=True, progress=StopAt(3))
    result = train(recipe(text, objective), broken, resume=True)
    assert_same_run(whole, broken)
    assert result.bound == expected.bound


def test_a_schedule_that_learns_goes_on_where_it_was(text: Path, tmp_path: Path) -> None:
    learning = recipe(text, schedule={"name": "learned", "every": 3, "warmup": 2})
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train(learning, whole)
    for stop in (2, 3, 3):
        with pytest.raises(Interrupted):
            train(learning, broken, resume=broken.exists(), progress=StopAt(stop))
    result = train(learning, broken, resume=True)
    assert_same_run(whole, broken)
    assert result.bound == expected.bound
    saved = [read_checkpoint_config(out).schedule for out in (whole, broken)]
    assert saved[0] == saved[1]
    assert saved[0].knots == tuple(everything(whole)["trainer.safetensors:schedule.knots"].tolist())
    assert saved[0].knots != read_checkpoint_config(whole / "checkpoints" / "step-00000005").schedule.knots


def test_a_killed_run_repeats_what_it_had_not_saved(text: Path, unbroken: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    class Kill(Progress):
        def trained(self, record: dict[str, Any]) -> None:
            if record["step"] == 8:
                raise SystemExit

    with pytest.raises(SystemExit):
        train(recipe(text), killed, progress=Kill())
    assert [line["step"] for line in read_log(killed)][-1] == 8
    train(recipe(text), killed, resume=True)
    assert_same_run(unbroken, killed)


def test_more_steps_may_be_asked_for(text: Path, unbroken: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    train(recipe(text, training={"steps": 8}), longer)
    result = train(recipe(text), longer, resume=True)
    assert_same_run(unbroken, longer)
    assert result.steps == STEPS
    assert train(recipe(text), longer, resume=True).bound == result.bound


def test_a_crash_while_writing_leaves_the_last_checkpoint(
    text: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    write = checkpoints._write_state

    def full_disk(folder: Path, stepper: Any, progressed: Any) -> None:
        write(folder, stepper, progressed)
        if progressed.step == 10:
            (folder / "optimizer.safetensors").write_bytes(b"half")
            raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_write_state", full_disk)
        with pytest.raises(UnmaskError, match="free space"):
            train(recipe(text), out)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000005"]
    load_checkpoint(out)
    train(recipe(text), out, resume=True)
    assert_same_run(unbroken, out)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"hidden_size": 64}}, r"model\.hidden_size=32 and the recipe now says 64"),
        ({"data": {"length": 32}}, r"data\.length=16 and the recipe now says 32"),
        ({"training": {"batch_size": 16}}, r"training\.batch_size=8 and the recipe now says 16"),
        ({"schedule": {"name": "cosine"}}, r"schedule\.name=loglinear and the recipe now says cosine"),
        ({"optimizer": {"ema": 0.5}}, r"optimizer\.ema=0\.9 and the recipe now says 0\.5"),
    ],
)
def test_another_recipe_is_refused(text: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    out = tmp_path / "run"
    train(recipe(text, training={"steps": 1}), out)
    with pytest.raises(UnmaskError, match=said):
        train(recipe(text, **changes), out, resume=True)


def test_other_text_under_the_same_name_is_refused(text: Path, tmp_path: Path) -> None:
    text = Path(shutil.copy(text, tmp_path))
    train(recipe(text, training={"steps": 1}), tmp_path / "run")
    text.write_text(text.read_text().replace("cats", "dogs"))
    with pytest.raises(
        UnmaskError, match=r"was trained on other data \(.*\) than its source now gives .*; put the text"
    ):
        train(recipe(text), tmp_path / "run", resume=True)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "state/optimizer.safetensors", "state/trainer.json"])
def test_damage_is_named_and_stepped_over_on_request(
    text: Path, unbroken: Path, tmp_path: Path, file: str, harm: Callable[[Path], None]
) -> None:
    out = tmp_path / "run"
    train(recipe(text, training={"steps": 2, "save_every": 1}), out)
    harm(out / "checkpoints" / "step-00000002" / file)
    with pytest.raises(
        UnmaskError, match=rf"step-00000002' is damaged .(state/)?{Path(file).name} .*step-00000001': .* --resume auto"
    ):
        train(recipe(text), out, resume=True)
    assert train(recipe(text), out, resume="auto").steps == STEPS
    assert_same_run(unbroken, out)
    assert (out / "checkpoints" / "damaged-step-00000002").is_dir()


def test_a_checkpoint_of_another_model_is_named(text: Path, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    train(recipe(text, training={"steps": 1}), small)
    train(recipe(text, training={"steps": 1}, model={"hidden_size": 64}), large)
    shutil.copytree(all_checkpoints(large)[0] / "state", small / "latest" / "state", dirs_exist_ok=True)
    shutil.copyfile(large / "recipe.yaml", small / "recipe.yaml")
    state = small / "latest" / "state" / "trainer.json"
    state.write_text(state.read_text().replace('"hidden_size": 64', '"hidden_size": 32'))
    write_checksums(small / "latest")
    with pytest.raises(
        UnmaskError, match=r"belongs to another model: 'vocab_embed.embedding' is \[258, 64\] there and"
    ):
        train(recipe(text), small, resume=True)


def test_without_links_the_files_are_copied(
    text: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError("symbolic links need a privilege")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe(text), out, progress=StopAt(6))
    train(recipe(text), out, resume=True)
    assert not any(path.is_symlink() for path in out.iterdir())
    assert_same_run(unbroken, out)
    newest = load_file(find_latest(out) / "model.safetensors")
    assert all(torch.equal(tensor, newest[name]) for name, tensor in load_checkpoint(out).model.state_dict().items())
