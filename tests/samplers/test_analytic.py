"""The analytic sampler: ancestral sampling for scores of mass 1, sooner or later for others."""

from __future__ import annotations

import pytest
import torch

from unmask.laws.chains import BLANK, PROMPTED, output_distribution
from unmask.laws.tables import random_table
from unmask.pipeline import MaskedDiffusionLM
from unmask.registry import build, names
from unmask.samplers.analytic import AnalyticSampler
from unmask.samplers.ancestral import AncestralSampler


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("schedule", names("schedule"))
def test_scores_of_mass_one_give_ancestral_sampling(schedule, steps):
    table, options = random_table(conditioned=True), {"steps": steps, "schedule": build("schedule", schedule)}
    for start in (BLANK, PROMPTED):
        law = output_distribution(AnalyticSampler(**options), table, start)
        assert torch.allclose(law, output_distribution(AncestralSampler(**options), table, start), atol=1e-12)


def test_a_model_trained_with_sedd_may_use_it(mdlm):
    config = mdlm.config.model_copy(update={"objective": build("objective", "sedd")})
    scores = MaskedDiffusionLM(mdlm.denoiser, mdlm.tokenizer, config)
    (one,) = scores.sample(1, length=12, steps=6, sampler="analytic", seed=2)
    assert one.calls == 6
    assert max(one.order) <= 5
    (alike,) = scores.sample(1, length=12, sampler={"name": "analytic", "steps": 6}, seed=2, batch_size=1)
    assert alike.ids == one.ids
