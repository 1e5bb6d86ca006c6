"""The judges judged: what is wrong is found, and what is new cannot land without its laws."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from unmask import laws, random, registry
from unmask.laws import exact, tables
from unmask.laws.base import chi_square
from unmask.laws.objectives import RANDOM
from unmask.laws.samplers import rare_tokens_are_drawn_at_their_rate
from unmask.objectives.base import Objective
from unmask.random import Purpose
from unmask.samplers import token_sampling as draws
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Sampler
from unmask.schedules import LogLinear


class Crooked(LogLinear):
    """A schedule whose weight is not that of its alpha."""

    name: Literal["crooked"] = "crooked"

    def raw_weight(self, t: Tensor) -> Tensor:
        return 1.1 / t


class Stranger(Sampler):
    """A sampler whose chain nobody has written down."""

    name: Literal["stranger"] = "stranger"

    def begin(self, canvas):
        return AncestralSampler().begin(canvas)

    def step(self, denoiser, state, rule):
        return AncestralSampler().step(denoiser, state, rule)


class Unheard(Objective):
    """An objective whose noise nobody has enumerated."""

    name: Literal["unheard"] = "unheard"

    def corrupt(self, batch, schedule, noise, config):
        raise AssertionError("not reached")

    def terms(self, denoiser, batch, corruption):
        raise AssertionError("not reached")


def register(monkeypatch, axis: str, member: type) -> None:
    monkeypatch.setitem(registry.AXES[axis], member.model_fields["name"].default, member)


def test_a_new_member_is_judged_by_being_registered(monkeypatch):
    register(monkeypatch, "schedule", Crooked)
    judged = [law for case in laws.cases("schedule") if isinstance(case.member, Crooked) for law in case.run()]
    broken = {law.name for law in judged if not law.passed}
    assert broken == {"dalpha is the derivative of alpha"}
    with pytest.raises(laws.LawBroken, match=r"crooked.*at most"):
        next(law for law in judged if not law.passed).require()


def test_a_new_schedule_is_in_the_laws_of_samplers_too(monkeypatch):
    register(monkeypatch, "schedule", Crooked)
    assert any(isinstance(getattr(case.member, "schedule", None), Crooked) for case in laws.cases("sampler"))


@pytest.mark.parametrize(
    ("axis", "member", "tool"),
    [("sampler", Stranger, "@output_distribution.register"), ("objective", Unheard, "@enumerate_noise.register")],
)
def test_a_new_member_without_its_enumeration_fails_with_what_to_write(monkeypatch, axis, member, tool):
    register(monkeypatch, axis, member)
    case = next(case for case in laws.cases(axis) if isinstance(case.member, member) and "json" not in case.name)
    with pytest.raises(laws.LawBroken, match=rf"{tool}\({member.__name__}\)"):
        list(case.run())


def test_run_reports_what_cannot_be_judged_as_broken(monkeypatch):
    monkeypatch.setitem(registry.AXES, "sampler", {"stranger": Stranger})
    verdicts = list(laws.run(("sampler",)))
    assert any(not law.passed and "@output_distribution.register(Stranger)" in law.description for law in verdicts)


def test_run_judges_the_schedules():
    verdicts = list(laws.run(("schedule",)))
    assert all(law.passed for law in verdicts)
    judged = {law.subject.partition("(")[0] for law in verdicts}
    assert judged == {f"schedule {name}" for name in registry.names("schedule")}


def test_a_figure_that_is_no_number_breaks_its_law():
    assert not laws.LawResult("law", "subject", math.nan, 1.0, "words").passed


def naive_draw(log_w_NV: Tensor, seeds_N: Tensor, step: int, positions_N: Tensor) -> Tensor:
    """The usual float32 Gumbel draw, log w - log(-log u), u a multiple of 2^-24."""
    token = torch.arange(log_w_NV.shape[-1])
    cell = random.bits(seeds_N[:, None], Purpose.TOKEN, step, token[None], positions_N[:, None])
    u = 1.0 - ((cell >> 8) + 1).float() * 2.0**-24
    gumbel = -torch.log(-torch.log(u + 1e-10) + 1e-10)
    return (log_w_NV + gumbel).argmax(-1)


def test_a_naive_gumbel_draw_fails_the_test_of_tails(monkeypatch):
    assert next(rare_tokens_are_drawn_at_their_rate(AncestralSampler())).value < 4
    monkeypatch.setattr(draws, "sample_tokens", naive_draw)
    assert next(rare_tokens_are_drawn_at_their_rate(AncestralSampler())).value > 20


def test_subset_recursion_is_the_mean_over_all_orders():
    table, text = tables.random_table(seed=3), torch.tensor([2, 0, 3])
    total = 0.0
    for order in itertools.permutations(range(3)):
        z, likelihood = torch.full((1, 3), 1), 1.0
        for position in order:
            likelihood *= float(exact.log_conditionals(table, z, 0.5)[0, position, text[position]].exp())
            z[0, position] = text[position]
        total += likelihood / 6
    nll = exact.any_order_nll(table, text[None], torch.ones(3, dtype=torch.bool))
    assert float(nll) == pytest.approx(-math.log(total), abs=1e-10)


def test_bound_of_the_recursion_is_the_mean_over_all_orders():
    table, text = tables.random_table(seed=3), torch.tensor([2, 0, 3])
    nats = 0.0
    for order in itertools.permutations(range(3)):
        z = torch.full((1, 3), 1)
        for position in order:
            nats -= float(exact.log_conditionals(table, z, 0.5)[0, position, text[position]]) / 6
            z[0, position] = text[position]
    found = exact.any_order(table, text[None], torch.ones(3, dtype=torch.bool))
    assert float(found.bound) == pytest.approx(nats, abs=1e-10)
    assert found.canvases == 8


@pytest.mark.parametrize("conditioned", [False, True])
def test_bound_of_the_recursion_is_the_integral_over_time(conditioned):
    table = tables.random_table(seed=2, conditioned=conditioned)
    texts, open_ = torch.tensor([[2, 0, 3], [0, 0, 2]]), torch.tensor([True, False, True])
    found = exact.any_order(table, texts, open_)
    should = exact.continuous_bound(table, texts, open_).sum(dim=1)
    assert torch.allclose(found.bound, should, atol=1e-7)
    assert bool((found.bound > found.nll).all())
    assert found.canvases == 2 * 4 * (exact.CLOCK_NODES if conditioned else 1)


@pytest.mark.parametrize("conditioned", [False, True])
def test_canvases_may_be_shown_in_chunks(conditioned, monkeypatch):
    table = tables.random_table(seed=2, conditioned=conditioned)
    text, open_ = torch.tensor([[2, 0, 3]]), torch.ones(3, dtype=torch.bool)
    whole = exact.any_order(table, text, open_)
    monkeypatch.setattr(exact, "TOKENS_AT_ONCE", 9)
    watched = tables.RecordingDenoiser(table)
    parts = exact.any_order(watched, text, open_)
    assert max(len(ids) for ids in watched.calls) == 3
    assert (float(parts.nll), float(parts.bound)) == (float(whole.nll), float(whole.bound))


@pytest.mark.parametrize("conditioned", [False, True])
def test_likelihoods_of_all_texts_sum_to_one(conditioned):
    table = tables.random_table(seed=2, conditioned=conditioned)
    texts = exact.outcomes(torch.full((3,), 1), 4, 1)
    nll = exact.any_order_nll(table, texts, torch.ones(3, dtype=torch.bool))
    assert float((-nll).exp().sum()) == pytest.approx(1.0, abs=1e-8)


def test_clock_of_a_conditioned_denoiser_is_the_limit_of_many_steps():
    table = tables.random_table(seed=2, conditioned=True)
    start, open_ = torch.full((3,), 1), torch.ones(3, dtype=torch.bool)
    texts = exact.outcomes(start, 4, 1)
    limit = (-exact.any_order_nll(table, texts, open_)).exp()
    code = (texts * 4 ** torch.arange(3)).sum(dim=1)
    gaps = []
    for steps in (64, 128):
        law = exact.step_distribution(table, start, torch.arange(steps + 1, dtype=torch.float64) / steps)
        gaps.append(law[code] - limit)
    assert float((2 * gaps[1] - gaps[0]).abs().max()) < 1e-4


def test_oracles_hold_the_conditionals_of_their_law():
    table, causal = RANDOM.oracle(False), RANDOM.oracle(True)
    joint = RANDOM.joint.view(4, 4, 4).permute(2, 1, 0)
    given = exact.log_conditionals(table, torch.tensor([[1, 2, 1]]), 0.5).exp()[0]
    assert torch.allclose(given[0], joint[:, 2].sum(dim=1) / joint[:, 2].sum())
    assert torch.allclose(given[2], joint[:, 2].sum(dim=0) / joint[:, 2].sum())
    row = causal.head(causal.hidden(torch.tensor([[1, 3, 0]]))[:, -1]).softmax(dim=-1)[0]
    assert torch.allclose(row, joint[3, 0] / joint[3, 0].sum())


def test_enumeration_refuses_what_is_too_much():
    open_ = torch.ones(9, dtype=torch.bool)
    with pytest.raises(ValueError, match="at most 8 target positions"):
        exact.any_order_nll(tables.random_table(), torch.zeros(1, 9, dtype=torch.long), open_)


def test_chi_square_knows_a_fair_die_from_a_loaded_one():
    fair = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert chi_square(torch.tensor([100, 95, 108, 99, 97, 101]), fair) > 0.5
    assert chi_square(torch.tensor([150, 95, 78, 79, 97, 101]), fair) < 1e-4
    assert chi_square(torch.tensor([1, 5]), torch.tensor([0.0, 1.0], dtype=torch.float64)) == 0.0
