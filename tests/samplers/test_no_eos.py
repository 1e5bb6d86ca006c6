"""`NoEosDenoiser`: no EOS at positions before known text."""

from __future__ import annotations

import pytest
import torch

from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import TableDenoiser, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.guidance import NoEosDenoiser

V, L, MASK, END = 4, 3, 1, 3


@pytest.mark.parametrize("steps", [2, None])
def test_eos_is_excluded_from_the_distribution_before_known_text(steps):
    table, no_eos = random_table(), torch.tensor([True, False, False])
    logits = table.logits.clone()
    logits[:, no_eos, END] = -torch.inf
    should = output_distribution(AncestralSampler(steps=steps), TableDenoiser(logits, MASK), torch.full((L,), MASK))
    canvas = Canvas.of(torch.full((8000, L), MASK), MASK, seed=90)
    view = NoEosDenoiser(table, no_eos.expand(8000, -1), END)
    ids = sample(AncestralSampler(steps=steps), view, canvas).ids
    counts = torch.bincount((ids * V ** torch.arange(L)).sum(dim=1), minlength=V**L)
    assert counts[should == 0].sum() == 0
    assert chi_square(counts, should) > 1e-4


def test_a_sequence_keeps_its_positions_when_others_are_finished():
    ids = torch.tensor([[2, 2, 0], [0, 2, MASK], [MASK, MASK, MASK], [2, 0, 0], [MASK, 0, 0]])
    no_eos = torch.zeros_like(ids, dtype=torch.bool)
    no_eos[2, 1:] = True
    canvas, table = Canvas.of(ids, MASK, seed=11), random_table()
    for seed in range(40):
        canvas = Canvas.of(ids, MASK, seed=10 * seed)
        together = sample(AncestralSampler(), NoEosDenoiser(table, no_eos, END), canvas).ids
        assert END not in together[2, 1:].tolist()
        for b in range(len(ids)):
            row = slice(b, b + 1)
            alone = sample(
                AncestralSampler(),
                NoEosDenoiser(table, no_eos[row], END),
                Canvas.of(ids[row], MASK, seed=10 * seed + b),
            )
            assert torch.equal(alone.ids[0], together[b])
