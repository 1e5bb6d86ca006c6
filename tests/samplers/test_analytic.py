"""The analytic sampler: ancestral sampling for scores of mass 1, sooner or later for others."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.laws.chains import BLANK, MASK, PROMPTED, L, output_distribution
from unmask.laws.tables import random_table
from unmask.pipeline import MaskedDiffusionLM
from unmask.registry import build, names
from unmask.samplers.analytic import AnalyticSampler
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, run_sampler
from unmask.schedules import Cosine


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("schedule", names("schedule"))
def test_scores_of_mass_one_give_ancestral_sampling(schedule, steps):
    table, options = random_table(conditioned=True), {"steps": steps, "schedule": build("schedule", schedule)}
    for start in (BLANK, PROMPTED):
        law = output_distribution(AnalyticSampler(**options), table, start)
        assert torch.allclose(law, output_distribution(AncestralSampler(**options), table, start), atol=1e-12)


@pytest.mark.parametrize("mass", [0.5, 1.0, 1.6, 9.0])
def test_the_mass_of_a_score_scales_the_rate_of_unmasking(mass):
    canvas = Canvas.of(BLANK.expand(8192, -1), MASK, seed=3)
    states = list(run_sampler(AnalyticSampler(steps=3, schedule=Cosine()), random_table(mass=mass), canvas))
    masked = [float(state.masked.double().mean()) for state in states]
    alpha = [math.cos(math.pi * t / 2) for t in (1, 2 / 3, 1 / 3)]
    left = 1.0
    for now, alpha_t, alpha_s in zip(masked[1:], alpha, alpha[1:], strict=False):
        left *= 1.0 - min(1.0, mass * (alpha_s - alpha_t) / (1.0 - alpha_t))
        assert now == pytest.approx(left, abs=4 * math.sqrt(0.25 / (8192 * L)))
    assert masked[-1] == 0.0
    assert len(states) == 4


def test_a_model_trained_with_sedd_may_use_it(mdlm):
    config = mdlm.config.model_copy(update={"objective": build("objective", "sedd")})
    scores = MaskedDiffusionLM(mdlm.denoiser, mdlm.tokenizer, config)
    (one,) = scores.sample(1, length=12, steps=6, sampler="analytic", seed=2)
    assert one.calls == 6
    assert max(one.order) <= 5
    (alike,) = scores.sample(1, length=12, sampler={"name": "analytic", "steps": 6}, seed=2, batch_size=1)
    assert alike.ids == one.ids
