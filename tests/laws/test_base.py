"""Laws find errors, new members inherit them, and a member without its enumeration is refused."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from unmask import laws, random, registry
from unmask.laws.base import chi_square
from unmask.laws.samplers import rare_tokens_are_drawn_at_their_rate
from unmask.objectives.base import Objective
from unmask.random import Purpose
from unmask.samplers import token_sampling
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Sampler
from unmask.schedules import LogLinear


class WrongWeight(LogLinear):
    """A schedule whose weight does not fit its alpha."""

    name: Literal["wrong-weight"] = "wrong-weight"

    def raw_weight(self, t: Tensor) -> Tensor:
        return 1.1 / t


class UnknownSampler(Sampler):
    """A sampler without an enumerated chain."""

    name: Literal["unknown"] = "unknown"

    def begin(self, canvas):
        return AncestralSampler().begin(canvas)

    def step(self, denoiser, state, rule):
        return AncestralSampler().step(denoiser, state, rule)


class UnknownObjective(Objective):
    """An objective without enumerated noise."""

    name: Literal["unknown"] = "unknown"

    def corrupt(self, batch, schedule, noise, config):
        raise AssertionError("not reached")

    def terms(self, denoiser, batch, corruption):
        raise AssertionError("not reached")


def register(monkeypatch, axis: str, member: type) -> None:
    monkeypatch.setitem(registry.AXES[axis], member.model_fields["name"].default, member)


def test_a_registered_member_is_checked(monkeypatch):
    register(monkeypatch, "schedule", WrongWeight)
    results = [
        result for case in laws.cases("schedule") if isinstance(case.member, WrongWeight) for result in case.run()
    ]
    broken = [result for result in results if not result.passed]
    assert {result.name for result in broken} == {"dalpha is the derivative of alpha"}
    with pytest.raises(laws.LawBroken, match=r"wrong-weight.*at most"):
        broken[0].require()
    assert any(isinstance(getattr(case.member, "schedule", None), WrongWeight) for case in laws.cases("sampler"))


@pytest.mark.parametrize(
    ("axis", "member", "tool"),
    [
        ("sampler", UnknownSampler, "@output_distribution.register"),
        ("objective", UnknownObjective, "@enumerate_noise.register"),
    ],
)
def test_a_member_without_its_enumeration_is_told_what_to_write(monkeypatch, axis, member, tool):
    register(monkeypatch, axis, member)
    case = next(case for case in laws.cases(axis) if isinstance(case.member, member) and "json" not in case.name)
    message = f"{tool}({member.__name__})"
    with pytest.raises(laws.LawBroken) as caught:
        list(case.run())
    assert message in str(caught.value)
    (result,) = case.run_safely()
    assert not result.passed
    assert message in result.description


def test_run_checks_every_schedule():
    results = list(laws.run(("schedule",)))
    assert all(result.passed for result in results)
    subjects = {result.subject.partition("(")[0] for result in results}
    assert subjects == {f"schedule {name}" for name in registry.names("schedule")}


def test_nan_breaks_a_law():
    assert not laws.LawResult("law", "subject", math.nan, 1.0, "description").passed


def naive_draw(log_w_NV: Tensor, seeds_N: Tensor, step: int, positions_N: Tensor) -> Tensor:
    """The usual float32 Gumbel draw, log w - log(-log u), u a multiple of 2^-24."""
    token = torch.arange(log_w_NV.shape[-1])
    cell = random.bits(seeds_N[:, None], Purpose.TOKEN, step, token[None], positions_N[:, None])
    u = 1.0 - ((cell >> 8) + 1).float() * 2.0**-24
    gumbel = -torch.log(-torch.log(u + 1e-10) + 1e-10)
    return (log_w_NV + gumbel).argmax(-1)


def test_a_naive_gumbel_draw_breaks_the_law_of_rare_tokens(monkeypatch):
    assert next(rare_tokens_are_drawn_at_their_rate(AncestralSampler())).value < 4
    monkeypatch.setattr(token_sampling, "sample_tokens", naive_draw)
    assert next(rare_tokens_are_drawn_at_their_rate(AncestralSampler())).value > 20


def test_chi_square_distinguishes_a_fair_die_from_a_loaded_one():
    fair = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert chi_square(torch.tensor([100, 95, 108, 99, 97, 101]), fair) > 0.5
    assert chi_square(torch.tensor([150, 95, 78, 79, 97, 101]), fair) < 1e-4
    assert chi_square(torch.tensor([1, 5]), torch.tensor([0.0, 1.0], dtype=torch.float64)) == 0.0
