"""Which folder a word means: one on disk, a shipped model, or the default."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from unmask import checkpoint as shelf
from unmask.checkpoint import load_checkpoint
from unmask.errors import UnmaskError


def test_nothing_named_is_the_default(shipped_models):
    assert unmask.load(device="cpu").path == shipped_models / "stories"
    assert not unmask.load(device="cpu").causal
    assert unmask.load("stories-ar", device="cpu").causal


def test_a_checkpoint_on_disk_comes_before_a_shipped_one(shipped_models, ar_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stories").mkdir()
    assert shelf.find_checkpoint("stories") == shipped_models / "stories", "a folder of texts is no checkpoint"
    Path("stories").rmdir()
    Path("stories").symlink_to(ar_folder)
    assert shelf.find_checkpoint("stories") == Path("stories")
    assert load_checkpoint("stories").config.objective.causal
    assert shelf.find_checkpoint() == shipped_models / "stories", "the default is never one on disk"


@pytest.mark.parametrize("what", ["storys", Path("no/where")])
def test_what_is_nowhere_is_answered_with_the_names(shipped_models, what):
    with pytest.raises(UnmaskError, match=r"no checkpoint at '.*ships with the package: smoke, stories, stories-ar\."):
        unmask.load(what)


def test_a_shelf_without_the_default_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf, "SHIPPED", tmp_path)
    with pytest.raises(UnmaskError, match=r"'stories'.*here are none"):
        unmask.load()


def test_the_smoke_model_ships():
    assert "smoke" in shelf.shipped_models()
    assert sum(path.stat().st_size for path in (shelf.SHIPPED / "smoke").iterdir()) < 1_000_000
