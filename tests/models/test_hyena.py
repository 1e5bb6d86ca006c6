"""Hyena: the long convolution and the operator against their definitions, the filters, the cache and adapters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.published import randomise
from unmask import registry
from unmask.models import CausalHyena, Hyena
from unmask.models.build import LoraConfig, add_lora, merged_state_dict
from unmask.models.hyena import FAST, SLOW, HyenaBlock, ImplicitFilter, long_convolution
from unmask.models.inference import cast_trunk_to_bf16

torch.set_num_threads(1)

V, MASK, L, D = 7, 5, 12, 8


def build(**options: Any) -> Any:
    torch.manual_seed(0)
    spec = registry.build("model", {"name": "hyena", "hidden_size": D, "layers": 2, **options})
    return randomise(spec.build(V, MASK, L))


def some_ids(rows: int = 2) -> Tensor:
    return torch.randint(0, V, (rows, L), generator=torch.Generator().manual_seed(1))


def direct_convolution(values: Tensor, filters: Tensor) -> Tensor:
    """The sum over pairs of positions, in float64."""
    outputs = torch.zeros_like(values, dtype=torch.float64)
    for i in range(values.shape[1]):
        for j in range(values.shape[1]):
            if j <= i:
                outputs[:, i] += filters[0, :, i - j].double() * values[:, j].double()
            elif len(filters) > 1:
                outputs[:, i] += filters[1, :, j - i].double() * values[:, j].double()
    return outputs


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 8, 13])
def test_the_long_convolution_equals_the_sum_over_pairs(directions: int, length: int) -> None:
    values = torch.randn(2, length, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    filters = torch.randn(directions, 3, length, generator=torch.Generator().manual_seed(1), requires_grad=True)
    found, expected = long_convolution(values, filters), direct_convolution(values, filters)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    for one, other in zip(
        *(torch.autograd.grad((y * weights).sum(), (values, filters)) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_the_operator_of_order_two(causal: bool) -> None:
    """Three projections with a short convolution each; gate * conv(value * inner), then an MLP."""
    network = build(causal=causal)
    block: HyenaBlock = network.blocks[0]
    x = torch.randn(2, L, D, generator=torch.Generator().manual_seed(0))
    inputs = block.in_proj(block.norm1(x))
    short = torch.zeros_like(inputs)
    for i in range(L):
        for tap in range(3):
            j = i + tap - (2 if causal else 1)
            if 0 <= j < L:
                short[:, i] += block.short_conv.weight[:, 0, tap] * inputs[:, j]
    gate, inner, value = (short + block.short_conv.bias).split(D, dim=-1)
    product = value * inner
    mixed = direct_convolution(product, block.filter(L)).float() + block.skip * product
    y = x + block.out_proj(mixed * gate)
    expected = y + block.mlp(block.norm2(y))
    torch.testing.assert_close(block(x, None, None), expected, rtol=1e-4, atol=1e-4)


def test_filters_are_functions_of_the_distance_with_a_decay_of_their_channel() -> None:
    filters: ImplicitFilter = build().blocks[0].filter
    short, long = filters(5), filters(3 * L)
    assert short.shape == (2, D, 5)
    assert torch.equal(long[..., :5], short), "they do not depend on the length"
    distance = 7
    t = torch.tensor(distance / L, dtype=torch.float64)
    angles = 2 * math.pi * t * torch.tensor([1e-4, 1.0], dtype=torch.float64)
    features = torch.cat([t[None], angles.cos(), angles.sin()])
    for layer in filters.layers:
        features = torch.sin(filters.frequency * F.linear(features, layer.weight.double(), layer.bias.double()))
    expected = F.linear(features, filters.out.weight.double()).view(2, D)
    expected = expected * torch.exp(-t * torch.linspace(SLOW, FAST, D, dtype=torch.float64))
    torch.testing.assert_close(long[..., distance].double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("causal", [False, True])
def test_which_tokens_a_position_reads(causal: bool) -> None:
    network, ids = build(causal=causal), some_ids(1)
    embedded = network.vocab_embed(ids).detach().requires_grad_()
    network._embed = lambda _: embedded
    for position in (0, 4, L - 1):
        (gradient,) = torch.autograd.grad(network.hidden(ids)[0, position].sum(), embedded)
        # the FFT spreads rounding errors over all positions
        read = gradient[0].abs().amax(dim=-1) > 1e-4 * gradient.abs().max()
        assert read.tolist() == [not causal or j <= position for j in range(L)]


@pytest.mark.parametrize("pieces", [[1] * L, [3, 1, 8], [7, 5]])
def test_filters_are_computed_for_more_tokens_than_were_read(pieces: list[int]) -> None:
    """A step recomputes the filters only if the kept ones are too short, and gives the logits of the parallel form."""
    network, ids = build(causal=True), some_ids()
    calls: list[int] = []
    network.blocks[0].filter.register_forward_pre_hook(lambda module, inputs: calls.append(inputs[0]))
    cache = network.new_cache()
    rows = [network.hidden(piece, past_key_values=cache) for piece in ids.split(pieces, dim=1)]
    assert len(calls) <= 1 + math.ceil(math.log2(L))
    torch.testing.assert_close(torch.cat(rows, dim=1), network.hidden(ids), rtol=1e-5, atol=2e-5)


def test_adapters_leave_the_filters_alone() -> None:
    network, ids = build(), some_ids()
    before = network.hidden(ids)
    adapted = add_lora(network, LoraConfig(rank=2))
    torch.testing.assert_close(adapted.hidden(ids), before)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert any("in_proj" in name for name in trained)
    assert not any("filter" in name for name in trained)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    merged = Hyena(network.config).eval()
    merged.load_state_dict(merged_state_dict(adapted))
    torch.testing.assert_close(merged.hidden(ids), adapted.hidden(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_a_bf16_trunk_keeps_its_filters(causal: bool, tmp_path: Path) -> None:
    network = build(causal=causal)
    expected = network.blocks[0].filter(L)
    cast_trunk_to_bf16(network)
    assert network.blocks[0].in_proj.weight.dtype == torch.bfloat16
    assert torch.equal(network.blocks[0].filter(L), expected)
    network.save_pretrained(tmp_path)
    opened = type(network).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(opened.blocks[0].filter(L), expected)


def test_the_spec_builds_both_directions() -> None:
    assert isinstance(build(), Hyena)
    assert isinstance(build(causal=True), CausalHyena)
