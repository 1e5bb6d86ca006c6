"""The learning-rate schedule and AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unmask.config import parse_recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.optimizers.base import AdamW
from unmask.optimizers.muon import Muon

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"cooldown": 0.5}, [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        ({"cooldown": 0.5, "cooldown_to": 0.2}, [1, 1, 1, 1, 1, 0.8, 0.6, 0.4]),
        ({"cooldown": 0.5, "cooldown_shape": "cosine"}, [1, 1, 1, 1, 1, 0.853553, 0.5, 0.146447]),
        ({"cooldown": 1.0}, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ({"cooldown": 1.0, "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ({"cooldown": 0.5, "warmup": 100}, [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]),
    ],
)
def test_rate_rises_in_the_warmup_and_falls_in_the_cooldown(options, shares):
    config = AdamW(**{"learning_rate": 0.5, "warmup": 0, **options})
    assert [config.rate(step, 8) for step in range(8)] == pytest.approx([0.5 * share for share in shares], rel=1e-5)


def test_the_first_step_of_adamw_by_hand_and_no_decay_of_vectors():
    start, gradient = torch.tensor([1.0, -2.0]), torch.tensor([0.3, -0.1])
    weights = {"vector": nn.Parameter(start.clone()), "matrix": nn.Parameter(start[None].clone())}
    optimizer = AdamW(learning_rate=0.01, eps=0.1, weight_decay=0.2).build(weights, CPU)
    weights["vector"].grad, weights["matrix"].grad = gradient.clone(), gradient[None].clone()
    optimizer.step()
    moved = -0.01 * torch.tensor([0.3 / 0.4, -0.1 / 0.2])
    torch.testing.assert_close(weights["vector"].detach(), start + moved)
    torch.testing.assert_close(weights["matrix"].detach()[0], start * (1 - 0.01 * 0.2) + moved)


def test_adamw_without_decay_is_one_group_in_the_order_of_the_network():
    weights = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2, 2))}
    (group,) = AdamW().build(weights, CPU).param_groups
    assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in weights.values()]


def test_a_recipe_names_its_optimizer_or_uses_adamw():
    assert parse_recipe({"optimizer": {"learning_rate": 0.1}}).optimizer == AdamW(learning_rate=0.1)
    assert parse_recipe({"optimizer": "muon"}).optimizer == Muon()
    assert read_recipe("paper/text8", ["optimizer.name=muon", "optimizer.momentum=0.9"]).optimizer == Muon(momentum=0.9)
    with pytest.raises(UnmaskError, match=r"optimizer 'adamw' has no option 'momentum'"):
        parse_recipe({"optimizer": {"momentum": 0.9}})
    with pytest.raises(UnmaskError, match=r"no optimizer named 'moun'.*Did you mean 'muon'"):
        parse_recipe({"optimizer": {"name": "moun"}})
