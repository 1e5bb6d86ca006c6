"""A GPU gives the results of the CPU: scores, texts of every sampler, training, attention, laws."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask import laws
from unmask.config import parse_recipe
from unmask.constraints import Characters, Words
from unmask.doctor.checkpoint import CheckpointCheck
from unmask.laws.base import on_device
from unmask.models.attention import attend, bidirectional_mask, causal_mask, rotary_angles
from unmask.pipeline import MaskedDiffusionLM, load
from unmask.random import Purpose, uniform
from unmask.registry import build
from unmask.schedules import KNOTS, Learned
from unmask.training import train

pytestmark = pytest.mark.gpu
TEXTS = ["a short text", "another one, a little longer than the first"]
SAMPLERS = [
    {"name": "reveal", "steps": 8},
    "ordered",
    {"name": "ordered", "order": "margin", "steps": 6},
    {"name": "ordered", "order": "left_to_right"},
    {"name": "block", "size": 6, "steps": 12},
    "threshold",
    "entropy_bounded",
    {"name": "remdm", "steps": 12},
    {"name": "remdm", "steps": 12, "strategy": "cap_conf"},
    {"name": "corrector", "steps": 12},
]
OPTIONS: dict[str, dict[str, Any]] = {
    **{str(sampler): {"prompt": "once upon", "sampler": sampler} for sampler in SAMPLERS},
    "nucleus": {"top_p": 0.9, "min_p": 0.01},
    "hybrid": {"greedy_tail": 0.3, "greedy_above": 0.9},
    "words": {"constraint": Words("cat"), "steps": 8},
    "particles": {"constraint": [Words("cat"), Characters(10, 30)], "particles": 4, "steps": 8},
    "particles with top_k": {"constraint": Words("cat"), "particles": 4, "top_k": 40, "steps": 8},
    "guidance": {"prompt": "once", "guidance": 1.0, "steps": 8},
    "suffix": {"prompt": "once", "suffix": "end", "steps": 8},
    "windows": {"length": 150, "steps": 8},
    "score": {"score": len, "best_of": 3, "steps": 8},
}


@pytest.fixture(scope="module", params=["packed", "supervised_eos"])
def pair(request, tmp_path_factory):
    """The same model on the CPU and on the GPU."""
    folder = make_checkpoint(tmp_path_factory.mktemp("models") / "model", policy=request.param)
    return load(folder, device="cpu"), load(folder, device="cuda", dtype="float32")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_generated_texts_are_those_of_the_cpu(pair, options):
    """Samplers start from a prompt, since confidences on an empty canvas differ only by rounding."""
    cpu, gpu = (lm.generate(3, **{"length": 32, "seed": 2, **options}) for lm in pair)
    assert gpu == cpu


def test_the_analytic_sampler_writes_the_texts_of_the_cpu(pair):
    configs = [lm.config.model_copy(update={"objective": build("objective", "sedd")}) for lm in pair]
    cpu, gpu = (MaskedDiffusionLM(lm.denoiser, lm.tokenizer, one) for lm, one in zip(pair, configs, strict=True))
    options = {"prompt": "once upon", "length": 32, "seed": 2, "sampler": {"name": "analytic", "steps": 12}}
    assert gpu.generate(3, **options) == cpu.generate(3, **options)


def test_fills_and_edits_are_those_of_the_cpu(pair):
    text = "the cat sat on the mat"
    for write in (
        lambda lm: lm.fill(["the [MASK:2-5] sat", "a [MASK:3]"], seed=1),
        lambda lm: lm.edit(text, strength=0.4, seed=1),
        lambda lm: lm.rewrite(text, keep=["cat", "mat"], seed=1),
    ):
        cpu, gpu = (write(lm) for lm in pair)
        assert gpu == cpu


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
    """Strongly negative scores in bf16 gave NaN in a kernel that did not fill its tiles."""
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
def test_attention_does_not_read_uninitialised_memory(length, causal):
    """With NaN in all free memory, forward and backward pass give the same."""

    def fill_with_nan() -> None:
        torch.cuda.empty_cache()
        filled = [torch.full((size,), torch.nan, device="cuda") for size in [1 << 16] * 64 + [1 << 20] * 32 + [1 << 28]]
        del filled

    qkv = torch.randn(8, length, 3, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    scope = causal_mask(length, 0, None, qkv.device) if causal else bidirectional_mask(None)
    rotary, gradients = rotary_angles(length, 64, 1e4, qkv.device), []
    for prepare in (torch.cuda.empty_cache, fill_with_nan):
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


MEMBERS = dict.fromkeys(
    (axis, case.member.name) for axis in ("schedule", "sampler", "model") for case in laws.cases(axis)
)


@pytest.mark.parametrize(("axis", "name"), MEMBERS)
def test_laws_hold_on_the_gpu(axis, name):
    cases = [case for case in laws.cases(axis) if case.member.name == name]
    with on_device("cuda"):
        for law in (law for case in cases for law in case.run()):
            law.require()
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("folder", ["mdlm_folder", "ar_folder"])
def test_a_healthy_checkpoint_passes_the_doctor(folder, dtype, request):
    lm = load(request.getfixturevalue(folder), device="cuda", dtype="float32")
    lm.denoiser.to(dtype)
    for result in CheckpointCheck(lm).run():
        assert result.passed, result


@pytest.mark.parametrize("name", ["bimamba", "caduceus-ps", "caduceus-ph", "hyena", "mamba"])
def test_trunks_give_the_logits_and_gradients_of_the_cpu(name):
    torch.manual_seed(0)
    network = build("model", {"name": name, "size": "dna", "layers": 2}).build(6, 5, 128)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    ids = torch.randint(5, (3, 100))
    found = []
    for device in ("cpu", "cuda"):
        network = network.to(device).train()
        network.zero_grad()
        logits = network(ids.to(device)).logits[..., :5]
        logits.square().mean().backward()
        gradients = [one.grad for one in network.parameters() if one.grad is not None]
        found.append([one.detach().cpu().clone() for one in (logits, *gradients)])  # `to` moves gradients in place
    for cpu, gpu in zip(*found, strict=True):
        assert (cpu - gpu).abs().max() <= 2e-3 * cpu.abs().max() + 1e-7  # matrix products may use TF32
