"""Small checkpoints for all tests (random networks with heads that are not zero), and a runner for CLI verbs."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from unmask import checkpoint, registry
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.cli import main
from unmask.data.length_policies import Encode, Policy, SpecialTokens
from unmask.data.rows import Rows, Tokens
from unmask.pipeline import MaskedDiffusionLM, load

LENGTH = 48


def pytest_sessionstart() -> None:
    """Let Ctrl-C stop the tests and the processes they start, also where a script runs the tests in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of garbage collections, which the code under test asks for."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the token caches of the tests apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def rows_of_texts(
    policy: Policy,
    token_ids: Sequence[Sequence[int]],
    length: int,
    eos_id: int | None,
    pad_id: int | None = None,
    texts: Sequence[str] | None = None,
    encode: Encode | None = None,
    bos_id: int | None = None,
) -> Rows:
    """The rows of encoded texts."""
    return policy.rows(Tokens.of(token_ids, texts), length, SpecialTokens(eos_id, pad_id, encode, bos_id))


def make_checkpoint(
    folder: Path, model: str = "dit", policy: str = "packed", tokenizer_name: str = "byte", **options: object
) -> Path:
    """Save a random model of two layers, of bytes or of bases."""
    torch.manual_seed(0)
    tokenizer = registry.build("tokenizer", tokenizer_name).build()
    spec = registry.build(
        "model", {"name": model, "hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.0, **options}
    )
    network = spec.build(len(tokenizer), tokenizer.mask_token_id, LENGTH)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    objective = "ar" if model == "causal" else "subs"
    save_checkpoint(folder, network, tokenizer, CheckpointConfig(objective=objective, policy=policy, length=LENGTH))
    return folder


@pytest.fixture(scope="session")
def mdlm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "mdlm")


@pytest.fixture(scope="session")
def ar_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "ar", model="causal")


@pytest.fixture
def shipped_models(mdlm_folder: Path, ar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small random models in place of the large shipped ones, and the smoke model itself."""
    root = tmp_path / "shipped"
    root.mkdir()
    for name, folder in {
        "stories": mdlm_folder,
        "stories-ar": ar_folder,
        "smoke": checkpoint.SHIPPED / "smoke",
    }.items():
        (root / name).symlink_to(folder)
        (folder / "README.md").touch()
    monkeypatch.setattr(checkpoint, "SHIPPED", root)
    return root


@pytest.fixture(scope="session")
def mdlm(mdlm_folder: Path) -> MaskedDiffusionLM:
    return load(mdlm_folder, device="cpu")


@pytest.fixture(scope="session")
def ar(ar_folder: Path) -> MaskedDiffusionLM:
    return load(ar_folder, device="cpu")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a verb in this process; returns (exit code, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unmask", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def refused(run):
    """Run a verb with bad input: one sentence and exit code 2; returns the sentence."""

    def call(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    return call


@pytest.fixture
def place(runs, tmp_path, monkeypatch):
    """A working folder with links to the runs of a module (`runs`), by name."""
    monkeypatch.chdir(tmp_path)
    for folder in runs.iterdir():
        Path(folder.name).symlink_to(folder)
    return tmp_path
