"""What a GPU must do as the CPU does. Skipped where there is none."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.conftest import LENGTH
from unmask.config import parse_recipe
from unmask.pipeline import load
from unmask.random import Purpose, exponential, uniform
from unmask.schedules import KNOTS, Learned
from unmask.training import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
TEXTS = ["a short text", "another one, a little longer than the first"]


def test_random_numbers_are_those_of_the_cpu():
    sample, position = torch.arange(512)[:, None], torch.arange(1024)[None]
    here = uniform(7, Purpose.MASK, 3, sample, position)
    there = uniform(7, Purpose.MASK, 3, sample.cuda(), position.cuda())
    assert torch.equal(here, there.cpu())
    assert torch.allclose(
        exponential(7, Purpose.TOKEN, 0, sample.cuda()).cpu(), exponential(7, Purpose.TOKEN, 0, sample)
    )


@pytest.mark.parametrize("folder", ["mdlm_folder", "ar_folder"])
def test_scores_and_samples_are_those_of_the_cpu(folder, request):
    path = request.getfixturevalue(folder)
    cpu, gpu = load(path, device="cpu"), load(path, device="cuda", dtype="float32")
    one, other = cpu.score(TEXTS, precision=None), gpu.score(TEXTS, precision=None)
    assert other.nats == pytest.approx(one.nats, rel=1e-4)
    steps = None if cpu.causal else 8
    assert gpu.generate(4, length=32, steps=steps, seed=0) == cpu.generate(4, length=32, steps=steps, seed=0)


def recipe(tmp_path, schedule="loglinear", **training):
    text = tmp_path / "text.txt"
    if not text.exists():
        text.write_text("the cat sat on the mat. the dog ran to the door. " * 200)
    return parse_recipe(
        {
            "data": {"source": {"name": "text", "paths": [str(text)]}, "length": 64},
            "model": {"name": "dit", "size": "nano", "hidden_size": 64, "layers": 2, "heads": 2, "dropout": 0.1},
            "schedule": schedule,
            "optimizer": {"learning_rate": 0.003, "warmup": 10, "ema": 0.9},
            "training": {"batch_size": 16, "validation_rows": 8, "log_every": 10, **training},
        }
    )


def test_training_in_bf16_learns(tmp_path):
    result = train(recipe(tmp_path, steps=200), tmp_path / "run")
    assert result.bound.bits_per_token < 2.5
    assert torch.cuda.is_bf16_supported()


@pytest.mark.parametrize("schedule", ["loglinear", {"name": "learned", "every": 4, "warmup": 4}])
def test_a_deterministic_run_resumes_to_the_bit(tmp_path, schedule):
    options = {"schedule": schedule, "deterministic": True, "save_every": 10, "validate_every": 20}
    train(recipe(tmp_path, steps=20, **options), tmp_path / "whole")
    train(recipe(tmp_path, steps=10, **options), tmp_path / "parts")
    train(recipe(tmp_path, steps=20, **options), tmp_path / "parts", resume=True)
    for name in ("model.safetensors", "state/optimizer.safetensors", "unmask.json"):
        whole, parts = ((tmp_path / run / "latest" / name).read_bytes() for run in ("whole", "parts"))
        assert whole == parts
    last = [json.loads((tmp_path / run / "log.jsonl").read_text().splitlines()[-1]) for run in ("whole", "parts")]
    assert last[0]["validation"]["nats"] == last[1]["validation"]["nats"]


def test_a_learned_schedule_is_that_of_the_cpu():
    schedule = Learned().with_density([1.2 + math.sin(k / 4) for k in range(KNOTS)])
    v = uniform(7, Purpose.TIME, sample=torch.arange(4096))
    for function in (schedule.mask_rate, schedule.weight, schedule.time_at):
        here = function(v)
        for there in (function, torch.compile(function, fullgraph=True)):
            assert torch.allclose(there(v.cuda()).cpu(), here, rtol=2e-6, atol=0)


def test_attention_has_finite_gradients_at_every_length():
    """Strongly negative scores in bf16, where a kernel that does not fill its tiles has been NaN."""
    from unmask.models.attention import attend, bidirectional_mask, rotary_angles

    for length in (64, 96, 128, 192, 704):
        qkv = torch.randn(8, length, 3, 4, 32, device="cuda", dtype=torch.bfloat16)
        qkv[:, :, 0, :, 15] = 20.0
        qkv[:, :, 1, :, 15] = -40.0
        qkv.requires_grad_()
        out = attend(qkv, rotary_angles(length, 32, 1e6, qkv.device), bidirectional_mask(None))
        out.backward(torch.randn_like(out))
        assert qkv.grad.isfinite().all(), length


@pytest.mark.parametrize("length", [64, 200, 256, 1024])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_reads_nothing_that_nobody_wrote(length, causal):
    """Neither pass takes up the NaN that all free memory is filled with."""
    from unmask.models.attention import attend, bidirectional_mask, causal_mask, rotary_angles

    def strew_nan() -> None:
        torch.cuda.empty_cache()
        strewn = [torch.full((size,), torch.nan, device="cuda") for size in [1 << 16] * 64 + [1 << 20] * 32 + [1 << 28]]
        del strewn

    qkv = torch.randn(8, length, 3, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    scope = causal_mask(length, 0, None, qkv.device) if causal else bidirectional_mask(None)
    rotary, gradients = rotary_angles(length, 64, 1e4, qkv.device), []
    for prepare in (torch.cuda.empty_cache, strew_nan):
        prepare()
        out = attend(qkv, rotary, scope)
        prepare()
        gradients.append(torch.autograd.grad(out.square().sum(), qkv)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=0.05)


def test_the_compiled_network_gives_the_same_rows(mdlm_folder):
    lm = load(mdlm_folder, device="cuda", dtype="float32")
    ids = torch.randint(0, 256, (4, LENGTH), device="cuda")
    with torch.no_grad():
        plain = lm.denoiser.hidden(ids)
        fused = torch.compile(lm.denoiser.hidden, fullgraph=True)(ids)
    assert torch.allclose(plain, fused, atol=1e-3)


@pytest.mark.parametrize("axis", ["schedule", "sampler", "model"])
def test_laws_hold_on_the_gpu(axis):
    from unmask import laws
    from unmask.laws.base import on_device

    cases = laws.cases(axis)
    with on_device("cuda"):
        for law in (law for case in cases for law in case.run()):
            law.require()
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("folder", ["mdlm_folder", "ar_folder"])
def test_a_healthy_checkpoint_passes_the_doctor(folder, dtype, request):
    from unmask.doctor.checkpoint import CheckpointCheck

    lm = load(request.getfixturevalue(folder), device="cuda", dtype="float32")
    lm.denoiser.to(dtype)
    for result in CheckpointCheck(lm).run():
        assert result.passed, result


def test_compiled_random_numbers_are_those_of_the_cpu():
    sample, position = torch.arange(512)[:, None], torch.arange(1024)[None]
    compiled = torch.compile(lambda s, p: uniform(7, Purpose.MASK, 3, s, p))(sample.cuda(), position.cuda())
    assert torch.equal(compiled.cpu(), uniform(7, Purpose.MASK, 3, sample, position))
