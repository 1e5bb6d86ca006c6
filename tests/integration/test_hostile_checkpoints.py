"""Seeded damage to a checkpoint folder: it opens and answers as before, or is refused in one sentence; nothing runs.

`UNMASK_FUZZ_SEEDS=1000:3000 pytest tests/integration/test_hostile_checkpoints.py` tries other seeds.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.conftest import make_checkpoint
from unmask.checkpoint import GENERATION_FILE
from unmask.errors import UnmaskError
from unmask.evaluation.judge import open_judge
from unmask.io import write_checksums
from unmask.models.build import CheckpointSpec
from unmask.registry import build

START, STOP = map(int, os.environ.get("UNMASK_FUZZ_SEEDS", "0:200").split(":"))
SECONDS = 20
"""CPU time of opening and using one folder, and a tenth of the time that it may wait."""
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
VALUES: list[Any] = [None, True, -1, 0, 3, 0.5, 10**9, 10**12, 10**30, 1e300, float("nan"), "", "x", "\x00",
                     "é\U0001f600", "\ud800", [], {}, [[]], {"a": 1}, "a" * 10_000, [1, "x", None]]  # fmt: skip
MODELS: list[dict[str, Any]] = [
    {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
    {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
     "max_input_chars_per_word": 0},
    {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 7, "byte_fallback": False},
    {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None, "byte_fallback": True},
    {"type": "Unigram", "vocab": [], "unk_id": None, "byte_fallback": False},
    {"type": "BPE", "vocab": {"a": 4_000_000_000, "b": 1}, "merges": [], "byte_fallback": True},
    {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "c"]]},
]  # fmt: skip
REPLACE = {"type": "Replace", "pattern": {"String": ""}, "content": "aa"}
PARTS: list[tuple[str, Any]] = [
    ("normalizer", REPLACE),
    ("normalizer", {"type": "Sequence", "normalizers": [{**REPLACE, "pattern": {"Regex": "(a+)+$"}}] * 3}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
    ("pre_tokenizer", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
    ("post_processor", {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}),
    ("decoder", {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}),
    ("truncation", {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}),
    ("padding", {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}),
    ("added_tokens", [{"id": 10**9, "content": "a", "single_word": False, "lstrip": False, "rstrip": False,
                       "normalized": True, "special": False}]),
]  # fmt: skip


def change_json(draw: random.Random, file: Path) -> None:
    """Replace or remove a random value, anywhere in the file."""
    content = json.loads(file.read_text())
    places: list[tuple[Any, Any]] = []

    def visit(part: Any) -> None:
        for key in list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
            places.append((part, key))
            if len(places) < 2000:
                visit(part[key])

    visit(content)
    part, key = draw.choice([place for place in places if place[0] is content] if draw.random() < 0.5 else places)
    if draw.random() < 0.2:
        del part[key]
    else:
        part[key] = draw.choice(VALUES)
    file.write_text(json.dumps(content))


def change_bytes(draw: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    where = draw.randrange(len(content))
    kind = draw.randrange(5)
    if kind == 0:
        content[where] ^= 1 << draw.randrange(8)
    elif kind == 1:
        content = content[:where]
    elif kind == 2:
        content[where:where] = draw.randbytes(draw.randrange(1, 50))
    elif kind == 3:
        content[:where] = b"[" * draw.choice([1, 100_000])
    else:
        content = bytearray(draw.randbytes(where))
    file.write_bytes(content)


def change_kind(draw: random.Random, file: Path) -> None:
    """A pipe, a folder, a broken link, a device, or nothing in place of a file."""
    file.unlink()
    replacements: list[Callable[[], Any]] = [
        lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to("nowhere"), lambda: file.symlink_to("/dev/zero"),
        lambda: None,
    ]  # fmt: skip
    draw.choice(replacements)()


def change_weights(draw: random.Random, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = draw.choice(sorted(tensors))
    kind = draw.randrange(6)
    if kind == 0:
        tensors[name] = tensors[name].to(draw.choice([torch.int8, torch.bool, torch.float8_e4m3fn, torch.float64]))
    elif kind == 1:
        tensors[name].view(-1)[0] = draw.choice([float("nan"), float("inf"), 3e38])
    elif kind == 2:
        del tensors[name]
    elif kind == 3:
        tensors["blocks.9.norm1.weight"] = tensors[name].clone()
    elif kind == 4:
        tensors[name] = tensors[name].unsqueeze(0)
    else:
        tensors[name + "x"] = tensors.pop(name)
    save_file(tensors, folder / WEIGHTS)


def change_index(draw: random.Random, folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    value = draw.choice(
        ["../other/model.safetensors", "/etc/passwd", "model-00001-of-00001.safetensors", "x", 5, None, ""]
    )
    weight_map = draw.choice([{"vocab_embed.embedding": value}, {}, [value], None])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def damage(draw: random.Random, folder: Path, other: Path) -> str:
    """Damage a folder in one way; returns which."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    kind = draw.choice(["json", "json", "json", "bytes", "kind", "weights", "index", "swap", "model", "part"])
    file = draw.choice([path for path in files if path.suffix == ".json"] if kind == "json" else files)
    if kind == "json":
        change_json(draw, file)
    elif kind == "bytes":
        change_bytes(draw, file)
    elif kind == "kind":
        change_kind(draw, file)
    elif kind == "weights":
        change_weights(draw, folder)
    elif kind == "index":
        change_index(draw, folder)
    elif kind == "swap":
        shutil.copyfile(draw.choice([draw.choice(files), other / file.name]), folder / "swapped")
        os.replace(folder / "swapped", file)
    else:
        name, value = ("model", draw.choice(MODELS)) if kind == "model" else draw.choice(PARTS)
        content = {**json.loads((folder / TOKENIZER).read_text()), name: value}
        (folder / TOKENIZER).write_text(json.dumps(content))
    return f"{kind} {file.name}"


