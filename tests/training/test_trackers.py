"""What trackers are told: the numbers of the log under grouped names, in one run however often it is resumed."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unmask.errors import UnmaskError
from unmask.training.callbacks import Trackers, check_trackers, scalars

RECIPE = {"training": {"steps": 40, "batch_size": 8}}


def trained(step: int, loss: float) -> dict[str, Any]:
    buckets = [None, *(0.1 * i for i in range(1, 10))]
    return {"step": step, "loss": loss, "bits_per_token": 2 * loss, "grad_norm": 0.5, "cross_entropy": buckets}


VALIDATED = {
    "step": 20,
    "validation": {
        "estimator": "mask-count", "nats": 1e5, "tokens": 64, "exact": False,
        "bits_per_token": 2.5, "bits_per_token_mc_stderr": 0.01, "bits_per_token_data_stderr": None,
        "perplexity": 5.6, "perplexity_mc_stderr": 0.1,
    },
}  # fmt: skip
SAMPLED = {"step": 20, "samples": ["# one\nline", "two"]}
ADVISED = {"step": 20, "advice": "Do this."}


def tell(trackers: Trackers, step: int = 0) -> None:
    """A short run from `step` on."""
    trackers.begin(step, 40)
    for record in (trained(step + 10, 3.0), trained(step + 20, 2.0)):
        trackers.trained(record)
    trackers.validated(VALIDATED)
    trackers.sampled(SAMPLED)
    trackers.advised(ADVISED)
    trackers.close()


def test_numbers_are_grouped_and_what_is_not_known_is_left_out() -> None:
    told = scalars(trained(10, 3.0))
    assert told["train/loss"] == 3.0
    assert told["train/bits_per_token"] == 6.0
    assert told["cross_entropy/0.9-1.0"] == pytest.approx(0.9)
    assert "cross_entropy/0.0-0.1" not in told
    assert "train/step" not in told
    assert scalars(VALIDATED) == {
        "validation/bits_per_token": 2.5,
        "validation/bits_per_token_mc_stderr": 0.01,
        "validation/perplexity": 5.6,
        "validation/perplexity_mc_stderr": 0.1,
    }
    planned = scalars({**VALIDATED, "foresight": {"gain": 0.2, "gain_stderr": None}})
    assert planned["foresight/gain"] == 0.2
    assert "foresight/gain_stderr" not in planned


def events(out: Path) -> EventAccumulator:
    return EventAccumulator(str(out / "trackers"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_tensorboard_holds_numbers_texts_and_the_recipe(tmp_path: Path) -> None:
    tell(Trackers(["tensorboard"], tmp_path / "run", RECIPE))
    read = events(tmp_path / "run")
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(10, 3.0), (20, 2.0)]
    assert read.Scalars("validation/bits_per_token_mc_stderr")[0].value == pytest.approx(0.01)
    texts = {tag: read.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in read.Tags()["tensors"]}
    assert texts["samples/text_summary"].split("\n") == ["    # one", "    line", "", "---", "", "    two"]
    assert "batch_size: 8" in texts["recipe/text_summary"]
    assert "Do this." in texts["advice/text_summary"]


def test_tensorboard_hides_what_a_resumed_run_tells_again(tmp_path: Path) -> None:
    killed = Trackers(["tensorboard"], tmp_path / "run", RECIPE)
    killed.begin(0, 40)
    for step in (10, 20, 30):
        killed.trained(trained(step, 1.0))
    killed.close()
    resumed = Trackers(["tensorboard"], tmp_path / "run", RECIPE)
    resumed.begin(20, 40)
    for step in (30, 40):
        resumed.trained(trained(step, 2.0))
    resumed.close()
    told = [(event.step, event.value) for event in events(tmp_path / "run").Scalars("train/loss")]
    assert told == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0)]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch):
    """Puts a double in the place of wandb or trackio; gives the list of what it was called with."""

    def install(name: str) -> list[Any]:
        calls: list[Any] = []
        run = SimpleNamespace(
            log=lambda values, step=None: calls.append(("log", values, step)), finish=lambda: calls.append("finish")
        )
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.init = lambda **options: (print("hello"), calls.append(("init", options)), run)[-1]
        module.Table = lambda columns, data, dataframe: ("table", columns, data)
        module.Markdown = lambda text: ("markdown", text)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


def test_wandb_continues_the_run_of_a_folder(service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = service("wandb")
    check_trackers(["wandb"])
    tell(Trackers(["wandb"], tmp_path / "mine", RECIPE))
    tell(Trackers(["wandb"], tmp_path / "mine", RECIPE), step=20)
    tell(Trackers(["wandb"], tmp_path / "other", RECIPE))
    first, resumed, other = (call[1] for call in calls if call[0] == "init")
    assert first["project"] == "unmask"
    assert first["name"] == "mine"
    assert first["config"] == RECIPE
    assert first["dir"] == str(tmp_path / "mine" / "trackers")
    assert resumed["resume"] == "allow"
    assert resumed["id"] == first["id"] != other["id"]
    assert calls[1] == ("log", scalars(trained(10, 3.0)), 10)
    assert ("log", {"samples": ("table", ["text"], [["# one\nline"], ["two"]])}, 20) in calls
    assert calls[-1] == "finish"
    assert capsys.readouterr().out == ""


def test_trackio_continues_a_resumed_run_alone(service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = service("trackio")
    tell(Trackers(["trackio"], tmp_path / "mine", RECIPE))
    tell(Trackers(["trackio"], tmp_path / "mine", RECIPE), step=20)
    first, resumed = (call[1] for call in calls if call[0] == "init")
    assert (first["name"], first["resume"], first["config"]) == ("mine", "never", RECIPE)
    assert resumed["resume"] == "allow"
    assert ("log", {"advice": ("markdown", "    Do this.")}, 20) in calls
    assert capsys.readouterr().out == ""


def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("unmask.training.callbacks.find_spec", lambda name: None if name == "wandb" else find(name))
    check_trackers(["tensorboard"])
    with pytest.raises(UnmaskError, match=r"'wandb', which is not installed: pip install 'unmask\[track\]', or leave"):
        check_trackers(["tensorboard", "wandb"])


def test_a_tracker_that_cannot_start_stops_the_run(service, tmp_path: Path) -> None:
    service("wandb")
    sys.modules["wandb"].init = lambda **options: (_ for _ in ()).throw(RuntimeError("no API key\nlog in"))
    with pytest.raises(UnmaskError, match=r"'wandb' could not be started \(no API key\); set it up, or leave it out"):
        Trackers(["wandb"], tmp_path / "run", RECIPE).begin(0, 40)


def test_a_tracker_that_fails_on_the_way_is_left_behind(service, tmp_path: Path) -> None:
    calls = service("wandb")
    trackers = Trackers(["wandb", "tensorboard"], tmp_path / "run", RECIPE)
    trackers.begin(0, 40)
    broken = trackers._trackers["wandb"]
    broken.run.log = lambda values, step=None: 1 / 0
    with pytest.warns(UserWarning, match="'wandb' failed and is left out from here on: division by zero"):
        trackers.trained(trained(10, 3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trackers.trained(trained(20, 2.0))
        trackers.close()
    assert calls == [calls[0]]
    assert len(events(tmp_path / "run").Scalars("train/loss")) == 2
