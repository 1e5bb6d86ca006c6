"""The axis of optimisers: rates as functions of the step, AdamW by hand, Muon against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unmask.config import parse_recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.models import DiTSpec
from unmask.models.build import LoraConfig, add_lora
from unmask.optimizers.base import AdamW
from unmask.optimizers.muon import (
    Muon,
    MuonOptimizer,
    is_hidden_matrix,
    newton_schulz,
    orthogonalise,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(("step", "share"), [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (9_999, 1.0)])
def test_rate_rises_linearly_and_stays(step: int, share: float) -> None:
    assert AdamW(learning_rate=2e-3, warmup=4).rate(step, 10_000) == pytest.approx(2e-3 * share)


def test_without_warmup_the_first_step_has_the_full_rate() -> None:
    assert AdamW(learning_rate=2e-3, warmup=0).rate(0, 10) == 2e-3


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({"cooldown": 0.5}, [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        ({"cooldown": 0.5, "cooldown_to": 0.2}, [1, 1, 1, 1, 1, 0.8, 0.6, 0.4]),
        ({"cooldown": 0.5, "cooldown_shape": "cosine"}, [1, 1, 1, 1, 1, 0.853553, 0.5, 0.146447]),
        ({"cooldown": 1.0}, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ({"cooldown": 1.0, "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ({"cooldown": 0.5, "warmup": 100}, [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]),
    ],
)
def test_rate_falls_over_the_last_share_of_the_steps(options: dict, shares: list[float]) -> None:
    config = AdamW(**{"learning_rate": 0.5, "warmup": 0, **options})
    assert [config.rate(step, 8) for step in range(8)] == pytest.approx([0.5 * share for share in shares], rel=1e-5)


def test_first_step_of_adamw_by_hand_and_no_decay_of_vectors() -> None:
    start, gradient = torch.tensor([1.0, -2.0]), torch.tensor([0.3, -0.1])
    weights = {"vector": nn.Parameter(start.clone()), "matrix": nn.Parameter(start[None].clone())}
    optimizer = AdamW(learning_rate=0.01, eps=0.1, weight_decay=0.2).build(weights, CPU)
    weights["vector"].grad, weights["matrix"].grad = gradient.clone(), gradient[None].clone()
    optimizer.step()
    moved = -0.01 * torch.tensor([0.3 / 0.4, -0.1 / 0.2])
    torch.testing.assert_close(weights["vector"].detach(), start + moved)
    torch.testing.assert_close(weights["matrix"].detach()[0], start * (1 - 0.01 * 0.2) + moved)


def test_adamw_without_decay_is_one_group_in_the_networks_order() -> None:
    weights = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2, 2))}
    (group,) = AdamW().build(weights, CPU).param_groups
    assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in weights.values()]


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 64)])
def test_orthogonal_keeps_the_vectors_and_levels_the_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.mT @ newton_schulz(matrix[None])[0] @ vh.mT
    levelled = inner.diagonal()
    assert 0.6 < float(levelled.min()) <= float(levelled.max()) < 1.3
    torch.testing.assert_close(inner, torch.diag(levelled), rtol=0, atol=1e-4)


def test_orthogonal_of_nothing_is_nothing() -> None:
    assert torch.equal(newton_schulz(torch.zeros(1, 4, 6)), torch.zeros(1, 4, 6))


def test_parts_are_made_orthogonal_one_by_one_and_company_does_not_matter() -> None:
    torch.manual_seed(1)
    fused, square, other = torch.randn(36, 12), torch.randn(12, 12), torch.randn(48, 12)
    parts = torch.cat([orthogonalise([part])[0] for part in fused.chunk(3)])
    torch.testing.assert_close(orthogonalise([fused], parts=3)[0], parts)
    together = orthogonalise([square, other, fused.chunk(3)[1]])
    torch.testing.assert_close(together[0], orthogonalise([square])[0])
    torch.testing.assert_close(together[1], orthogonalise([other])[0])
    torch.testing.assert_close(together[2], parts[12:24])


def test_a_fused_matrix_moves_as_its_parts_would() -> None:
    torch.manual_seed(4)
    start, gradient = torch.randn(36, 12), torch.randn(36, 12)
    fused, parts = nn.Parameter(start.clone()), [nn.Parameter(part.clone()) for part in start.chunk(3)]
    fused.grad = gradient.clone()
    for part, its in zip(parts, gradient.chunk(3), strict=True):
        part.grad = its.clone()
    MuonOptimizer([{"params": [fused], "parts": 3}], lr=0.1, momentum=0.9).step()
    MuonOptimizer(parts, lr=0.1, momentum=0.9).step()
    torch.testing.assert_close(fused.detach(), torch.cat([part.detach() for part in parts]))


@pytest.mark.parametrize("shape", [(32, 32), (96, 32), (32, 128)])
def test_updates_have_the_size_of_adamws(shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    (update,) = orthogonalise([torch.randn(shape)])
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
@pytest.mark.parametrize("shape", [(32, 32), (96, 32), (32, 128)])
def test_steps_are_those_of_torchs_muon(shape: tuple[int, int]) -> None:
    """torch computes in bf16 on a CPU too, and we in float32, so they agree to bf16's precision."""
    torch.manual_seed(3)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.5}
    pair = MuonOptimizer([ours], **options), torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in pair:
            optimizer.step()
    moved = theirs.detach() - start
    assert float((ours.detach() - theirs.detach()).norm() / moved.norm()) < 0.02


