"""`unmask doctor` as a user meets it: lines, JSON, exit codes, laws that hold and laws that do not."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch

from tests.conftest import make_checkpoint
from unmask import laws
from unmask.doctor import machine as packages
from unmask.doctor.machine import Extra, Package
from unmask.doctor.report import judge, share, work
from unmask.pipeline import load
from unmask.schedules import LogLinear


@pytest.fixture
def doctor(run):
    """Run the verb; gives (exit code, standard output, standard error)."""
    return partial(run, "doctor", "--device", "cpu")


@pytest.fixture
def few_laws(monkeypatch):
    """The laws of two axes, which take a second."""
    monkeypatch.setattr(laws, "AXES", ("schedule", "model"))


def test_a_healthy_machine_and_checkpoint(doctor, few_laws, mdlm_folder):
    code, out, err = doctor("--checkpoint", mdlm_folder, "--text", "a text of some tokens")
    assert code == 0, out
    assert err == ""
    for line in (
        "✓ torch: ",
        "✓ schedule ",
        "objective: subs",
        "✓ pads do not matter: ",
        "256 canvases",
        "All is well.",
    ):
        assert line in out.replace("✓  ", "✓ "), line
    assert "✗" not in out


def test_the_shipped_smoke_model_is_well(doctor):
    """A trained network, whose exact likelihood is far from uniform; the bound is above it and close."""
    code, out, _ = doctor("--quick", "--checkpoint", "smoke", "--text", "bbbbbcafffffffffffcafbbbbcbbbebffff", "--json")
    assert code == 0
    told = json.loads(out)["checkpoint"]
    assert told["about"]["parameters"] == 57_129
    assert all(one["passed"] is not False for one in told["findings"])


def test_json_is_one_object_with_everything(doctor, few_laws, mdlm_folder):
    code, out, _ = doctor("--checkpoint", mdlm_folder, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["passed"] is True
    assert told["failures"] == 0
    assert told["device"] == "cpu"
    assert {"unmask", "Python", "torch", "transformers"} <= {one["name"] for one in told["versions"]}
    assert told["machine"]["cores"] >= 1
    schedules, networks = told["laws"]
    assert schedules["checks"] == len(list(laws.run(("schedule",))))
    assert schedules["members"] == len(laws.members("schedule"))
    assert 0 < schedules["closest"]["share"] <= 1
    assert networks["axis"] == "model"
    assert told["checkpoint"]["about"]["network"] == "DiT"
    exact = {one["name"]: one for one in told["checkpoint"]["findings"]}["bound is above the likelihood"]
    assert exact["passed"] is True
    assert exact["value"] <= exact["limit"]


def test_quick_leaves_the_laws_out(doctor, ar_folder):
    code, out, _ = doctor("--quick", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["laws"] is None
    assert told["checkpoint"] is None
    code, out, _ = doctor("--quick", "--checkpoint", ar_folder)
    assert code == 0
    assert "Laws" not in out
    assert "✓ generation agrees with score" in out


def test_a_broken_law_is_named_with_its_numbers(doctor, few_laws, monkeypatch):
    monkeypatch.setattr(LogLinear, "raw_weight", lambda self, t: -1.0 / t)
    code, out, _ = doctor()
    assert code == 1
    assert "✗ schedule loglinear: derivative is that of alpha BROKEN: integral of dalpha, against -1: 2 (at" in out
    assert "next:" in out
    code, out, _ = doctor("--json")
    assert code == 1
    told = json.loads(out)
    assert told["failures"] == len(told["laws"][0]["broken"]) > 0
    assert told["laws"][0]["closest"]["share"] is None
    assert told["laws"][1]["passed"] is True


def test_a_law_that_breaks_off_is_broken(doctor, monkeypatch):
    def refuse(self, t):
        raise RuntimeError("[no] kernel")

    monkeypatch.setattr(laws, "AXES", ("schedule",))
    monkeypatch.setattr(LogLinear, "time_at", refuse)
    code, out, _ = doctor()
    assert code == 1
    assert "RuntimeError: [no] kernel" in out
    code, out, _ = doctor("--json")
    assert code == 1
    assert json.loads(out)["laws"][0]["broken"][0]["figure"] is None


def test_progress_counts_every_case(few_laws):
    done = []
    verdicts = list(judge(torch.device("cpu"), done.append))
    assert sum(done) == work() == sum(len(laws.cases(axis)) for axis in ("schedule", "model"))
    assert verdicts[0].closest == max(laws.run(("schedule",)), key=share)


def test_a_sick_checkpoint_is_exit_1_and_says_what_to_do(doctor, tmp_path):
    folder = make_checkpoint(tmp_path / "sick")
    lm = load(folder, device="cpu")
    with torch.no_grad():
        lm.denoiser.output_layer.linear.bias[3] = math.nan
    lm.denoiser.save_pretrained(folder)
    code, out, _ = doctor("--quick", "--checkpoint", folder)
    assert code == 1
    assert "✗ weights are finite: weights that are not finite, the first in output_layer.linear.bias: 1 (at most" in out
    assert "next: go back to an earlier checkpoint" in out
    assert "checks failed" in out
    code, out, _ = doctor("--quick", "--checkpoint", folder, "--json")
    assert code == 1
    told = json.loads(out)
    assert told["passed"] is False
    assert told["failures"] == sum(one["passed"] is False for one in told["checkpoint"]["findings"]) > 1


def test_a_missing_extra_has_its_install_line_and_is_no_failure(doctor, monkeypatch):
    roof = Extra("roof", (Package("tiles", "4.2", ">=4"), Package("gutter", None, ">=1")))
    monkeypatch.setattr(packages, "extras", lambda: [roof])
    code, out, _ = doctor("--quick")
    assert code == 0
    assert "roof: tiles 4.2" in out
    assert "missing: gutter>=1; pip install 'unmask[roof]'" in out


def test_a_package_out_of_range_is_a_failure(doctor, monkeypatch):
    monkeypatch.setattr(packages, "needed", lambda: [Package("torch", "1.0", ">=2.6,<3")])
    code, out, _ = doctor("--quick")
    assert code == 1
    assert "✗ torch: 1.0 (wanted >=2.6,<3)" in out
    assert "next: pip install 'torch>=2.6,<3'" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--checkpoint", "nowhere"), "no checkpoint at 'nowhere'"),
        (("--checkpoint", "{mdlm}", "--text", "x" * 60), "shorten it"),
        (("--device", "banana"), "The device 'banana'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(doctor, mdlm_folder, arguments, words):
    code, out, err = doctor(*(a.format(mdlm=mdlm_folder) for a in arguments))
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert out == ""


def _interrupted(process):
    """What a process says that is told to stop, again if it did not hear: Python drops a signal in a finaliser."""
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=15)
    process.send_signal(signal.SIGABRT)
    raise AssertionError(f"the process went on: {process.communicate()[1]}")


def test_ctrl_c_stops_cleanly():
    start = [sys.executable, "-u", "-X", "faulthandler", "-c", "from unmask.cli import main; main()"]
    command = [*start, "doctor", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any(line.startswith("Extras") for line in process.stdout)
    _, err = _interrupted(process)
    assert process.returncode == 130
    assert "Traceback" not in err
