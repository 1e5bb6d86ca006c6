"""Absolute positions: what a canvas without a token tells the network, and what it learns from that."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask import laws
from unmask.convert.exporting import published_state
from unmask.errors import UnmaskError
from unmask.models import DiTSpec
from unmask.models.build import CheckpointSpec
from unmask.pipeline import load

V, MASK, L = 12, 11, 10
V_BYTES, MASK_BYTE = 258, 257
BLANK = torch.full((1, L), MASK)


def network(absolute: bool, gain: float = 1.0):
    torch.manual_seed(0)
    spec = DiTSpec(hidden_size=32, layers=2, heads=2, dropout=0.0, absolute_positions=absolute)
    net = spec.build(V, MASK, L)
    for name, parameter in net.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3) if name != "position_embed.gain" else parameter.data.fill_(gain)
    return net.eval().requires_grad_(False)


def test_to_rotary_positions_alone_all_masks_of_a_blank_canvas_are_the_same():
    rows = network(False).hidden(BLANK)[0]
    assert torch.allclose(rows, rows[:1].expand_as(rows), atol=1e-5)
    rows = network(True).hidden(BLANK)[0]
    apart = torch.cdist(rows, rows) + 9 * torch.eye(L)
    assert float(apart.min()) > 0.1


def test_a_fresh_network_does_not_look_at_them_yet():
    ids = torch.randint(0, V, (3, L))
    fresh = DiTSpec(hidden_size=32, layers=2, heads=2, absolute_positions=True).build(V, MASK, L)
    assert not fresh.position_embed.gain.any()
    assert torch.equal(network(True, gain=0.0).hidden(ids), network(False).hidden(ids))


def test_they_count_from_the_beginning_of_the_row_whatever_is_behind():
    net, ids = network(True), torch.randint(0, V, (3, L))
    real = torch.arange(L) < 6
    padded = net.hidden(ids, attention_mask=real.expand(3, -1))[:, :6]
    assert torch.allclose(padded, net.hidden(ids[:, :6]), atol=1e-5)
    at = torch.tensor([[1, 4], [0, 9], [3, 3]])
    chosen = net.hidden(ids).gather(1, at[:, :, None].expand(-1, -1, 32))
    assert torch.allclose(net.hidden_at(ids, at), chosen, atol=1e-5)


@pytest.mark.parametrize("absolute", [True, False])
def test_what_stands_where_is_learnt_from_masks_alone(absolute):
    """Token i at position i: with absolute positions a blank canvas says it all, without them nothing."""
    torch.manual_seed(1)
    net = DiTSpec(hidden_size=32, layers=2, heads=2, dropout=0.0, absolute_positions=absolute).build(V, MASK, L)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        loss = torch.nn.functional.cross_entropy(net(BLANK).logits[0], torch.arange(L))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05 if absolute else float(loss.detach()) > 2.2


@pytest.mark.parametrize("case", laws.cases_of("model", DiTSpec(size="nano", absolute_positions=True)), ids=str)
def test_the_laws_of_networks_hold(case):
    for law in case.run():
        law.require()


def test_a_trained_network_is_given_them_and_stays_what_it_was(tmp_path):
    folder = make_checkpoint(tmp_path / "model")
    old = load(folder, device="cpu").denoiser
    new = CheckpointSpec(path=str(folder), absolute_positions=True).build(V_BYTES, MASK_BYTE, LENGTH)
    assert not new.position_embed.gain.any()
    ids = torch.randint(0, V_BYTES, (2, LENGTH))
    assert torch.equal(new.eval().hidden(ids), old.hidden(ids))


def test_they_are_saved_and_not_exported(tmp_path):
    folder = make_checkpoint(tmp_path / "model", absolute_positions=True)
    lm = load(folder, device="cpu")
    assert bool(lm.denoiser.position_embed.gain.any())
    assert all(len(text) for text in lm.generate(2, length=16, steps=4))
    with pytest.raises(UnmaskError, match="knows absolute positions"):
        published_state(lm.denoiser)
