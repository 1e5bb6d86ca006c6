"""Views of a denoiser at some positions alone: the rows that they give at all of them."""

from __future__ import annotations

import pytest
import torch

from unmask.laws.tables import random_table
from unmask.models import DiTSpec
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, hidden_rows, sample
from unmask.samplers.ending import EosTokenSampler
from unmask.samplers.guidance import GuidedDenoiser, MaskPaddedDenoiser, NoEosDenoiser
from unmask.samplers.token_sampling import TokenSampler

V, L, B, EOS = 11, 12, 3, 0
MASK = V - 1
CLOSED = torch.arange(B * L).view(B, L) % 3 == 0
CONDITION = torch.arange(B * L).view(B, L) % 4 < 2

VIEWS = {
    "goes on": lambda net: MaskPaddedDenoiser(net, L + 4),
    "without end": lambda net: NoEosDenoiser(net, CLOSED, EOS),
    "guided": lambda net: GuidedDenoiser(net, CONDITION, 1.5),
    "all": lambda net: NoEosDenoiser(GuidedDenoiser(MaskPaddedDenoiser(net, L + 4), CONDITION, 0.5), CLOSED, EOS),
}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    net = DiTSpec(hidden_size=16, layers=2, heads=2, dropout=0.0, conditioned=True).build(V, MASK, L + 4)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@torch.no_grad()
def test_some_rows_are_those_of_all(network, view):
    ids, positions = torch.randint(0, V, (B, L)), torch.tensor([[4, 0, 9], [11, 11, 2], [1, 6, 3]])
    told = {"alpha": torch.tensor([0.2, 0.5, 0.9]), "attention_mask": torch.arange(L) < torch.tensor([[12], [12], [7]])}
    seen = view(network)
    some, every = seen.hidden_at(ids, positions, **told), seen.hidden(ids, **told)
    expected = torch.stack([row[at] for row, at in zip(every, positions, strict=True)])
    assert torch.allclose(some, expected, atol=1e-5)
    assert torch.allclose(seen.head(some), seen.head(expected), atol=1e-4)
    few = torch.tensor([2, 0])
    told = {name: value[few] for name, value in told.items()}
    assert torch.allclose(
        seen.select_sequences(few).hidden_at(ids[few], positions[few], **told), expected[few], atol=1e-5
    )


def test_a_denoiser_that_gives_all_rows_gives_some():
    table = random_table()
    ids, positions = torch.tensor([[1, 2, 1], [3, 1, 1]]), torch.tensor([[2, 0], [1, 1]])
    every = table.hidden(ids)
    assert torch.equal(hidden_rows(table, ids, positions), torch.stack([every[0, [2, 0]], every[1, [1, 1]]]))
    closed = torch.tensor([[True, False, False], [False, True, False]])
    rows = NoEosDenoiser(table, closed, EOS).hidden_at(ids, positions)
    assert rows[..., -1].tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("rule", [TokenSampler(), EosTokenSampler(TokenSampler(), EOS)], ids=["each", "ending"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_uniform_order_asks_for_no_more_than_it_writes(network, view, rule, monkeypatch):
    canvas = Canvas.of(torch.full((B, L), MASK), MASK)
    whole = sample(AncestralSampler(), WholeRows(view(network)), canvas, rule)
    asked, own = [], network.hidden_at
    monkeypatch.setattr(network, "hidden_at", lambda ids, at, **kw: asked.append(at.shape[1]) or own(ids, at, **kw))
    done = sample(AncestralSampler(), view(network), canvas, rule)
    assert asked == [1] * L
    assert torch.equal(done.ids, whole.ids)
    assert torch.allclose(done.confidence, whole.confidence, atol=1e-5)


class WholeRows:
    """A denoiser that can only be asked for all rows of its sequences."""

    def __init__(self, denoiser):
        self.config, self.hidden, self.head = denoiser.config, denoiser.hidden, denoiser.head
