"""Stop and resume equals an unbroken run, bit by bit; a crash leaves the last checkpoint whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import StopAt, assert_same_tensors, everything, read_log_without_times, short_recipe, write_cats
from unmask.checkpoint import load_checkpoint, read_checkpoint_config
from unmask.config import Recipe
from unmask.errors import UnmaskError
from unmask.io import write_checksums
from unmask.optimizers.base import AdamW
from unmask.optimizers.muon import Muon
from unmask.training import Callback, Interrupted, checkpointing, train
from unmask.training.callbacks import read_log
from unmask.training.checkpointing import all_checkpoints, find_latest, read_trainer_state

STEPS = 12
USUAL: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.2},
    "optimizer": {"learning_rate": 3e-3, "warmup": 5, "ema": 0.9},
    "training": {
        "steps": STEPS, "batch_size": 8, "accumulation": 2,
        "log_every": 4, "validate_every": 4, "validation_rows": 8, "save_every": 5, "keep": 5, "keep_best": 0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "text.txt", 60)


@pytest.fixture(scope="module")
def unbroken(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all the broken ones must equal."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    train(recipe(text), out)
    return out


def recipe(text: Path, kind: str = "subs", **changes: dict[str, Any]) -> Recipe:
    return short_recipe(text, kind, USUAL, changes)


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_tensors(one, other)
    assert read_log_without_times(one) == read_log_without_times(other)


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("subs", {}),
        ("ar", {}),
        ("subs", {"schedule": {"name": "learned", "every": 3, "warmup": 2}}),
        ("subs", {"optimizer": {"name": "muon", "cooldown": 0.5, "weight_decay": 0.1}}),
    ],
)
def test_stop_and_resume_equals_an_unbroken_run(text: Path, tmp_path: Path, objective: str, changes: Any) -> None:
    described = recipe(text, objective, **changes)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train(described, whole)
    for stop in (2, 3, 3):
        with pytest.raises(Interrupted):
            train(described, broken, resume=broken.exists(), callbacks=[StopAt(stop)])
        assert read_trainer_state(find_latest(broken)).lap > 0
        torch.rand(100)
    result = train(described, broken, resume=True)
    assert_same_run(whole, broken)
    assert result.bound == expected.bound
    tensors = everything(whole)
    if changes.get("optimizer"):
        assert "state/optimizer.safetensors:blocks.0.attn_qkv.weight.momentum_buffer" in tensors
    if changes.get("schedule"):
        one, other = (read_checkpoint_config(out).schedule for out in (whole, broken))
        assert one == other
        assert one.knots == tuple(tensors["state/trainer.safetensors:schedule.knots"].tolist())
        assert one.knots != read_checkpoint_config(whole / "checkpoints" / "step-00000005").schedule.knots


def test_a_killed_run_repeats_what_it_had_not_saved(text: Path, unbroken: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    class Kill(Callback):
        def on_log(self, record: dict[str, Any]) -> None:
            if "loss" in record and record["step"] == 8:
                raise SystemExit

    with pytest.raises(SystemExit):
        train(recipe(text), killed, callbacks=[Kill()])
    assert read_log(killed)[-1]["step"] == 8
    train(recipe(text), killed, resume=True)
    assert_same_run(unbroken, killed)


def test_a_crash_while_writing_leaves_the_last_checkpoint(
    text: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def full_disk(folder: Path) -> None:
        write_checksums(folder)
        if json.loads((folder / "state" / "trainer.json").read_text())["step"] == 10:
            (folder / "state" / "optimizer.safetensors").write_bytes(b"half")
            raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_checksums", full_disk)
        with pytest.raises(UnmaskError, match="free space"):
            train(recipe(text), out)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000005"]
    load_checkpoint(out)
    train(recipe(text), out, resume=True)
    assert_same_run(unbroken, out)


def test_a_finished_run_can_be_extended(text: Path, unbroken: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    train(recipe(text, training={"steps": 7}), longer)
    result = train(recipe(text), longer, resume=True)
    assert_same_tensors(unbroken, longer)
    assert [line for line in read_log_without_times(longer) if line["step"] != 7] == read_log_without_times(unbroken)
    assert result.steps == STEPS
    assert train(recipe(text), longer, resume=True).bound == result.bound


def test_a_run_can_be_extended_until_its_rate_decays(text: Path, tmp_path: Path) -> None:
    def decaying(steps: int) -> Recipe:
        return recipe(text, optimizer={"cooldown": 0.5, "warmup": 3}, training={"steps": steps, "log_every": 1})

    with pytest.raises(Interrupted):
        train(decaying(12), tmp_path / "early", callbacks=[StopAt(7)])
    train(decaying(16), tmp_path / "early", resume=True)
    train(decaying(16), tmp_path / "unbroken")
    assert_same_run(tmp_path / "early", tmp_path / "unbroken")
    rates = [line["learning_rate"] / 3e-3 for line in read_log(tmp_path / "early") if "loss" in line]
    assert rates == pytest.approx([1 / 3, 2 / 3, *[1] * 7, *(i / 8 for i in range(7, 0, -1))])
    with pytest.raises(UnmaskError, match=r"decaying towards step 16, so the run cannot be extended to 20; .*--from"):
        train(decaying(20), tmp_path / "early", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"hidden_size": 64}}, r"model\.hidden_size=32 and the recipe now says 64"),
        ({"data": {"length": 32}}, r"data\.length=16 and the recipe now says 32"),
        ({"training": {"batch_size": 16}}, r"training\.batch_size=8 and the recipe now says 16"),
        ({"schedule": {"name": "cosine"}}, r"schedule\.name=loglinear and the recipe now says cosine"),
        ({"optimizer": {"ema": 0.5}}, r"optimizer\.ema=0\.9 and the recipe now says 0\.5"),
        ({"optimizer": {"name": "muon", "cooldown": 0.0}}, r"optimizer\.name=adamw and the recipe now says muon"),
    ],
)
def test_another_recipe_is_refused(text: Path, unbroken: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text, **changes), unbroken, resume=True)


def test_other_data_under_the_same_name_is_refused(text: Path, tmp_path: Path) -> None:
    text = Path(shutil.copy(text, tmp_path))
    train(recipe(text, training={"steps": 1}), tmp_path / "run")
    text.write_text(text.read_text().replace("cats", "dogs"))
    message = r"was trained on other data \(.*\) than its source now gives .*; put the text"
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text), tmp_path / "run", resume=True)


def test_an_optimizer_that_was_replaced_is_refused(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    muon = recipe(text, optimizer={"name": "muon"})
    with pytest.raises(Interrupted):
        train(muon, tmp_path / "run", callbacks=[StopAt(4)])
    monkeypatch.setattr(Muon, "resolve", lambda *_: (AdamW(), "DeepSpeed flattens matrices"))
    with pytest.raises(UnmaskError, match=r"trained with muon, which this launch does not support \(adamw would"):
        train(muon, tmp_path / "run", resume=True)


def test_a_run_without_an_optimizer_name_resumes(text: Path, tmp_path: Path) -> None:
    """Runs of early versions."""
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe(text), out, callbacks=[StopAt(4)])
    file = out / "latest" / "state" / "trainer.json"
    state = json.loads(file.read_text())
    for key in ("name", "cooldown", "cooldown_shape", "cooldown_to"):
        del state["recipe"]["optimizer"][key]
    file.write_text(json.dumps(state))
    write_checksums(out / "latest")
    assert train(recipe(text), out, resume=True).steps == STEPS


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "state/optimizer.safetensors", "state/trainer.json"])
def test_damage_is_named_and_skipped_by_auto(
    text: Path, unbroken: Path, tmp_path: Path, file: str, harm: Callable[[Path], None]
) -> None:
    out = tmp_path / "run"
    train(recipe(text, training={"steps": 2, "save_every": 1}), out)
    harm(out / "checkpoints" / "step-00000002" / file)
    name = Path(file).name
    message = rf"step-00000002' is damaged .(state/)?{name} .*last good one, '.*step-00000001', with --resume auto"
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text), out, resume=True)
    assert train(recipe(text), out, resume="auto").steps == STEPS
    assert_same_run(unbroken, out)
    assert (out / "checkpoints" / "damaged-step-00000002").is_dir()


@pytest.mark.parametrize(("resume", "message"), [(True, "is damaged .*; train into"), ("auto", "Every checkpoint in")])
def test_a_run_of_damaged_checkpoints_is_refused(text: Path, tmp_path: Path, resume: Any, message: str) -> None:
    train(recipe(text, training={"steps": 1}), tmp_path / "run")
    cut(tmp_path / "run" / "latest" / "state" / "model.safetensors")
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text), tmp_path / "run", resume=resume)


def test_a_checkpoint_of_another_model_is_refused(text: Path, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    train(recipe(text, training={"steps": 1}), small)
    train(recipe(text, training={"steps": 1}, model={"hidden_size": 64}), large)
    shutil.copytree(all_checkpoints(large)[0] / "state", small / "latest" / "state", dirs_exist_ok=True)
    state = small / "latest" / "state" / "trainer.json"
    state.write_text(state.read_text().replace('"hidden_size": 64', '"hidden_size": 32'))
    write_checksums(small / "latest")
    message = r"belongs to another model: 'vocab_embed.embedding' is \[258, 64\] there and"
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text), small, resume=True)


def test_without_links_the_files_are_copied(
    text: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError("symbolic links need a privilege")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe(text), out, callbacks=[StopAt(6)])
    train(recipe(text), out, resume=True)
    assert not any(path.is_symlink() for path in out.iterdir())
    assert_same_run(unbroken, out)
    newest = load_file(find_latest(out) / "model.safetensors")
    assert all(torch.equal(tensor, newest[name]) for name, tensor in load_checkpoint(out).model.state_dict().items())
