"""Two processes and one train the same model; a run goes from one number of processes to another and back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unmask.checkpoint import load_checkpoint
from unmask.config import Recipe, parse_recipe
from unmask.training import train
from unmask.training.callbacks import read_log
from unmask.training.checkpointing import find_latest

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of lines of very different lengths, so that the halves of a batch count different numbers of tokens."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "text.txt").write_text("\n".join(f"the {i} cats sat on {'soft ' * (i % 4)}mats" for i in range(80)))
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The unbroken run of one process."""
    train(recipe(folder), folder / "alone")
    return folder / "alone"


def recipe(folder: Path, **training: Any) -> Recipe:
    return parse_recipe(
        {
            "data": {
                "source": {"name": "text", "paths": str(folder / "text.txt"), "separator": "line"},
                "length": 16, "validation": 0.2, "policy": "padded",
            },
            "model": {"name": "dit", "size": "nano", "hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.0},
            "optimizer": {"learning_rate": 3e-3, "warmup": 5, "ema": 0.9},
            "training": {
                "steps": STEPS, "batch_size": 10, "accumulation": 2,
                "log_every": 4, "validate_every": 4, "validation_rows": 9, "save_every": 4, "keep": 5,
                "sample_every": 4, "samples": 1, **training,
            },
        }
    )  # fmt: skip


def launch(
    recipe: Recipe, out: Path, *options: str, program: tuple[str, ...] = ("-m", "unmask")
) -> subprocess.Popen[str]:
    """`unmask train` in two processes."""
    file = out.with_suffix(".yaml")
    file.write_text(recipe.to_yaml())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return subprocess.Popen(
        [*command, *program, "train", str(file), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, complaints = process.communicate(timeout=180)
    assert process.returncode == 0, complaints
    return said


def assert_same(one: Path, other: Path) -> None:
    """Weights, averages, optimiser and every logged figure agree to 1e-5."""
    left, right = find_latest(one), find_latest(other)
    assert left is not None
    assert right is not None
    for file in (
        "model.safetensors",
        "state/model.safetensors",
        "state/ema.safetensors",
        "state/optimizer.safetensors",
    ):
        expected, got = load_file(left / file), load_file(right / file)
        assert expected.keys() == got.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda why, at=name: f"{at}: {why}")
    lines, others = read_log(one), read_log(other)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    assert [line.get("samples") for line in lines] == [line.get("samples") for line in others]
    for line, again in zip(lines, others, strict=True):
        if "loss" in line:
            assert again["loss"] == pytest.approx(line["loss"], rel=1e-5)
            filled = [[value or 0.0 for value in one["cross_entropy"]] for one in (line, again)]
            assert filled[1] == pytest.approx(filled[0], rel=1e-4)
        if "validation" in line:
            for key in ("nats", "tokens", "mc_stderr", "data_stderr"):
                assert again["validation"][key] == pytest.approx(line["validation"][key], rel=1e-4), key


def test_two_processes_begin_and_one_goes_on(folder: Path, alone: Path) -> None:
    out = folder / "from-two"
    said = finish(launch(recipe(folder, steps=8), out))
    assert said.count("Checkpoint:") == 1
    assert [line["step"] for line in read_log(out)] == [4, 4, 4, 8, 8, 8]
    train(recipe(folder), out, resume=True)
    assert_same(alone, out)


def test_one_begins_two_with_slices_go_on_and_one_ends(folder: Path, alone: Path) -> None:
    """FSDP2 on CPUs, with another accumulation."""
    out = folder / "to-two"
    train(recipe(folder, steps=4), out)
    finish(launch(recipe(folder, steps=8, shard=True, accumulation=1), out, "--resume"))
    load_checkpoint(out)
    train(recipe(folder), out, resume=True)
    assert_same(alone, out)


def test_a_polite_kill_is_heard_by_all_and_saved_once(folder: Path, alone: Path) -> None:
    """All processes stop after the same step, though only one of them is told."""
    out = folder / "killed"
    rarely = dict.fromkeys(("steps", "save_every", "validate_every", "sample_every"), 100000)
    process = launch(recipe(folder, **rarely), out)
    while not any("loss" in line for line in read_log(out)) and process.poll() is None:
        time.sleep(0.2)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(children[-1], signal.SIGTERM)
    said = finish(process)
    assert said.count("Resume with") == 1
    saved = find_latest(out)
    assert saved is not None
    assert f"after step {int(saved.name.removeprefix('step-'))}." in said


def test_what_is_wrong_is_said_once(folder: Path) -> None:
    out = folder / "taken"
    out.mkdir()
    (out / "mine").touch()
    process = launch(recipe(folder), out)
    said, complaints = process.communicate(timeout=180)
    assert process.returncode != 0
    assert said == ""
    assert complaints.count("exists and is not empty; choose another folder") == 1
    assert "Traceback (most recent call last):\n  File" not in complaints.split("unmask: ")[0]


CROWDED = """
import os, torch
from unmask.cli import main
from unmask.training.step import TrainStep

gradients = TrainStep.gradients

def crowded(self, micro_batches):
    if os.environ["RANK"] in {ranks}:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return gradients(self, micro_batches)

TrainStep.gradients = crowded
main()
"""


@pytest.mark.parametrize("ranks", [["1"], ["0", "1"]])
def test_a_process_out_of_memory_says_so_and_ends_all(folder: Path, ranks: list[str]) -> None:
    """The one that is full speaks, though it is not the main one; the other, left behind, ends without a word."""
    out = folder / f"crowded-{len(ranks)}"
    script = out.with_suffix(".py")
    script.write_text(CROWDED.replace("{ranks}", repr(ranks)))
    process = launch(recipe(folder), out, program=(str(script),))
    said, complaints = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said == ""
    assert complaints.count("A micro-batch of 3 sequences of 16 tokens does not fit") == 1
    assert "raise training.accumulation (it is 2)" in complaints
    assert "[rank" not in complaints