def add_code(folder: Path, marker: Path) -> None:
    """Code that would leave a file if it ran, named in every place that transformers reads."""
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    classes = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoTokenizer")
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        content["auto_map"] = dict.fromkeys(classes, "evil.Evil") | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
        (folder / name).write_text(json.dumps(content))


def answers(folder: Path) -> tuple[Any, ...]:
    lm = unmask.load(folder, device="cpu")
    try:
        bound = lm.score("a text").nats
    except UnmaskError as error:
        bound = str(error)
    return lm.generate(1, length=8, steps=2, seed=0), lm.fill("a [MASK] b", seed=0), bound


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("models")
    model, wide = make_checkpoint(place / "model"), make_checkpoint(place / "other", hidden_size=64)
    for folder, top_p in ((model, 0.9), (wide, 0.5)):
        (folder / GENERATION_FILE).write_text(json.dumps({"top_p": top_p, "top_k": 200}))
        write_checksums(folder)
    return model, wide


@pytest.mark.parametrize("batch", range(8))
def test_a_damaged_folder_answers_as_before_or_is_refused(folders, tmp_path, batch):
    model, other = folders
    expected = answers(model)
    for seed in range(START + batch, STOP, 8):
        draw = random.Random(seed)
        place = tmp_path / f"{seed}"
        folder = shutil.copytree(model, place / "model")
        if unchecked := draw.random() < 0.5:
            (folder / "checksums.json").unlink()
        what = damage(draw, folder, other)
        faulthandler.dump_traceback_later(10 * SECONDS, exit=True)
        start = time.process_time()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = answers(folder)
            except UnmaskError as error:
                lines = str(error).splitlines()
            except BaseException as error:
                raise AssertionError(f"seed {seed}, {what}: {type(error).__name__}: {error}") from error
            else:
                lines = ["fine"]
                told = any("has changed since" in str(one.message) for one in warned)
                assert unchecked or told or found == expected, f"seed {seed}, {what}: answers silently changed"
        faulthandler.cancel_dump_traceback_later()
        assert len(lines) == 1, (seed, what, lines)
        assert time.process_time() - start < SECONDS, (seed, what)
        assert [path.name for path in place.iterdir()] == ["model"], (seed, what)
        shutil.rmtree(place)


OPENINGS: dict[str, Callable[[Path], Any]] = {
    "load": lambda folder: unmask.load(folder, device="cpu"),
    "--from": lambda folder: CheckpointSpec(path=str(folder)).build(258, 257, 16),
    "--judge": lambda folder: open_judge(str(folder), "cpu"),
    "--tokenizer": lambda folder: build("tokenizer", {"name": "huggingface", "path": str(folder)}).build(list),
}


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "folder of transformers"])
@pytest.mark.parametrize("opening", OPENINGS)
def test_code_in_a_folder_never_runs_and_nobody_is_asked(tmp_path, monkeypatch, opening, checkpoint):
    folder, marker = make_checkpoint(tmp_path / "model", model="causal"), tmp_path / "marker"
    add_code(folder, marker)
    if not checkpoint:
        (folder / "unmask.json").unlink()
        (folder / "config.json").write_text((folder / "config.json").read_text().replace("unmask-causal", "evil"))
    asked = io.StringIO("y\n" * 20)
    monkeypatch.setattr(sys, "stdin", asked)
    with nullcontext() if checkpoint else suppress(UnmaskError):
        OPENINGS[opening](folder)
    assert not marker.exists()
    assert asked.tell() == 0
