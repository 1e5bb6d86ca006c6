"""Checkpoint folders: which one a name means, and what a broken one says."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from tests.conftest import make_checkpoint
from unmask import checkpoint
from unmask.errors import UnmaskError


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
    cut = make_checkpoint(tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:1000])
    bad = make_checkpoint(tmp_path / "bad")
    (bad / "unmask.json").write_text("{")
    for options, message in (
        ({"path": tmp_path}, r"no unmask\.json"),
        ({"path": cut}, "cannot be opened"),
        ({"path": bad}, r"unmask\.json' cannot be read"),
        ({"path": 5}, "must be a path or a name, got 5"),
        ({"path": b"smoke"}, "must be a path or a name, got b'smoke'"),
        ({"path": "smoke", "dtype": "float16"}, "dtype must be one of auto, float32, bf16, got 'float16'"),
    ):
        with pytest.raises(UnmaskError, match=message):
            unmask.load(**options)
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "nothing")
    with pytest.raises(UnmaskError, match=r"'stories'.*none"):
        unmask.load()


def test_the_smoke_model_ships():
    assert "smoke" in checkpoint.shipped_models()
    assert sum(path.stat().st_size for path in (checkpoint.SHIPPED / "smoke").iterdir()) < 1_000_000
