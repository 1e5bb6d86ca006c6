"""The run log, what people see of a run, and what trackers receive."""

from __future__ import annotations

import io
import json
import math
import sys
import warnings
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from accelerate import PartialState
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unmask.errors import UnmaskError
from unmask.training.callbacks import (
    Callback,
    CallbackList,
    ProgressBar,
    ProgressLines,
    RunLogger,
    Trackers,
    make_progress,
    read_log,
)

RECIPE = {"training": {"steps": 40, "batch_size": 8}}
BUCKETS = [None, *(0.1 * i for i in range(1, 10))]
VALIDATED = {
    "step": 20,
    "validation": {
        "estimator": "mask-count", "nats": 1e5, "tokens": 64, "exact": False,
        "bits_per_token": 2.9871, "bits_per_token_mc_stderr": 0.0123, "bits_per_token_data_stderr": None,
        "perplexity": 5.6, "perplexity_mc_stderr": 0.1,
    },
    "foresight": {"planner": 0.8, "gain": 0.2, "gain_stderr": None},
}  # fmt: skip
SAMPLED = {"step": 20, "samples": ["[b]a line\nand   another" + " word" * 40, "two"]}
ADVISED = {"step": 20, "advice": "Something [is] wrong; do this."}


def trained(step: int, bits: float) -> dict[str, Any]:
    record = {"step": step, "loss": bits / 2, "bits_per_token": bits, "tokens_per_second": 12_345.0}
    return {**record, "cross_entropy": BUCKETS}


class Recording(Callback):
    """Remembers its events."""

    def __init__(self, name: str, events: list[Any]) -> None:
        for event in (event for event in vars(Callback) if not event.startswith("_")):
            setattr(self, event, partial(self._remember, name, event, events))

    @staticmethod
    def _remember(name: str, event: str, events: list[Any], *args: Any) -> None:
        events.append((name, event, args))


def test_a_list_passes_every_event_on_in_turn_and_closes_all() -> None:
    seen: list[Any] = []
    callbacks = CallbackList([Recording("first", seen), Recording("second", seen)])
    calls = {"on_data": ("train", 1, 2), "on_begin": (3, 4), "on_step": (), "on_log": (SAMPLED,)}
    for event, args in calls.items():
        getattr(callbacks, event)(*args)
    assert seen == [(name, event, args) for event, args in calls.items() for name in ("first", "second")]
    broken = Callback()
    broken.close = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        CallbackList([broken, Recording("other", seen)]).close()
    assert seen[-1] == ("other", "close", ())


def test_the_log_is_json_passed_on_and_truncated_on_resume(tmp_path: Path) -> None:
    seen: list[Any] = []
    advisor = SimpleNamespace(look=lambda record: ["Do this."] if "loss" in record and record["step"] == 4 else [])
    logger = RunLogger(tmp_path, Recording("watcher", seen), advisor)
    for step in (2, 4, 6):
        logger.log({"step": step, "loss": 1.5, "validation": {"bits_per_byte": math.nan}})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    logger.resume(4, ["a notice"])
    lines = [{"step": step, "loss": 1.5, "validation": {"bits_per_byte": None}} for step in (2, 4)]
    lines.append({"step": 4, "advice": "Do this."})
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == lines
    assert read_log(tmp_path) == lines
    assert [args[0].get("advice") for _, _, args in seen] == [None, None, "Do this.", None, "a notice"]
    RunLogger(tmp_path / "elsewhere", Callback(), advisor, enabled=False).log(lines[0])
    assert read_log(tmp_path / "elsewhere") == []


def shown(terminal: bool, verbose: bool = False, width: int = 120) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=width, color_system=None, legacy_windows=False)
    progress = make_progress(console, verbose)
    progress.on_data("corpus", 1_200_000, 0)
    progress.on_data("train", 1_500_000, 3_000_000)
    progress.on_begin(10, 40)
    for _ in range(10):
        progress.on_step()
    planned = {**VALIDATED, "foresight": {"planner": 0.8, "gain": 0.2, "gain_stderr": 0.01}}
    for record in (trained(20, 3.21049), planned, VALIDATED, SAMPLED, ADVISED):
        progress.on_log(record)
    progress.close()
    return text.getvalue()


