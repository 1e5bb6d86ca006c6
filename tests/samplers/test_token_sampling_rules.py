"""min-p and hybrid rules: what they cut, when they are greedy, and what a user is told about impossible ones."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.constraints import Allowed, Vocabulary, Words, compile_constraints
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.laws.tables import ConstantDenoiser, random_causal_table, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.token_sampling import TokenSampler

P = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
MASK = 1


def kept(rule: TokenSampler, late: torch.Tensor | None = None) -> list[int]:
    return rule.truncate(P.log()[None], late)[0].isfinite().nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("min_p", "size"), [(0.0, 5), (0.1, 5), (0.2, 4), (0.26, 3), (0.7, 2), (0.8, 1), (1.0, 1)])
def test_min_p_keeps_what_has_its_share_of_the_likeliest(min_p, size):
    assert kept(TokenSampler(min_p=min_p)) == list(range(size))


def test_min_p_comes_after_temperature():
    """At temperature 1/2 the weights are squares: 0.15 is 0.14 of 0.4, and no longer 0.375."""
    assert kept(TokenSampler(min_p=0.3)) == [0, 1, 2]
    assert kept(TokenSampler(min_p=0.3, temperature=0.5)) == [0, 1]


def test_min_p_comes_after_top_p():
    """A mass of 0.75 is that of three tokens; were min-p first, of the two that it leaves of all."""
    assert kept(TokenSampler(top_p=0.75, min_p=0.3)) == [0, 1, 2]
    assert kept(TokenSampler(top_p=0.75, min_p=0.5)) == [0, 1]
    assert kept(TokenSampler(top_k=4, top_p=0.8, min_p=0.26)) == [0, 1, 2]


@pytest.mark.parametrize(("temperature", "law"), [(5e-324, [1, 0, 0]), (1e-40, [1, 0, 0]), (1e300, [0.5, 0.5, 0])])
def test_temperatures_beyond_float32_have_the_law_of_their_limit(temperature, law):
    """What cannot be stays so: minus infinity over infinity is no number."""
    log_p = torch.tensor([[0.7, 0.3, 0.0]]).log()
    assert TokenSampler(temperature=temperature).truncate(log_p).softmax(dim=1)[0].tolist() == law


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e40, 1e300])
def test_constraints_are_kept_at_any_temperature(mdlm, temperature):
    for text in mdlm.generate(4, length=8, constraint=Words("cat"), temperature=temperature):
        assert "cat" in text


def test_a_rule_is_greedy_above_its_confidence_only():
    assert kept(TokenSampler(greedy_above=0.39)) == [0]
    assert kept(TokenSampler(greedy_above=0.4000001)) == [0, 1, 2, 3, 4]
    assert kept(TokenSampler(greedy_above=0.5, temperature=0.1, top_k=2)) == [0, 1], (
        "the confidence is the untouched one"
    )


def test_each_row_is_greedy_by_itself():
    log_p = torch.stack([P, torch.full((5,), 0.2)]).log()
    weights = TokenSampler(greedy_above=0.3).truncate(log_p, torch.tensor([False, False]))
    assert weights.isfinite().sum(dim=1).tolist() == [1, 5]
    weights = TokenSampler(greedy_above=0.5).truncate(log_p, torch.tensor([False, True]))
    assert weights.isfinite().sum(dim=1).tolist() == [5, 1]


@pytest.mark.parametrize(
    ("tail", "first"), [(0.0, [10, 7, 0]), (0.1, [9, 7, 0]), (0.3, [7, 5, 0]), (0.5, [5, 4, 0]), (1.0, [0, 0, 0])]
)
def test_tail_is_the_last_fraction_of_the_calls(tail, first):
    assert TokenSampler(greedy_tail=tail).greedy_from(torch.tensor([10, 7, 0])).tolist() == first
    assert TokenSampler(greedy_tail=0.29).greedy_from(torch.tensor([100])).tolist() == [71], "0.29 * 100 is below 29"
    assert TokenSampler().greedy_from(torch.tensor([10])) is None


def shares_by_order(sampler, denoiser, rule: TokenSampler) -> torch.Tensor:
    """[8] how often each of eight calls behind a prompt wrote the likeliest token, over many sequences."""
    ids = torch.cat([torch.full((400, 3), 2), torch.full((400, 8), MASK)], dim=1)
    state = sample(sampler, denoiser, Canvas.of(ids, MASK), rule)
    hit = (state.ids == 0).float()
    return torch.stack([hit[state.order == call].mean() for call in range(8)])


@pytest.mark.parametrize("sampler", [AncestralSampler(), AutoregressiveSampler()])
def test_the_last_calls_are_greedy_and_the_others_are_not(sampler):
    row = torch.tensor([0.5, 0.1, 0.3, 0.2], dtype=torch.float64).log()
    shares = shares_by_order(sampler, ConstantDenoiser(row, MASK), TokenSampler(greedy_tail=0.375))
    assert (shares[5:] == 1).all()
    assert ((shares[:5] - 0.5).abs() < 4 * math.sqrt(0.25 / 400)).all()


def test_the_tail_of_a_sequence_is_its_own():
    """A short prompt beside a long one: both write the same as alone."""
    ids = torch.tensor([[MASK, MASK, MASK], [2, 3, MASK], [MASK, 2, MASK]])
    rule = TokenSampler(greedy_tail=0.5)
    for sampler, table in ((AncestralSampler(), random_table()), (AutoregressiveSampler(), random_causal_table())):
        together = sample(sampler, table, Canvas.of(ids, MASK), rule).ids
        for row in range(3):
            alone = sample(sampler, table, Canvas.of(ids[row : row + 1], MASK, seed=row), rule).ids
            assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize(
    "rule", [TokenSampler(greedy_tail=1.0), TokenSampler(greedy_above=0.0), TokenSampler(min_p=1.0)]
)
def test_rules_that_are_always_greedy_are_temperature_zero(rule):
    canvas = Canvas.of(torch.full((20, 3), MASK), MASK)
    greedy = sample(AncestralSampler(), random_table(), canvas, TokenSampler(temperature=0)).ids
    assert torch.equal(sample(AncestralSampler(), random_table(), canvas, rule).ids, greedy)


@pytest.mark.parametrize(
    "rule", [TokenSampler(greedy_tail=1.0), TokenSampler(greedy_above=0.0), TokenSampler(min_p=1.0)]
)
def test_constraints_are_kept_by_greedy_rules(rule):
    """What the rule would take for sure is given up where it leaves no match, and kept where it does not."""
    automaton = compile_constraints([Words([2, 3])], Vocabulary(None, 4, MASK), [])
    joint = ConstrainedTokenSampler(rule, automaton, torch.device("cpu"))
    canvas = Canvas.of(torch.full((40, 3), MASK), MASK)
    for row in sample(AncestralSampler(), random_table(), canvas, joint).ids.tolist():
        assert [2, 3] in (row[:2], row[1:])
    free = ConstrainedTokenSampler(
        rule, compile_constraints([Allowed([0, 2, 3])], Vocabulary(None, 4, MASK), []), torch.device("cpu")
    )
    plain = sample(AncestralSampler(), random_table(), canvas, rule).ids
    assert torch.equal(sample(AncestralSampler(), random_table(), canvas, free).ids, plain)
