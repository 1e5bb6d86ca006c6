"""Drawing a token: its distribution, truncation, greedy parts, and what a draw depends on."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from unmask.constraints import Allowed, Vocabulary, Words, compile_constraints
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.laws.base import chi_square
from unmask.laws.tables import ConstantDenoiser, random_causal_table, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.token_sampling import TokenSampler, sample_tokens

P = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
N = 20000
MASK = 1


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2),
        ({"temperature": 1.7}, P ** (1 / 1.7)),
        ({"top_k": 2}, torch.tensor([0.4, 0.3, 0.0, 0.0, 0.0])),
        ({"top_p": 0.6}, torch.tensor([0.4, 0.3, 0.0, 0.0, 0.0])),
        ({"min_p": 0.3}, torch.tensor([0.4, 0.3, 0.15, 0.0, 0.0])),
    ],
)
def test_draws_follow_the_truncated_distribution(options, weights):
    tokens, _ = TokenSampler(**options).sample(P.log().expand(N, -1) + 3.0, torch.arange(N), 0, torch.zeros(N).long())
    counts = torch.bincount(tokens, minlength=len(P))
    assert counts[weights == 0].sum() == 0
    assert chi_square(counts, weights.double() / weights.double().sum()) > 1e-3


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        *(({"top_k": k}, min(k, 5)) for k in (1, 2, 4, 5, 9)),
        *(({"top_p": p}, n) for p, n in ((0.1, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.96, 5), (1.0, 5))),
        *(({"min_p": p}, n) for p, n in ((0.0, 5), (0.1, 5), (0.2, 4), (0.26, 3), (0.7, 2), (0.8, 1), (1.0, 1))),
        ({"temperature": 0.1, "top_p": 0.9}, 1),
        ({"top_k": 2, "top_p": 0.55}, 1),
        ({"top_k": 2, "top_p": 0.6}, 2),
        ({"temperature": 0.5, "min_p": 0.3}, 2),
        ({"top_p": 0.75, "min_p": 0.3}, 3),
        ({"top_p": 0.75, "min_p": 0.5}, 2),
        ({"top_k": 4, "top_p": 0.8, "min_p": 0.26}, 3),
        ({"greedy_above": 0.39}, 1),
        ({"greedy_above": 0.4000001}, 5),
        ({"greedy_above": 0.5, "temperature": 0.1, "top_k": 2}, 2),
    ],
)
def test_truncation_keeps_the_most_likely_tokens(options, tokens):
    """Temperature, top-k, top-p and min-p apply in this order; `greedy_above` reads the unmodified probability."""
    shuffled = P[[2, 0, 4, 1, 3]]
    left = TokenSampler(**options).truncate(shuffled.log()[None])[0].isfinite()
    assert sorted(shuffled[left].tolist(), reverse=True) == P[:tokens].tolist()


def test_confidence_is_the_unmodified_probability():
    for options in ({"temperature": 0.3, "top_k": 3}, {"temperature": 0}):
        tokens, confidence = TokenSampler(**options).sample(
            P.log().expand(50, -1), torch.arange(50), 0, torch.zeros(50, dtype=torch.long)
        )
        assert torch.allclose(confidence, P[tokens])
    assert (tokens == 0).all()


def test_a_draw_depends_on_seed_step_and_position_alone():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    seeds, positions = torch.arange(6) + 3, torch.arange(6) * 2
    together = sample_tokens(logits, seeds, 1, positions)
    alone = [sample_tokens(logits[i : i + 1], seeds[i : i + 1], 1, positions[i : i + 1]) for i in range(6)]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together, sample_tokens(logits, seeds, torch.tensor(1), positions))


def test_seeds_steps_and_positions_draw_independently():
    flat, seeds, zero = torch.zeros(N, 4), torch.arange(N), torch.zeros(N, dtype=torch.long)
    base = sample_tokens(flat, seeds, 0, zero)
    for other in ((seeds + 1, 0, zero), (seeds, 1, zero), (seeds, 0, zero + 1)):
        pairs = torch.bincount(base * 4 + sample_tokens(flat, *other), minlength=16)
        assert stats.chisquare(pairs.numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("above", "greedy", "left"),
    [(0.3, [False, False], [1, 5]), (0.3, [False, True], [1, 1]), (0.5, [False, True], [5, 1])],
)
def test_each_row_is_greedy_on_its_own(above, greedy, left):
    log_p = torch.stack([P, torch.full((5,), 0.2)]).log()
    weights = TokenSampler(greedy_above=above).truncate(log_p, torch.tensor(greedy))
    assert weights.isfinite().sum(dim=1).tolist() == left


@pytest.mark.parametrize(
    ("tail", "calls", "first"),
    [
        *((t, [10, 7, 0], f) for t, f in ((0.0, [10, 7, 0]), (0.1, [9, 7, 0]), (0.3, [7, 5, 0]), (1.0, [0, 0, 0]))),
        (0.29, [100], [71]),
    ],
)
def test_the_greedy_tail_is_the_last_fraction_of_the_calls(tail, calls, first):
    assert TokenSampler(greedy_tail=tail).greedy_from(torch.tensor(calls)).tolist() == first
    assert TokenSampler().greedy_from(torch.tensor(calls)) is None


@pytest.mark.parametrize("sampler", [AncestralSampler(), AutoregressiveSampler()], ids=repr)
def test_only_the_last_calls_are_greedy(sampler):
    row = torch.tensor([0.5, 0.1, 0.3, 0.2], dtype=torch.float64).log()
    ids = torch.cat([torch.full((400, 3), 2), torch.full((400, 8), MASK)], dim=1)
    state = sample(sampler, ConstantDenoiser(row, MASK), Canvas.of(ids, MASK), TokenSampler(greedy_tail=0.375))
    top = torch.stack([(state.ids == 0)[state.order == call].float().mean() for call in range(8)])
    assert (top[5:] == 1).all()
    assert ((top[:5] - 0.5).abs() < 4 * math.sqrt(0.25 / 400)).all()


def test_sequences_have_their_own_greedy_tails():
    ids = torch.tensor([[MASK, MASK, MASK], [2, 3, MASK], [MASK, 2, MASK]])
    tokens = TokenSampler(greedy_tail=0.5)
    for sampler, table in ((AncestralSampler(), random_table()), (AutoregressiveSampler(), random_causal_table())):
        together = sample(sampler, table, Canvas.of(ids, MASK), tokens).ids
        for row in range(3):
            alone = sample(sampler, table, Canvas.of(ids[row : row + 1], MASK, seed=row), tokens).ids
            assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize(
    "tokens", [TokenSampler(greedy_tail=1.0), TokenSampler(greedy_above=0.0), TokenSampler(min_p=1.0)], ids=repr
)
def test_always_greedy_is_temperature_zero(tokens):
    """Under a constraint, too, unless the greedy choice leaves no match."""
    canvas, vocabulary = Canvas.of(torch.full((40, 3), MASK), MASK), Vocabulary(None, 4, MASK)
    greedy = sample(AncestralSampler(), random_table(), canvas, TokenSampler(temperature=0)).ids
    assert torch.equal(sample(AncestralSampler(), random_table(), canvas, tokens).ids, greedy)
    for constraint in (Allowed([0, 2, 3]), Words([2, 3])):
        automaton = compile_constraints([constraint], vocabulary, [])
        joint = ConstrainedTokenSampler(tokens, automaton, torch.device("cpu"))
        done = sample(AncestralSampler(), random_table(), canvas, joint).ids
        if constraint == Words([2, 3]):
            assert all([2, 3] in (row[:2], row[1:]) for row in done.tolist())
        else:
            assert torch.equal(done, greedy)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"min_p": math.nan},
        {"greedy_tail": 1.1},
        {"greedy_above": -0.5},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValidationError):
        TokenSampler(**options)
