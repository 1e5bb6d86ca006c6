"""Small checkpoints that every test may open: random networks whose heads are not zero, so that they say something."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask import checkpoint, registry, shelf
from unmask.checkpoint import Card
from unmask.generation import MaskedDiffusionLM, load

LENGTH = 48


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Token caches of the tests stay out of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def make_checkpoint(folder: Path, model: str = "dit", policy: str = "packed", **options: object) -> Path:
    """Save a random byte-level model of two layers."""
    torch.manual_seed(0)
    tokenizer = registry.build("tokenizer", "byte").build(lambda: iter(()))
    spec = registry.build(
        "model", {"name": model, "hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.0, **options}
    )
    network = spec.build(len(tokenizer), tokenizer.mask_token_id, LENGTH)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    objective = "ar" if model == "causal" else "subs"
    checkpoint.save(folder, network, tokenizer, Card(objective=objective, policy=policy, length=LENGTH))
    return folder


@pytest.fixture(scope="session")
def mdlm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "mdlm")


@pytest.fixture(scope="session")
def ar_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "ar", model="causal")


@pytest.fixture
def shipped_models(mdlm_folder: Path, ar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf with small random models in the place of the large ones, and the smoke model itself."""
    root = tmp_path / "shelf"
    root.mkdir()
    for name, folder in {"stories": mdlm_folder, "stories-ar": ar_folder, "smoke": shelf.ROOT / "smoke"}.items():
        (root / name).symlink_to(folder)
    monkeypatch.setattr(shelf, "ROOT", root)
    return root


@pytest.fixture(scope="session")
def mdlm(mdlm_folder: Path) -> MaskedDiffusionLM:
    return load(mdlm_folder, device="cpu")


@pytest.fixture(scope="session")
def ar(ar_folder: Path) -> MaskedDiffusionLM:
    return load(ar_folder, device="cpu")
