"""The switches of D3PM against formulas written out, and the terms of an objective."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.laws import exact
from unmask.laws.tables import random_table
from unmask.objectives.base import LossTerms, Noise
from unmask.objectives.d3pm import D3PM
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.schedules import LogLinear

TEXT, MASK = torch.tensor([2, 0, 3]), 1
NOISE = Noise(torch.tensor([0.6, 0.1]), torch.tensor([[0.2, 0.9, 0.3], [0.1, 0.9, 0.9]]))
"""With T = 4: alpha_s, alpha_t = 0.5, 0.25 with tokens 0 and 2 masked, and alpha_s, alpha_t = 1, 0.75 with token 0."""


def terms_of(objective) -> LossTerms:
    return objective.loss(random_table(), Batch.of(TEXT.expand(2, -1)), LogLinear(), NOISE)


def test_both_switches_give_subs():
    both = D3PM(steps=4, carry_over=True, zero_masking=True)
    assert not both.needs_mask_logit
    assert not both.needs_visible_rows
    assert torch.allclose(terms_of(both).nelbo, terms_of(Subs(steps=4)).nelbo, atol=1e-6)


def test_without_carry_over_the_reconstruction_is_added():
    plain = D3PM(steps=4, carry_over=False, zero_masking=True)
    assert plain.needs_visible_rows
    log_p = exact.log_conditionals(random_table(), TEXT[None], 1.0)
    added = -log_p.gather(2, TEXT[None, :, None])[..., 0].float()
    terms = terms_of(plain)
    assert torch.allclose(terms.reconstruction, added.expand(2, -1), atol=1e-6)
    assert torch.allclose(terms.diffusion, terms_of(Subs(steps=4)).diffusion, atol=1e-6)


def test_without_zero_masking_the_mask_token_joins_the_softmax():
    """Eq. 39 written out: a = x_theta(m); the first row has alpha_s = 0.5, alpha_t = 0.25, the second s = 0."""
    free = D3PM(steps=4, carry_over=True, zero_masking=False)
    assert free.needs_mask_logit
    terms = terms_of(free)
    for row, (alpha_s, alpha_t), masked in ((0, (0.5, 0.25), (0, 2)), (1, (1.0, 0.75), (0,))):
        z = TEXT.clone()
        z[list(masked)] = MASK
        x_theta = exact.log_conditionals(random_table(), z[None], alpha_t, mask_logit=True).exp()[0]
        for position in masked:
            x, a = float(x_theta[position, TEXT[position]]), float(x_theta[position, MASK])
            norm = alpha_t * a + 1 - alpha_t
            nats = (alpha_s - alpha_t) / (1 - alpha_t) * math.log(norm / ((1 - alpha_t) * x))
            if alpha_s < 1:
                ratio = (1 - alpha_s) * norm / ((1 - alpha_t) * (alpha_s * a + 1 - alpha_s))
                nats += (1 - alpha_s) / (1 - alpha_t) * math.log(ratio)
            assert terms.diffusion[row, position].item() == pytest.approx(4 * nats, rel=1e-5)


def test_terms_add_up():
    terms = terms_of(D3PM(steps=4))
    assert torch.equal(terms.nelbo, terms.diffusion + terms.reconstruction + terms.prior)
    assert terms.total.item() == pytest.approx(terms.nelbo.sum().item())
    assert terms.count.item() == 6
    assert terms.per_token.item() == pytest.approx(terms.total.item() / 6)
