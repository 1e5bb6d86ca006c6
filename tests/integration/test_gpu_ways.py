"""Every way to generate on a GPU: the same seeds write what they write on a CPU. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import make_checkpoint
from unmask.constraints import Characters, Words
from unmask.pipeline import MaskedDiffusionLM, load
from unmask.registry import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SAMPLERS = [
    {"name": "reveal", "steps": 8},
    "ordered",
    {"name": "ordered", "order": "margin", "steps": 6},
    {"name": "ordered", "order": "left_to_right"},
    "threshold",
    "entropy_bounded",
    {"name": "remdm", "steps": 12},
    {"name": "remdm", "steps": 12, "strategy": "conf"},
    {"name": "corrector", "steps": 12},
]
WISHES: dict[str, dict[str, Any]] = {
    "nucleus": {"top_p": 0.9, "min_p": 0.01},
    "hybrid": {"greedy_tail": 0.3, "greedy_above": 0.9},
    "words": {"constraint": Words("cat"), "steps": 8},
    "particles": {"constraint": [Words("cat"), Characters(10, 30)], "particles": 4, "steps": 8},
    "particles under a cut": {"constraint": Words("cat"), "particles": 4, "top_k": 40, "steps": 8},
    "guided": {"prompt": "once", "guidance": 1.0, "steps": 8},
    "between": {"prompt": "once", "suffix": "end", "steps": 8},
    "windows": {"length": 150, "steps": 8},
    "score": {"score": len, "best_of": 3, "steps": 8},
}


@pytest.fixture(scope="module", params=["packed", "supervised_eos"])
def twins(request, tmp_path_factory):
    folder = make_checkpoint(tmp_path_factory.mktemp("ways") / "model", policy=request.param)
    return load(folder, device="cpu"), load(folder, device="cuda", dtype="float32")


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_sampler_writes_the_same(twins, sampler):
    """Behind a prompt: on a blank canvas all positions look alike, and rounding would say which is the surest."""
    cpu, gpu = (lm.generate(3, prompt="once upon", length=32, seed=2, sampler=sampler) for lm in twins)
    assert gpu == cpu


def test_scores_are_walked_alike(twins):
    scores = [lm.config.model_copy(update={"objective": build("objective", "sedd")}) for lm in twins]
    cpu, gpu = (MaskedDiffusionLM(lm.denoiser, lm.tokenizer, card) for lm, card in zip(twins, scores, strict=True))
    options = {"prompt": "once upon", "length": 32, "seed": 2, "sampler": {"name": "analytic", "steps": 12}}
    assert gpu.generate(3, **options) == cpu.generate(3, **options)


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_wish_is_granted_alike(twins, wish):
    cpu, gpu = (lm.generate(3, **{"length": 32, "seed": 2, **wish}) for lm in twins)
    assert gpu == cpu


def test_blanks_and_edits_are_the_same(twins):
    text = "the cat sat on the mat"
    for write in (
        lambda lm: lm.fill(["the [MASK:2-5] sat", "a [MASK:3]"], seed=1),
        lambda lm: lm.edit(text, strength=0.4, seed=1),
        lambda lm: lm.rewrite(text, keep=["cat", "mat"], seed=1),
    ):
        cpu, gpu = (write(lm) for lm in twins)
        assert gpu == cpu