def network(**options: object) -> nn.Module:
    torch.manual_seed(0)
    spec = DiTSpec(**{"size": "nano", "hidden_size": 16, "layers": 2, "heads": 2, "dropout": 0.0, **options})
    return spec.build(11, 10, 8)


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else() -> None:
    names = [
        name for name, parameter in network(conditioned=True).named_parameters() if is_hidden_matrix(name, parameter)
    ]
    inner = ["attn_qkv.weight", "attn_out.weight", "mlp.0.weight", "mlp.2.weight"]
    assert names == [f"blocks.{block}.{name}" for block in range(2) for name in inner]


def test_every_parameter_is_optimised_once_and_fused_ones_in_three_parts() -> None:
    net = network(conditioned=True)
    parameters = dict(net.named_parameters())
    optimizer = Muon(weight_decay=0.1).build(parameters, CPU)
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(map(id, given)) == sorted(map(id, parameters.values()))
    fused = next(group for group in optimizer.param_groups if group.get("parts") == 3)
    assert [id(p) for p in fused["params"]] == [id(block.attn_qkv.weight) for block in net.blocks]


def pull(parameters: dict[str, nn.Parameter], step: int) -> None:
    """Give every parameter a gradient that depends on where it is."""
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters.values():
        parameter.grad = parameter.detach() + torch.randn(parameter.shape, generator=generator)


def test_the_chain_steps_as_its_halves_would_alone_at_the_rate_it_is_given() -> None:
    chained, alone = dict(network().named_parameters()), dict(network().named_parameters())
    chain = Muon(learning_rate=0.1).build(chained, CPU)
    hidden = {name: parameter for name, parameter in alone.items() if is_hidden_matrix(name, parameter)}
    rest = {name: parameter for name, parameter in alone.items() if name not in hidden}
    groups = [{"params": [p], "parts": 3 if "qkv" in name else 1} for name, p in hidden.items()]
    halves = MuonOptimizer(groups, lr=0.01, momentum=0.95), AdamW(learning_rate=0.01).build(rest, CPU)
    for group in chain.param_groups:
        group["lr"] = 0.01
    for step in range(3):
        pull(chained, step)
        chain.step()
        pull(alone, step)
        for half in halves:
            half.step()
    for name, parameter in alone.items():
        torch.testing.assert_close(chained[name], parameter, rtol=0, atol=1e-6)


def test_muon_gives_way_to_adamw_with_a_reason() -> None:
    parameters = dict(network().named_parameters())
    config = Muon(learning_rate=0.01, cooldown=0.5, ema=0.5)
    assert config.resolve(parameters) == (config, None)
    other, message = config.resolve(parameters, flattened_by="DeepSpeed")
    assert other == AdamW(learning_rate=0.001, warmup=50, cooldown=0.5, ema=0.5)
    assert message is not None
    assert "because DeepSpeed flattens matrices into vectors; using AdamW with a rate of 0.001" in message
    adapted = add_lora(network(), LoraConfig(rank=2))
    learning = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert "no matrix inside a block is trained" in str(config.resolve(learning)[1])
    assert AdamW().resolve(parameters, flattened_by="DeepSpeed") == (AdamW(), None)


def test_a_recipe_names_its_optimizer_or_uses_adamw() -> None:
    assert parse_recipe({"optimizer": {"learning_rate": 0.1}}).optimizer == AdamW(learning_rate=0.1)
    assert parse_recipe({"optimizer": "muon"}).optimizer == Muon()
    assert read_recipe("paper/text8", ["optimizer.name=muon", "optimizer.momentum=0.9"]).optimizer == Muon(momentum=0.9)
    with pytest.raises(UnmaskError, match=r"optimizer 'adamw' has no option 'momentum'"):
        parse_recipe({"optimizer": {"momentum": 0.9}})
    with pytest.raises(UnmaskError, match=r"no optimizer named 'moun'.*Did you mean 'muon'"):
        parse_recipe({"optimizer": {"name": "moun"}})
