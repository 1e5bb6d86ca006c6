"""Dropout, GELU, norms and position embeddings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from unmask.models import DiTSpec, dit
from unmask.models import inference as compiling
from unmask.models.attention import bidirectional_mask, rotary_angles
from unmask.models.layers import Dropout, Gelu, LayerNorm, cpu_dropout, draw_dropout_seeds, hashed_dropout_mask

V, L = 11, 12


def test_a_compiled_gelu_computes_the_same(monkeypatch):
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    plain = Gelu()(x)
    assert torch.equal(plain, F.gelu(x, approximate="tanh"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(Gelu()(x), plain, rtol=1e-12, atol=1e-12)


def test_a_norm_rounds_once():
    norm = LayerNorm(32, bias=True)
    torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    x = 3 * torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = F.layer_norm(x.float(), (32,), norm.weight, norm.bias)
    assert torch.equal(norm(x), exact.bfloat16())


# ---- dropout --------------------------------------------------------------------------------------------------------


def test_dropout_scales_kept_values_and_is_off_outside_training():
    x = torch.ones(200, 200)
    layer = Dropout(0.25)
    for out in (layer(x), layer(x, draw_dropout_seeds(device=x.device))):
        assert sorted(out.unique().tolist()) == pytest.approx([0.0, 4 / 3])
        assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    assert not Dropout(1.0)(x, draw_dropout_seeds(device=x.device)).any()
    assert not Dropout(1.0)(x).any()
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x


def hashed(x, p):
    return hashed_dropout_mask(x, p, draw_dropout_seeds(device=x.device))


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("draw", [hashed, lambda x, p: cpu_dropout(torch.ones_like(x), p) > 0], ids=["gpu", "cpu"])
def test_masks_are_independent_and_fair_in_every_row_and_column(draw, p):
    torch.manual_seed(0)
    masks = torch.stack([draw(torch.empty(256, 128), p) for _ in range(16)]).double()
    spread = (p * (1 - p)) ** 0.5
    assert masks.mean().item() == pytest.approx(1 - p, abs=4 * spread / masks.numel() ** 0.5)
    for dimension in (0, 1, 2):
        expected = spread / masks.shape[dimension] ** 0.5
        assert masks.mean(dim=dimension).std().item() == pytest.approx(expected, rel=0.1)
    one, other = masks[0] - (1 - p), masks[1] - (1 - p)
    assert abs((one * other).mean().item()) < 4 * spread**2 / one.numel() ** 0.5
    assert abs((one[:, 1:] * one[:, :-1]).mean().item()) < 4 * spread**2 / one.numel() ** 0.5


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4)])
def test_cpu_dropout_supports_any_shape_and_its_gradient(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    out = cpu_dropout(x, 0.3)
    out.sum().backward()
    assert torch.allclose(out, x * x.grad)
    assert torch.allclose(x.grad[x.grad > 0], torch.tensor(1 / 0.7), rtol=1e-4)


def test_a_compiled_block_uses_the_same_mask_in_the_backward_pass(monkeypatch):
    """However much of the forward pass is recomputed there."""
    monkeypatch.setattr(compiling, "ACTIVATION_MEMORY_BUDGET", 0.3)
    torch._dynamo.reset()
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        network = DiTSpec(size="nano", hidden_size=32, layers=1, heads=2, dropout=0.5).build(11, 10, 16)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        if compiled:
            compiling.compile_blocks(network)
        block, x = network.train().blocks[0], torch.linspace(-9, 9, 1024).view(2, 16, 32).sin().requires_grad_()
        rotary, seeds = rotary_angles(16, 16, 1e4, x.device), torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
        out = block(x, None, rotary, bidirectional_mask(None), seeds=seeds)
        (out * torch.arange(32.0)).sum().backward()
        found.append([out.detach(), x.grad, *(parameter.grad for parameter in block.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm()


@pytest.fixture
def seeds_seen(monkeypatch):
    """A network that takes itself for compiled on a GPU, and the seeds that its dropouts receive."""
    seen: list[Any] = []

    def counted(*shape, device):
        return torch.arange(2 * math.prod(shape)).view(*shape, 2)

    monkeypatch.setattr(Dropout, "forward", lambda self, x, seeds=None: seen.append(seeds) or x)
    monkeypatch.setattr(dit, "draw_dropout_seeds", counted)
    network = DiTSpec(size="nano", hidden_size=32, layers=3, heads=2, dropout=0.5).build(V, 10, L).train()
    decide = network._dropout_seeds
    monkeypatch.setattr(network, "_dropout_seeds", lambda device: decide(torch.device("cuda")))
    network.fused = True
    return network, seen


@pytest.mark.parametrize("positions", [None, torch.tensor([[1, 3]])], ids=["all", "some"])
def test_every_branch_of_every_block_has_different_seeds(seeds_seen, positions):
    network, seen = seeds_seen
    ids = torch.zeros(1, L, dtype=torch.int64)
    network.hidden(ids) if positions is None else network.hidden_at(ids, positions)
    assert [seeds.tolist() for seeds in seen] == [[2 * i, 2 * i + 1] for i in range(6)]


@pytest.mark.parametrize("attribute", ["training", "fused"])
def test_seeds_are_drawn_only_for_a_compiled_network_in_training(seeds_seen, attribute):
    network, seen = seeds_seen
    setattr(network, attribute, False)
    network.hidden(torch.zeros(1, L, dtype=torch.int64))
    assert seen == [None] * 6


# ---- absolute positions ---------------------------------------------------------------------------------------------

BLANK = torch.full((1, L), 10)


def network(absolute: bool):
    torch.manual_seed(0)
    net = DiTSpec(hidden_size=32, layers=2, heads=2, dropout=0.0, absolute_positions=absolute).build(V, 10, L)
    for name, parameter in net.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3) if name != "position_embed.gain" else parameter.data.fill_(1.0)
    return net.eval().requires_grad_(False)


def test_only_absolute_positions_distinguish_the_masks_of_a_blank_canvas():
    rows = network(False).hidden(BLANK)[0]
    assert torch.allclose(rows, rows[:1].expand_as(rows), atol=1e-5)
    rows = network(True).hidden(BLANK)[0]
    assert float((torch.cdist(rows, rows) + 9 * torch.eye(L)).min()) > 0.05