def test_a_terminal_shows_a_bar_with_samples_and_advice_above_it() -> None:
    output = shown(terminal=True)
    assert "encoding the train text: 1.5M of 3.0M characters" in output
    last = output.strip().split("\r")[-1]
    for part in ("20/40", "3.210 bits/token", "12.3k tokens/s"):
        assert part in last
    lines = [line.split("\r")[-1].replace("\x1b[2K", "") for line in output.splitlines()]
    (sample,) = [line for line in lines if "writes" in line]
    assert "step 20: writes “[b]a line and another word" in sample
    assert any(line.endswith("step 20/40: validation 2.987 ± 0.012 bits/token") for line in lines)
    assert any(line.endswith("step 20: Something [is] wrong; do this.") for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_a_bar_of_80_columns_has_step_loss_speed_and_time_left(width: int) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    bar, now = ProgressBar(console), 0.0
    bar._clock = lambda: now
    bar.on_begin(500_000, 1_000_000)
    bar.on_step()
    for _ in range(6):
        now += 1.0
        bar.on_step()
    bar.on_log({**trained(500_007, 13.21049), "tokens_per_second": 123_456.0})
    bar.on_log(VALIDATED)
    bar.close()
    last, _ = text.getvalue().split("\r")[-1].replace("\x1b[2K", "").split("\n")
    assert last.startswith("step 500007/1000000 ")
    assert last.endswith("13.210 bits/token, 123.5k tokens/s 5 days, 18:53:13 left")


def test_without_a_terminal_a_line_now_and_then_tells_the_state() -> None:
    text, now = io.StringIO(), 0.0
    lines = ProgressLines(Console(file=text, width=120), verbose=False, clock=lambda: now)
    lines.on_begin(10, 100)
    for seconds in (40.0, 29.0, 1.0, 10.0, 20.0):  # the first step compiles
        now += seconds
        lines.on_step()
        lines.on_log(trained(lines.step, 3.2))
        lines.on_log(VALIDATED)
    assert text.getvalue().splitlines() == [
        "step 11/100",
        "step 13/100: 3.200 bits/token, 12.3k tokens/s, 0:21:45 left",
        "step 15/100: 3.200 bits/token, 12.3k tokens/s, 0:21:15 left",
    ]


def test_without_a_terminal_records_are_printed_if_verbose() -> None:
    assert shown(terminal=False) == "step 20: Something [is] wrong; do this.\n"
    assert shown(terminal=False, verbose=True).splitlines() == [
        "step 20/40: 3.210 bits/token, 12.3k tokens/s",
        "step 20/40: validation 2.987 ± 0.012 bits/token, AUC 0.8000 (+0.2000 ± 0.0100)",
        "step 20/40: validation 2.987 ± 0.012 bits/token",
        f"step 20: writes “[b]a line and another{' word' * 15} wor…”",
        "step 20: Something [is] wrong; do this.",
    ]


def run_trackers(names: list[str], out: Path, step: int = 0) -> None:
    trackers = Trackers(names, out, RECIPE)
    trackers.on_begin(step, 40)
    for record in (trained(step + 10, 3.0), trained(step + 20, 2.0), VALIDATED, SAMPLED, ADVISED):
        trackers.on_log(record)
    trackers.close()


def read_events(out: Path) -> EventAccumulator:
    return EventAccumulator(str(out / "trackers"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_tensorboard_gets_grouped_numbers_texts_and_the_recipe(tmp_path: Path) -> None:
    run_trackers(["tensorboard"], tmp_path)
    events = read_events(tmp_path)
    assert [(event.step, event.value) for event in events.Scalars("train/bits_per_token")] == [(10, 3.0), (20, 2.0)]
    scalars = {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}
    assert scalars["cross_entropy/0.9-1.0"] == pytest.approx(0.9)
    assert scalars["foresight/gain"] == pytest.approx(0.2)
    assert scalars["validation/bits_per_token_mc_stderr"] == pytest.approx(0.0123)
    assert "validation/perplexity" in scalars
    unknown = ("cross_entropy/0.0-0.1", "foresight/gain_stderr", "validation/bits_per_token_data_stderr")
    assert not scalars.keys() & {*unknown, "validation/nats", "train/step"}
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    samples = texts["samples/text_summary"].split("\n")
    assert (samples[0], samples[2:]) == ("    [b]a line", ["", "---", "", "    two"])
    assert "batch_size: 8" in texts["recipe/text_summary"]
    assert "do this." in texts["advice/text_summary"]


def test_tensorboard_hides_records_that_a_resumed_run_writes_again(tmp_path: Path) -> None:
    for start, bits, steps in ((0, 1.0, (10, 20, 30)), (20, 2.0, (30, 40))):
        trackers = Trackers(["tensorboard"], tmp_path, RECIPE)
        trackers.on_begin(start, 40)
        for step in steps:
            trackers.on_log(trained(step, bits))
        trackers.close()
    told = [(event.step, event.value) for event in read_events(tmp_path).Scalars("train/bits_per_token")]
    assert told == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0)]


@pytest.fixture(autouse=True)
def process_state() -> None:
    """Every run has it before its trackers begin; their log messages need it."""
    PartialState()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch):
    """Replaces wandb or trackio by a double and returns the list of its calls."""

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
    run_trackers(["wandb"], tmp_path / "mine")
    run_trackers(["wandb"], tmp_path / "mine", step=20)
    run_trackers(["wandb"], tmp_path / "other")
    first, resumed, other = (call[1] for call in calls if call[0] == "init")
    assert (first["project"], first["name"], first["config"]) == ("unmask", "mine", RECIPE)
    assert first["dir"] == str(tmp_path / "mine" / "trackers")
    assert resumed["resume"] == "allow"
    assert resumed["id"] == first["id"] != other["id"]
    assert calls[1][1]["train/loss"] == 1.5
    assert calls[1][2] == 10
    assert ("log", {"samples": ("table", ["text"], [[text] for text in SAMPLED["samples"]])}, 20) in calls
    assert calls[-1] == "finish"
    assert capsys.readouterr().out == ""


