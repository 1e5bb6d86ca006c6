"""`unmask doctor`: text, JSON and exit codes."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch

import unmask.doctor
from tests.conftest import LENGTH, make_checkpoint
from unmask import laws
from unmask.checkpoint import save_checkpoint
from unmask.doctor import CheckResult
from unmask.pipeline import load
from unmask.schedules import LogLinear


@pytest.fixture
def doctor(run):
    return partial(run, "doctor", "--device", "cpu")


@pytest.fixture
def few_laws(monkeypatch):
    """Only the laws of two axes, which take a second."""
    monkeypatch.setattr(laws, "AXES", ("schedule", "objective"))


def test_the_report_has_every_part(doctor, reported, few_laws, mdlm_folder):
    code, out, err = doctor("--checkpoint", mdlm_folder, "--text", "a text of some tokens")
    assert (code, err) == (0, ""), out
    lines = ("✓ torch: ", "✓ schedule ", "objective: subs", "✓ logits do not depend on padding: ", "All checks passed.")
    assert [line for line in lines if line not in out.replace("✓  ", "✓ ")] == []
    assert "✗" not in out
    found = reported("doctor", "--device", "cpu", "--checkpoint", mdlm_folder)
    assert (found["passed"], found["failures"], found["device"]) == (True, 0, "cpu")
    assert {"unmask", "Python", "torch", "transformers"} <= {one["name"] for one in found["versions"]}
    assert found["machine"]["cores"] >= 1
    schedules, objectives = found["laws"]
    assert 0 < schedules["closest"]["share"] <= 1
    assert objectives["axis"] == "objective"
    assert found["checkpoint"]["about"]["network"] == "DiT"
    exact = {one["name"]: one for one in found["checkpoint"]["findings"]}["bound is above the likelihood"]
    assert exact["passed"] is True
    assert exact["value"] <= exact["limit"]


def test_quick_skips_the_laws(printed, reported, ar_folder):
    found = reported("doctor", "--quick")
    assert (found["laws"], found["checkpoint"]) == (None, None)
    out = printed("doctor", "--quick", "--checkpoint", ar_folder, "--device", "cpu")
    assert "Laws" not in out
    assert "✓ generation agrees with score" in out


def test_shipped_models_pass(reported, shipped_models):
    """The exact likelihood of the trained 'smoke' is far from uniform; --text alone checks 'stories'."""
    quick = partial(reported, "doctor", "--quick", "--device", "cpu")
    found = quick("--checkpoint", "smoke", "--text", "bbbbbcafffffffffffcafbbbbcbbbebffff")["checkpoint"]
    assert found["about"]["parameters"] == 57_129
    assert all(one["passed"] is not False for one in found["findings"])
    assert quick("--text", "a text of some tokens")["checkpoint"]["about"]["path"] == str(shipped_models / "stories")


def negate(self, t):
    return -1.0 / t


def fail(self, t):
    raise RuntimeError("[no] kernel")


@pytest.mark.parametrize(
    ("method", "wrong", "words"),
    [
        ("raw_weight", negate, "dalpha is the derivative of alpha: integral of dalpha, against -1: 2"),
        ("time_at", fail, "RuntimeError: [no] kernel: inf"),
    ],
)
def test_a_broken_law_is_named_and_exits_with_1(doctor, few_laws, monkeypatch, method, wrong, words):
    monkeypatch.setattr(LogLinear, method, wrong)
    code, out, _ = doctor()
    assert code == 1
    assert "✗ schedule loglinear: " in out
    assert words in out
    assert "next:" in out
    code, out, _ = doctor("--json")
    assert code == 1
    found = json.loads(out)
    schedules = found["laws"][0]
    assert found["failures"] == sum(len(axis["broken"]) for axis in found["laws"]) > 0
    assert (schedules["broken"][0]["figure"] is None) == (wrong is fail)
    assert schedules["closest"]["share"] is None


def test_a_checkpoint_that_fails_a_check_exits_with_1_and_a_remedy(doctor, tmp_path):
    folder = make_checkpoint(tmp_path / "damaged")
    lm = load(folder, device="cpu")
    with torch.no_grad():
        lm.denoiser.output_layer.linear.bias[3] = 3e38
    save_checkpoint(folder, lm.denoiser, lm.tokenizer, lm.config.model_copy(update={"length": 2 * LENGTH}))
    code, out, _ = doctor("--quick", "--checkpoint", folder)
    assert code == 1
    assert f"✗ unmask.json fits: rows of {2 * LENGTH} tokens for a network of {LENGTH}" in out
    assert "next: correct unmask.json" in out
    assert "checks failed" in out
    code, out, _ = doctor("--quick", "--checkpoint", folder, "--json")
    assert code == 1
    found = json.loads(out)
    assert found["passed"] is False
    assert found["failures"] == sum(one["passed"] is False for one in found["checkpoint"]["findings"]) > 0


def test_a_missing_extra_is_not_a_failure_but_a_wrong_package_is(doctor, monkeypatch):
    tiles = {"name": "tiles", "version": "4.2", "wanted": ">=4", "supported": True}
    gutter = {"name": "gutter", "version": None, "wanted": ">=1", "supported": False}
    install = "pip install 'unmask[roof]'"
    extra = {"name": "roof", "packages": [tiles, gutter], "complete": False, "install": install}
    monkeypatch.setattr(unmask.doctor, "list_extras", lambda: [extra])
    code, out, _ = doctor("--quick")
    assert code == 0
    assert "roof: tiles 4.2" in out
    assert f"missing: gutter>=1; {install}" in out
    wrong = CheckResult("torch", False, "1.0 (requires >=2.6,<3)", "pip install 'torch>=2.6,<3'")
    monkeypatch.setattr(unmask.doctor, "check_packages", lambda: [wrong])
    code, out, _ = doctor("--quick")
    assert code == 1
    assert "✗ torch: 1.0 (requires >=2.6,<3)" in out
    assert "next: pip install 'torch>=2.6,<3'" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--checkpoint", "nowhere"), "'nowhere'"),
        (("--checkpoint", "{mdlm}", "--text", "x" * 60), "shorten it"),
        (("--checkpoint", "{mdlm}", "--text", ""), "no tokens"),
        (("--device", "banana"), "banana"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, arguments, words):
    assert words in refused("doctor", *(one.format(mdlm=mdlm_folder) for one in arguments))


def test_ctrl_c_exits_with_130():
    start = [sys.executable, "-u", "-X", "faulthandler", "-c", "from unmask.cli import main; main()"]
    command = [*start, "doctor", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any(line.startswith("Extras") for line in process.stdout)
    for _ in range(5):  # Python drops a signal that arrives in a finaliser
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=15)
            break
    else:
        process.send_signal(signal.SIGABRT)
        raise AssertionError(f"the process did not stop: {process.communicate()[1]}")
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("unmask: interrupted.\n")
