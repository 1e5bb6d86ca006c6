"""Checkpoint folders: which one a name means, and what a broken one says."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.conftest import make_checkpoint
from unmask import checkpoint
from unmask.errors import UnmaskError
from unmask.io import find_damage, write_checksums


def test_without_a_name_the_default_model_is_loaded(shipped_models):
    assert unmask.load(device="cpu").path == shipped_models / "stories"
    assert not unmask.load(device="cpu").causal
    assert unmask.load("stories-ar", device="cpu").causal


def test_a_checkpoint_on_disk_precedes_a_shipped_model(shipped_models, ar_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stories").mkdir()
    assert checkpoint.find_checkpoint("stories") == shipped_models / "stories", "a folder of texts is not a checkpoint"
    Path("stories").rmdir()
    Path("stories").symlink_to(ar_folder)
    assert checkpoint.find_checkpoint("stories") == Path("stories")
    assert checkpoint.load_checkpoint("stories").config.objective.causal
    assert checkpoint.find_checkpoint() == shipped_models / "stories", "the default is always the shipped model"


@pytest.mark.parametrize("name", ["storys", Path("no/where"), ""])
def test_an_unknown_name_is_answered_with_the_shipped_models(shipped_models, name):
    with pytest.raises(UnmaskError, match=r"no checkpoint at '.*shipped model: smoke, stories, stories-ar\."):
        unmask.load(name)


def test_what_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    for options, message in (
        ({"path": tmp_path}, r"no unmask\.json"),
        ({"path": 5}, "must be a path or a name, got 5"),
        ({"path": b"smoke"}, "must be a path or a name, got b'smoke'"),
        ({"path": "smoke", "dtype": "float16"}, "dtype must be one of auto, float32, bf16, got 'float16'"),
    ):
        with pytest.raises(UnmaskError, match=message):
            unmask.load(**options)
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "nothing")
    with pytest.raises(UnmaskError, match=r"'stories'.*none"):
        unmask.load()


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def flip(folder: Path, name: str = WEIGHTS) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-5] ^= 64
    (folder / name).write_bytes(content)


def change_weights(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change a tensor, as if the folder had no checksums."""
    (folder / "checksums.json").unlink()
    tensors = load_file(folder / WEIGHTS)
    tensors["output_layer.linear.bias"] = change(tensors["output_layer.linear.bias"])
    save_file(tensors, folder / WEIGHTS)


def edit(folder: Path, name: str, **fields: Any) -> None:
    content = {**json.loads((folder / name).read_text()), **fields}
    (folder / name).write_text(json.dumps(content))


