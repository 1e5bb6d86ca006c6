"""The switches of D3PM and the sum of its terms; the laws compare its bound with the enumerated one."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from unmask.laws import exact
from unmask.laws.tables import random_table
from unmask.objectives.base import LossTerms, Noise
from unmask.objectives.d3pm import D3PM
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.schedules import LogLinear

TEXT = torch.tensor([2, 0, 3])
NOISE = Noise(torch.tensor([0.6, 0.1]), torch.tensor([[0.2, 0.9, 0.3], [0.1, 0.9, 0.9]]))
"""With T = 4: tokens 0 and 2 are masked in the first row, and token 0 in the second."""


def terms_of(objective) -> LossTerms:
    return objective.loss(random_table(), Batch.of(TEXT.expand(2, -1)), LogLinear(), NOISE)


def test_both_switches_give_subs():
    both = D3PM(steps=4, carry_over=True, zero_masking=True)
    for carry_over, zero_masking in product((False, True), repeat=2):
        objective = D3PM(carry_over=carry_over, zero_masking=zero_masking)
        assert (objective.needs_mask_logit, objective.needs_visible_rows) == (not zero_masking, not carry_over)
    assert torch.allclose(terms_of(both).nelbo, terms_of(Subs(steps=4)).nelbo, atol=1e-6)


def test_without_carry_over_the_reconstruction_is_added():
    plain = D3PM(steps=4, carry_over=False, zero_masking=True)
    log_p = exact.log_conditionals(random_table(), TEXT[None], 1.0)
    added = -log_p.gather(2, TEXT[None, :, None])[..., 0].float()
    terms = terms_of(plain)
    assert torch.allclose(terms.reconstruction, added.expand(2, -1), atol=1e-6)
    assert torch.allclose(terms.diffusion, terms_of(Subs(steps=4)).diffusion, atol=1e-6)


def test_terms_add_up():
    terms = terms_of(D3PM(steps=4))
    assert torch.equal(terms.nelbo, terms.diffusion + terms.reconstruction + terms.prior)
    assert terms.loss.item() == pytest.approx(terms.total.item())
    assert terms.total.item() == pytest.approx(terms.nelbo.sum().item())
    assert terms.count.item() == 6
    assert terms.per_token.item() == pytest.approx(terms.total.item() / 6)
