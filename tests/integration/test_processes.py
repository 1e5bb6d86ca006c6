"""Two processes and one train the same model, and a run may switch between them."""

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

from tests.runs import everything, short_recipe
from unmask.checkpoint import load_checkpoint
from unmask.config import Recipe
from unmask.training import train
from unmask.training.callbacks import read_log
from unmask.training.checkpointing import find_latest

USUAL: dict[str, dict[str, Any]] = {
    "data": {"policy": "padded"},
    "optimizer": {"learning_rate": 3e-3, "warmup": 5, "ema": 0.9},
    "training": {
        "steps": 12, "batch_size": 10, "accumulation": 2, "log_every": 4, "validate_every": 4, "validation_rows": 9,
        "save_every": 4, "keep": 5, "sample_every": 4, "samples": 1,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of lines of different lengths, so that the halves of a batch count different numbers of tokens."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "text.txt").write_text("\n".join(f"the {i} cats sat on {'soft ' * (i % 4)}mats" for i in range(80)))
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The unbroken run of one process."""
    train(recipe(folder), folder / "alone")
    return folder / "alone"


def recipe(folder: Path, **training: Any) -> Recipe:
    return short_recipe(folder / "text.txt", "subs", USUAL, {"training": training})


def launch(
    recipe: Recipe, out: Path, *options: str, program: tuple[str, ...] = ("-m", "unmask")
) -> subprocess.Popen[str]:
    """Start `unmask train` in two processes."""
    file = out.with_suffix(".yaml")
    file.write_text(recipe.to_yaml())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return subprocess.Popen(
        [*torchrun, *program, "train", str(file), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    return output


def assert_same(one: Path, other: Path) -> None:
    """Weights, EMA, optimizer state and every logged figure agree to rounding."""
    left, right = ({k: v for k, v in everything(out).items() if "trainer" not in k} for out in (one, other))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        message = f"{name} differs"
        torch.testing.assert_close(right[name], tensor, rtol=1e-4, atol=1e-5, msg=message)
    lines = read_log(one)
    others = [line for line in read_log(other) if line["step"] % 4 == 0]  # a run that was extended has further lines
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


def test_one_process_continues_a_run_of_two(folder: Path, alone: Path) -> None:
    out = folder / "from-two"
    output = finish(launch(recipe(folder, steps=8), out))
    assert output.count("Checkpoint:") == 1
    assert [line["step"] for line in read_log(out)] == [4, 4, 4, 8, 8, 8]
    train(recipe(folder), out, resume=True)
    assert_same(alone, out)


def test_two_sharded_processes_continue_a_run_of_one_and_back(folder: Path, alone: Path) -> None:
    """FSDP2 on CPUs, with another accumulation."""
    out = folder / "to-two"
    train(recipe(folder, steps=3), out)
    finish(launch(recipe(folder, steps=8, shard=True, accumulation=1), out, "--resume"))
    load_checkpoint(out)
    train(recipe(folder), out, resume=True)
    assert_same(alone, out)


def test_sigterm_to_one_process_stops_all_after_the_same_step(folder: Path) -> None:
    out = folder / "killed"
    rarely = dict.fromkeys(("steps", "save_every", "validate_every", "sample_every"), 100000)
    process = launch(recipe(folder, **rarely), out)
    while not any("loss" in line for line in read_log(out)) and process.poll() is None:
        time.sleep(0.2)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(children[-1], signal.SIGTERM)
    output, _ = process.communicate(timeout=180)
    assert process.returncode != 0
    saved = find_latest(out)
    assert saved is not None
    assert output.count("unmask train") == 1
    assert f"step {int(saved.name.removeprefix('step-'))} " in output


def test_an_error_is_printed_once(folder: Path) -> None:
    out = folder / "taken"
    out.mkdir()
    (out / "mine").touch()
    process = launch(recipe(folder), out)
    output, errors = process.communicate(timeout=180)
    assert process.returncode != 0
    assert output == ""
    assert errors.count("exists and is not empty; choose another folder") == 1
    assert "Traceback (most recent call last):\n  File" not in errors.split("unmask: ")[0]


OUT_OF_MEMORY = """
import os, torch
from unmask.cli import main
from unmask.training.step import TrainStep

gradients = TrainStep.gradients

def limited(self, micro_batches):
    if os.environ["RANK"] in {ranks}:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return gradients(self, micro_batches)

TrainStep.gradients = limited
main()
"""


@pytest.mark.parametrize("ranks", [["1"], ["0", "1"]])
def test_a_process_out_of_memory_is_reported_once_and_ends_all(folder: Path, ranks: list[str]) -> None:
    out = folder / f"limited-{len(ranks)}"
    script = out.with_suffix(".py")
    script.write_text(OUT_OF_MEMORY.replace("{ranks}", repr(ranks)))
    process = launch(recipe(folder), out, program=(str(script),))
    output, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert output == ""
    assert errors.count("A micro-batch of 3 sequences of 16 tokens does not fit") == 1
    assert "raise training.accumulation (it is 2)" in errors
    assert "[rank" not in errors