def index(folder: Path, name: str) -> None:
    (folder / WEIGHTS).rename(folder / "elsewhere.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"vocab_embed.embedding": name}}))


def normalise(folder: Path) -> None:
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": 10 * "a"}] * 9
    edit(folder, "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (flip, r"The weights are damaged: '.*model.safetensors' does not match its checksum; restore"),
    "cut off": (lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:1000]), "The weights are damaged: "),
    "not a number": (lambda p: change_weights(p, lambda b: b / 0), "output_layer.linear.bias in .* not finite; rest"),
    "integers": (lambda p: change_weights(p, lambda b: b.to(torch.int8)), r"as torch\.int8"),
    "eight bits": (lambda p: change_weights(p, lambda b: b.to(torch.float8_e4m3fn)), r"as torch\.float8_e4m3fn"),
    "too large for float32": (lambda p: change_weights(p, lambda b: b.double() + 1e300), "not finite"),
    "another shape": (lambda p: change_weights(p, lambda b: b[:5]), r"bias has the shape \[5\], not \[258\]"),
    "no weights": (lambda p: (p / WEIGHTS).unlink(), r"has no weights \(model\.safetensors\)"),
    "a pickle": (lambda p: (p / WEIGHTS).rename(p / "pytorch_model.bin"), "a pickle can run code; .* 'unmask convert'"),
    "an index that leads out": (lambda p: index(p, "../other.safetensors"), "files of its own folder"),
    "a missing shard": (
        lambda p: index(p, "model-00001-of-00002.safetensors"),
        "incomplete: there is no file",
    ),
    "layers": (lambda p: edit(p, "config.json", num_hidden_layers=10**12), "1000000000000 layers for 25 tensors"),
    "vocabulary": (lambda p: edit(p, "config.json", vocab_size=10**10, mask_token_id=3), "vocab_embed.embedding has"),
    "width": (lambda p: edit(p, "config.json", hidden_size=2**62), "do not fit its config.json"),
    "heads": (lambda p: edit(p, "config.json", num_attention_heads="2"), "num_attention_heads must be int, got '2'"),
    "length": (lambda p: edit(p, "config.json", max_length=10**12), "max_length must be at most"),
    "another network": (lambda p: edit(p, "config.json", model_type="vit"), "no network of the type 'vit'"),
    "no type": (lambda p: edit(p, "config.json", model_type=[]), r"no network of the type \[\]"),
    "not UTF-8": (lambda p: (p / "config.json").write_bytes(b'{"a": "\xff"}'), r"config\.json' cannot be read .*utf-8"),
    "deep": (lambda p: (p / "config.json").write_text(100_000 * "["), r"config\.json' cannot be read .*recursion"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), "holds a list, not an object"),
    "half a file": (lambda p: (p / "unmask.json").write_text("{"), r"unmask\.json' cannot be read"),
    "a huge number": (lambda p: (p / "unmask.json").write_text('{"length": ' + 9999 * "9"), "cannot be read"),
    "a word": (lambda p: edit(p, "unmask.json", length="long"), r"unmask\.json' cannot be read \(length: "),
    "a causal objective": (lambda p: edit(p, "unmask.json", objective={"name": "ar"}), "masked, which does not fit"),
    "a damaged tokenizer": (lambda p: flip(p, "tokenizer.json"), "The tokenizer is damaged: |cannot be read"),
    "a normaliser": (normalise, "its normalizer can make a text more than 1000 times as long"),
    "a token": (lambda p: edit(p, "tokenizer_config.json", mask_token=[5]), r"mask_token must be a token, got \[5\]"),
    "another mask": (lambda p: edit(p, "tokenizer_config.json", mask_token="<m>"), "259 tokens with the mask at 258"),
    "checksums": (lambda p: (p / "checksums.json").write_text("[]"), r"checksums\.json' cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path, damage):
    folder = make_checkpoint(tmp_path / "model")
    unmask.load(folder, device="cpu")
    change, message = DAMAGE[damage]
    change(folder)
    with pytest.raises(UnmaskError, match=message) as refusal:
        unmask.load(folder, device="cpu")
    assert "\n" not in str(refusal.value)


def test_edited_settings_open_with_a_warning_and_folders_without_checksums_open(tmp_path):
    folder = make_checkpoint(tmp_path / "model")
    (folder / "README.md").write_text("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unmask.load(folder, device="cpu")
    edit(folder, "config.json", dropout=0.5)
    with pytest.warns(UserWarning, match=r"config\.json' has changed since the checkpoint was written"):
        assert unmask.load(folder, device="cpu").denoiser.config.dropout == 0.5
    (folder / "generation_config.json").write_text('{"top_p": 0.5}')
    write_checksums(folder)
    (folder / "generation_config.json").unlink()
    with pytest.warns(UserWarning, match=r"generation_config\.json' has changed since the checkpoint was written"):
        unmask.load(folder, device="cpu")
    (folder / "checksums.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unmask.load(folder, device="cpu")


def test_shipped_models_have_checksums():
    for name in checkpoint.shipped_models():
        assert find_damage(checkpoint.SHIPPED / name) is None, "write them again with unmask.io.write_checksums"