def test_trackio_continues_a_resumed_run_alone(service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = service("trackio")
    run_trackers(["trackio"], tmp_path / "mine")
    run_trackers(["trackio"], tmp_path / "mine", step=20)
    first, resumed = (call[1] for call in calls if call[0] == "init")
    assert (first["name"], first["resume"], first["config"]) == ("mine", "never", RECIPE)
    assert resumed["resume"] == "allow"
    assert ("log", {"advice": ("markdown", f"    {ADVISED['advice']}")}, 20) in calls
    assert capsys.readouterr().out == ""


def test_a_tracker_that_is_missing_or_cannot_start_stops_the_run(
    service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("unmask.training.callbacks.find_spec", lambda name: name == "tensorboard" or None)
        Trackers(["tensorboard"], tmp_path, RECIPE)
        with pytest.raises(
            UnmaskError, match=r"'wandb', which is not installed; run: pip install 'unmask\[track\]', or"
        ):
            Trackers(["tensorboard", "wandb"], tmp_path, RECIPE)
    service("wandb")
    sys.modules["wandb"].init = lambda **options: (_ for _ in ()).throw(RuntimeError("no API key\nlog in"))
    with pytest.raises(UnmaskError, match=r"'wandb' could not be started \(no API key\); set it up, or remove it from"):
        Trackers(["wandb"], tmp_path / "run", RECIPE).on_begin(0, 40)


def test_a_tracker_that_fails_during_the_run_is_dropped(service, tmp_path: Path) -> None:
    calls = service("wandb")
    trackers = Trackers(["wandb", "tensorboard"], tmp_path, RECIPE)
    trackers.on_begin(0, 40)
    trackers._trackers["wandb"].run.log = lambda values, step=None: 1 / 0
    with pytest.warns(UserWarning, match="'wandb' failed and is no longer used: division by zero"):
        trackers.on_log(trained(10, 3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trackers.on_log(trained(20, 2.0))
        trackers.close()
    assert calls == [calls[0]]
    assert len(read_events(tmp_path).Scalars("train/loss")) == 2
