"""Bounds: independent of the batch, honest errors, and never below the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unmask.errors import UnmaskError
from unmask.laws.exact import any_order_nll
from unmask.likelihood import OFFSETS, Bound, Evaluation, agree, estimate_bound
from unmask.objectives.subs import MaskCount, Subs

TEXTS = ["abc", "hello, world", "one more text of some length"]


def test_batch_size_does_not_move_a_bound(mdlm):
    one = mdlm.score_details(TEXTS, precision=None, batch_size=1, steps=(4,))
    other = mdlm.score_details(TEXTS, precision=None, batch_size=7, steps=(4,))
    for name in one.bounds:
        assert one.bounds[name].nats == pytest.approx(other.bounds[name].nats, rel=1e-6)
    assert one.discrete[4].nats == pytest.approx(other.discrete[4].nats, rel=1e-6)


def test_an_exact_likelihood_has_no_steps(ar):
    result = ar.score_details(TEXTS, precision=None, steps=(4,))
    assert result.discrete == {}
    assert list(result.bounds) == ["ar"]


def test_the_two_estimators_agree_and_are_above_the_exact_likelihood(mdlm):
    text = "qu1ck"
    result = mdlm.score_details(text, precision=0.01)
    assert result.disagreement is None
    ids = torch.tensor([[*text.encode(), mdlm.tokenizer.eos_token_id]])
    exact = float(any_order_nll(mdlm.denoiser, ids, torch.ones(6, dtype=torch.bool)))
    for bound in result.bounds.values():
        assert bound.nats >= exact - 4 * bound.mc_stderr
        assert bound.tokens == 6
    assert result.headline.error("bits_per_token") <= 0.01


def test_the_other_estimators_get_a_quarter_of_the_passes_and_at_least_one(mdlm):
    result = mdlm.score_details("qu1ck", precision=0.02, steps=(4,))
    passes = result.headline.draws // OFFSETS
    assert passes >= 8
    assert result.bounds["continuous"].draws == result.discrete[4].draws == OFFSETS * passes // 4
    assert {bound.draws for bound in mdlm.score_details("qu1ck", precision=None).bounds.values()} == {OFFSETS}


def test_progress_hears_of_every_draw_of_every_try(mdlm):
    heard = []
    result = mdlm.score_details("qu1ck", precision=0.02, progress=heard.append)
    assert sum(heard) > sum(bound.draws for bound in result.bounds.values())
    heard.clear()
    result = mdlm.score_details("qu1ck", precision=None, progress=heard.append)
    assert sum(heard) == sum(bound.draws for bound in result.bounds.values())


def test_the_monte_carlo_error_is_the_spread_of_repeated_estimates(mdlm):
    rows = mdlm.text_processor.scored_rows(TEXTS, None)
    repeats = [
        estimate_bound(mdlm.denoiser, MaskCount(), mdlm.config.schedule, rows, seed=seed, offsets=8)
        for seed in range(40)
    ]
    spread = np.std([one.nats for one in repeats], ddof=1)
    claimed = math.sqrt(np.mean([one.mc_stderr**2 for one in repeats]))
    assert 0.6 < spread / claimed < 1.6


def test_given_text_is_read_but_not_counted(mdlm):
    joint = mdlm.score("cd", given="ab", precision=None)
    assert joint.tokens == 3
    assert joint.bytes == joint.characters == 2
    other = mdlm.score("cd", given="xy", precision=None)
    assert joint.nats != other.nats


def test_the_autoregressive_likelihood_is_exact_and_obeys_the_chain_rule(ar):
    whole = ar.score("abcdef")
    assert whole.exact
    assert whole.stderr == 0
    bos, eos = ar.denoiser.config.bos_token_id, ar.tokenizer.eos_token_id
    ids = torch.tensor([[bos, *b"abcdef", eos]])
    logp = ar.denoiser(ids[:, :-1]).logits.detach().log_softmax(-1).gather(2, ids[:, 1:, None])
    assert whole.nats == pytest.approx(-float(logp.sum()), rel=1e-5)
    after = ar.score("def", given="abc")
    assert after.nats == pytest.approx(-float(logp[0, 3:].sum()), rel=1e-5)


def test_scores_of_several_texts_come_apart(ar):
    both = ar.score(TEXTS)
    assert len(both) == 3
    assert both.nats == pytest.approx(sum(one.nats for one in both))
    assert [one.characters for one in both] == [len(text) for text in TEXTS]
    assert both.data_stderr > 0


def test_a_text_longer_than_a_row_is_scored_in_consecutive_blocks(ar):
    text = "0123456789" * 9
    bound = ar.score(text)
    assert bound.tokens == len(text) + 1
    assert bound.bytes == len(text)


def test_units_follow_from_nats():
    bound = Bound("x", nats=20.0, tokens=10, bytes=8, characters=5, mc_stderr=0.5, data_stderr=1.0, draws=8)
    assert bound.bits_per_token == pytest.approx(2 / math.log(2))
    assert bound.bits_per_byte == pytest.approx(2.5 / math.log(2))
    assert bound.bits_per_char == pytest.approx(4 / math.log(2))
    assert bound.perplexity == pytest.approx(math.exp(2))
    assert bound.error("perplexity") == pytest.approx(math.exp(2) * 0.05)
    assert bound.error("bits_per_char", "data") == pytest.approx(0.2 / math.log(2))
    assert bound.as_dict()["perplexity_mc_stderr"] == pytest.approx(math.exp(2) * 0.05)


def test_the_data_error_is_that_of_a_ratio(ar):
    both = ar.score(TEXTS)
    nats = np.array([one.nats for one in both])
    tokens = np.array([one.tokens for one in both])
    jackknife = [(nats.sum() - n) / (tokens.sum() - t) for n, t in zip(nats, tokens, strict=True)]
    by_jackknife = math.sqrt(2 / 3 * np.square(jackknife - np.mean(jackknife)).sum())
    assert both.data_stderr / both.tokens == pytest.approx(by_jackknife, rel=0.5)


def test_estimators_four_errors_apart_are_called_out():
    def at(nats):
        return Bound("x", nats, 10, 10, 10, mc_stderr=1.0, data_stderr=None, draws=8)

    assert agree(at(100.0), at(105.0))
    assert not agree(at(100.0), at(106.0))
    apart = Evaluation({"continuous": at(100.0), "mask-count": at(106.0)}, {})
    assert "disagree" in apart.disagreement
    assert apart.as_dict()["agree"] is False


def test_discrete_bounds_come_down_to_the_continuous_one(mdlm):
    rows = mdlm.text_processor.scored_rows(TEXTS, None)

    def at(objective):
        return estimate_bound(mdlm.denoiser, objective, mdlm.config.schedule, rows, passes=32, batch_size=8)

    continuous, fine, coarse = at(Subs()), at(Subs(steps=4096)), at(Subs(steps=1))
    assert abs(fine.nats - continuous.nats) <= 4 * math.hypot(fine.mc_stderr, continuous.mc_stderr)
    assert coarse.nats != pytest.approx(continuous.nats, rel=1e-3)


def test_texts_that_cannot_be_scored_are_named(mdlm):
    with pytest.raises(UnmaskError, match="no tokens"):
        mdlm.score("")
    with pytest.raises(UnmaskError, match="shorten"):
        mdlm.score("x" * 40, given="y" * 40)
    with pytest.raises(UnmaskError, match="Got 1 conditions for 2 texts"):
        mdlm.score(["a", "b"], given=["c"])
