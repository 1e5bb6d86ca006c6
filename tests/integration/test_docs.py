"""The pages that hold code are run, and the README's commands are real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from unmask import registry

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code of one language, in order."""
    parts = re.split(r"^```(.*)\n", page.read_text(encoding="utf-8"), flags=re.M)
    return [code for fence, code in zip(parts[1::4], parts[2::4], strict=True) if fence == language]


@pytest.fixture
def own_registry(monkeypatch):
    """What a page registers is forgotten afterwards."""
    monkeypatch.setattr(registry, "AXES", {axis: dict(members) for axis, members in registry.AXES.items()})


def test_the_extending_page_runs(own_registry):
    space: dict[str, object] = {"__name__": "extending"}
    for block in blocks(ROOT / "docs" / "extending.md", "python"):
        exec(compile("from __future__ import annotations\n" + block, "extending.md", "exec", dont_inherit=True), space)
    assert registry.build("schedule", "falling").name == "falling"
    assert registry.build("sampler", "left-first").name == "left-first"


def readme_commands() -> list[str]:
    text = "\n".join(blocks(ROOT / "README.md", ""))
    return [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("unmask ")]


def test_the_readme_python_runs(shipped_models, monkeypatch, tmp_path):
    """The Python of the README, with a small model in the place of the shipped one."""
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "README.md", "python")
    exec(compile(block.replace("length=128", "length=40"), "README.md", "exec"), {})


@pytest.mark.parametrize("command", readme_commands())
def test_the_readme_commands_run(command, shipped_models, mdlm_folder, monkeypatch, tmp_path):
    """Each command line of the README, on small models and a small text, and for a few steps."""
    import shlex

    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("one two three four five six seven. " * 60)
    _, *arguments = shlex.split(command)
    if arguments[0] in ("demo", "convert", "ship"):
        arguments = [arguments[0], "--help"]
    swapped = [str(mdlm_folder) if a == "runs/mine" and arguments[0] != "train" else a for a in arguments]
    swapped = ["40" if before == "--length" else a for before, a in zip(["", *swapped], swapped, strict=False)]
    if swapped[0] == "train":
        small = ["model.size=nano", "model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32"]
        swapped += [*([] if "--from" in swapped else small), "training.steps=2", "training.batch_size=2"]
    if swapped[0] == "eval":
        swapped += ["--data", "my.txt"]
    shelf = (
        f"from pathlib import Path; from unmask import checkpoint; checkpoint.SHIPPED = Path({str(shipped_models)!r})"
    )
    program = [sys.executable, "-c", f"{shelf}; from unmask.cli import main; main()", *swapped]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
