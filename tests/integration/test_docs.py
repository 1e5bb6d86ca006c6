"""The Python code of the documentation and the commands of the README run, and all commands have known options."""

from __future__ import annotations

import pkgutil
import random
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import typer

from unmask import registry
from unmask.cli import app
from unmask.cli.train import TrainCommand
from unmask.data.length_policies import SpecialTokens
from unmask.data.rows import Tokens

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of one language, in order."""
    parts = re.split(r"^```(.*)\n", page.read_text(encoding="utf-8"), flags=re.M)
    return [code for fence, code in zip(parts[1::4], parts[2::4], strict=True) if fence == language]


@pytest.fixture
def copied_registry(monkeypatch):
    """A registry that is restored after the test."""
    monkeypatch.setattr(registry, "AXES", {axis: dict(members) for axis, members in registry.AXES.items()})


def names_in_tables() -> list[str]:
    """The code that the tables of two pages name."""
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("mathematics.md", "extending.md")]
    tables = pages[0].partition("**Schedules.**")[0] + pages[1].partition("## Where to look")[2].partition("\n## ")[0]
    return sorted(set(re.findall(r"`([a-z0-9_]+\.[A-Za-z0-9_.]+)`", tables)))


@pytest.mark.parametrize("name", names_in_tables())
def test_tables_name_code_that_exists(name):
    assert pkgutil.resolve_name(f"unmask.{name}") is not None


def test_the_extending_page_runs(copied_registry, monkeypatch):
    page = ModuleType("extending")
    monkeypatch.setitem(sys.modules, "extending", page)
    for block in blocks(ROOT / "docs" / "extending.md", "python"):
        code = "from __future__ import annotations\n" + block
        exec(compile(code, "extending.md", "exec", dont_inherit=True), vars(page))
    assert registry.build("schedule", "falling").name == "falling"
    assert registry.build("sampler", "left-first").name == "left-first"
    assert registry.build("objective", "capped").name == "capped"
    rows = registry.build("policy", "unended").rows(Tokens.of([[1, 2, 3], [4]]), 2, SpecialTokens(9, 0))
    assert rows[np.arange(3)].input_ids.tolist() == [[1, 2], [3, 0], [4, 0]]


def commands(page: Path) -> list[str]:
    """The commands of a page; those over several lines are joined, comments are left out."""
    text = "\n".join(blocks(page, "")).replace("\\\n", " ")
    return [line.split(" #")[0].strip() for line in text.splitlines() if line.startswith("unmask ")]


PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("guide", "training", "evaluation", "results", "reproduce", "scaling", "serving")),
]


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_known_verbs_and_options(page):
    found = commands(ROOT / page)
    assert found
    for line in found:
        _, *words = shlex.split(line.split(" > ")[0].split(" | ")[0])
        command = typer.main.get_command(app)
        while isinstance(command, typer.core.TyperGroup):
            named = bool(words) and words[0] in command.commands
            command = command.commands[words.pop(0) if named else "perplexity"]
        if isinstance(command, TrainCommand):
            words = [word for word in words if word not in ("--resume", "auto")]
        command.make_parser(typer.Context(command)).parse_args(words)


def test_the_readme_python_runs(shipped_models, monkeypatch, tmp_path):
    """With a small model in place of the shipped one."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("one two three four five six seven. " * 60)
    small = '"training.steps": 2, "training.batch_size": 2, "model.hidden_size": 16, "model.layers": 1'
    code = "".join(blocks(ROOT / "README.md", "python")).replace("length=128", "length=40")
    exec(compile(code.replace('"training.steps": 2000', small), "README.md", "exec"), {})


@pytest.mark.parametrize("command", commands(ROOT / "README.md"))
def test_the_readme_commands_run(command, run, shipped_models, mdlm_folder, monkeypatch, tmp_path):
    """With small models, a small text and few steps."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("one two three four five six seven. " * 60)
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    Path("ptb").mkdir()
    Path("ptb/ptb.test.txt").write_text("one two\nthree four\n")
    _, *arguments = shlex.split(command)
    verb = arguments[0]
    if verb in ("demo", "convert", "ship"):
        arguments = [verb, "--help"]
    if verb != "train":
        arguments = [str(mdlm_folder) if word == "runs/mine" else word for word in arguments]
    for index in [index for index, word in enumerate(arguments) if word == "--length"]:
        arguments[index + 1] = "40"
    if verb == "train":
        small = ["model.size=nano", "model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32"]
        arguments += [*([] if "--from" in arguments else small), "training.steps=2", "training.batch_size=2"]
    if verb == "eval" and "zero-shot" not in arguments:
        arguments += ["--data", "my.txt"]
    code, _, err = run(*arguments)
    assert code == 0, err


def test_the_dna_page_runs(run, monkeypatch, tmp_path):
    """All commands in order, with small genomes and models, then the Python code."""
    pytest.importorskip("pyfaidx")
    pytest.importorskip("interegular")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "data"))
    bases = "".join(random.Random(0).choices("ACGT", k=600))
    Path("my.fa").write_text(f">chr1\n{bases}\n")
    Path("my.bed").write_text("chr1\t0\t400\ttrain\nchr1\t400\t600\tvalid\n")
    page = ROOT / "docs" / "dna.md"
    (variants,) = blocks(page, "vcf")
    Path("variants.vcf").write_text(variants)
    record = bases[:200]
    for _, start, _, ref, _ in (line.split("\t") for line in variants.splitlines()[1:]):
        record = record[: int(start) - 1] + ref + record[int(start) - 1 + len(ref) :]
    Path("data/dna").mkdir(parents=True)
    Path("data/dna/s_cerevisiae.fa").write_text("".join(f">BK0069{number}\n{record}\n" for number in range(34, 50)))
    small = ["model.hidden_size=8", "model.layers=1", "training.steps=1", "training.batch_size=2", "data.length=64"]
    commands = [line.split("   ")[0] for block in blocks(page, "") for line in block.splitlines() if line]
    assert len(commands) > 10
    for command in commands:
        _, *arguments = shlex.split(command)
        if arguments[0] == "reproduce":  # tests/evaluation/tables/test_dna.py
            continue
        if arguments[0] == "train":
            arguments += [*small, *([] if "--out" in arguments else ["--out", "runs/other"])]
        if "--draws" in arguments:
            arguments[arguments.index("--draws") + 1] = "16"
        code, _, err = run(*arguments)
        assert code == 0, err
    assert Path("scores.tsv").read_text().count("\n") == 5
    for block in blocks(page, "python"):
        exec(compile(block, "dna.md", "exec"), {})
