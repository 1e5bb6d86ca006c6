"""The choice of a token: the law it is drawn from, what truncation keeps, and what the draw may depend on."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from unmask.laws.base import chi_square
from unmask.samplers import token_sampling as draws
from unmask.samplers.token_sampling import TokenSampler, sample_tokens

P = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
N = 20000


def shares(rule: TokenSampler, p: torch.Tensor = P, rows: int = N) -> torch.Tensor:
    """How often each token is chosen from a row of probabilities."""
    logits = p.log().expand(rows, -1) + 3.0
    tokens, _ = rule.sample(logits, torch.arange(rows), 0, torch.zeros(rows, dtype=torch.long))
    return torch.bincount(tokens, minlength=len(p))


def follows(counts: torch.Tensor, weights: torch.Tensor) -> bool:
    return chi_square(counts, weights.double() / weights.double().sum()) > 1e-3


def kept(rule: TokenSampler, p: torch.Tensor) -> list[int]:
    return rule.truncate(p.log()[None])[0].isfinite().nonzero()[:, 0].tolist()


def test_draws_follow_the_softmax():
    assert follows(shares(TokenSampler()), P)


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_temperature_sharpens_and_flattens(temperature):
    assert follows(shares(TokenSampler(temperature=temperature)), P ** (1 / temperature))


def test_temperature_zero_is_the_most_likely_token():
    tokens, confidence = TokenSampler(temperature=0).sample(P.log()[None], torch.tensor([5]), 0, torch.tensor([0]))
    assert tokens.tolist() == [0]
    assert confidence.item() == pytest.approx(0.4)


@pytest.mark.parametrize("k", [1, 2, 4, 5, 9])
def test_top_k_keeps_the_k_most_likely(k):
    rule = TokenSampler(top_k=k)
    shuffled = P[[2, 0, 4, 1, 3]]
    assert sorted(shuffled[kept(rule, shuffled)].tolist(), reverse=True) == P[:k].tolist()
    if k > 1:
        assert follows(shares(rule), torch.where(torch.arange(5) < k, P, 0.0))


@pytest.mark.parametrize(("top_p", "size"), [(0.1, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.96, 5), (1.0, 5)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, size):
    shuffled = P[[2, 0, 4, 1, 3]]
    assert sorted(shuffled[kept(TokenSampler(top_p=top_p), shuffled)].tolist(), reverse=True) == P[:size].tolist()


def test_top_p_is_of_what_temperature_and_top_k_leave():
    assert kept(TokenSampler(temperature=0.1, top_p=0.9), P) == [0]
    assert kept(TokenSampler(top_k=2, top_p=0.55), P) == [0]
    assert kept(TokenSampler(top_k=2, top_p=0.6), P) == [0, 1]
    assert follows(shares(TokenSampler(top_p=0.6)), torch.tensor([0.4, 0.3, 0.0, 0.0, 0.0]))


def test_closed_tokens_are_never_drawn():
    counts = shares(TokenSampler(), torch.tensor([0.5, 0.0, 0.5]))
    assert counts[1] == 0


def test_confidence_is_what_the_untouched_prediction_said():
    rule = TokenSampler(temperature=0.3, top_k=3)
    logits = P.log().expand(50, -1)
    tokens, confidence = rule.sample(logits, torch.arange(50), 0, torch.zeros(50, dtype=torch.long))
    assert torch.allclose(confidence, P[tokens])


def test_draw_depends_on_seed_step_and_position_alone():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    seeds, positions = torch.arange(6) + 3, torch.arange(6) * 2
    together = sample_tokens(logits, seeds, 1, positions)
    backwards = sample_tokens(logits.flip(0), seeds.flip(0), 1, positions.flip(0)).flip(0)
    alone = torch.cat([sample_tokens(logits[i : i + 1], seeds[i : i + 1], 1, positions[i : i + 1]) for i in range(6)])
    assert torch.equal(together, backwards)
    assert torch.equal(together, alone)


def test_seeds_steps_and_positions_draw_independently():
    flat = torch.zeros(N, 4)
    zero = torch.zeros(N, dtype=torch.long)
    base = sample_tokens(flat, torch.arange(N), 0, zero)
    for other in (
        sample_tokens(flat, torch.arange(N) + 1, 0, zero),
        sample_tokens(flat, torch.arange(N), 1, zero),
        sample_tokens(flat, torch.arange(N), 0, zero + 1),
    ):
        assert stats.chisquare(torch.bincount(base * 4 + other, minlength=16).numpy()).pvalue > 1e-3


def test_chunks_do_not_move_a_draw(monkeypatch):
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    whole = TokenSampler(top_p=0.8).sample(logits, torch.arange(7), 2, torch.arange(7))
    monkeypatch.setattr(draws, "ENTRIES_PER_CHUNK", {"cpu": 2 * 11})
    parts = TokenSampler(top_p=0.8).sample(logits, torch.arange(7), 2, torch.arange(7))
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)


def test_no_rows_choose_no_tokens():
    tokens, confidence = TokenSampler().sample(
        torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), 0, torch.zeros(0, dtype=torch.long)
    )
    assert tokens.shape == confidence.shape == (0,)
    assert tokens.dtype == torch.int64


def test_tail_of_a_large_vocabulary_has_its_mass():
    """A tenth of the mass on 2^13 tokens of 1e-5 each: it is drawn a tenth of the time."""
    V, rows = 1 << 13, 300
    p = torch.full((V,), 0.1 / (V - 1))
    p[7] = 0.9
    tokens = sample_tokens(p.log().expand(rows, -1), torch.arange(rows), 0, torch.zeros(rows, dtype=torch.long))
    tail = (tokens != 7).float().mean().item()
    assert abs(tail - 0.1) < 4 * math.sqrt(0.09 / rows)
    assert len(tokens[tokens != 7].unique()) == (tokens != 7).sum()


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"temperature": math.inf}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.1}]
)
def test_impossible_rules_are_refused(options):
    with pytest.raises(ValidationError):
        TokenSampler(**options)
