"""Bounds: independent of the batch, with correct errors, and never below the likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unmask.errors import UnmaskError
from unmask.laws.exact import any_order
from unmask.likelihood import (
    OFFSETS,
    Bound,
    Draws,
    Evaluation,
    NatTotals,
    agree,
    estimate_bound,
    format_with_errors,
    summarise,
)
from unmask.objectives.subs import MaskCount, Subs

TEXTS = ["abc", "hello, world", "one more text of some length"]


def test_the_batch_size_does_not_change_a_bound(mdlm):
    one, other = (mdlm.score_details(TEXTS, precision=None, batch_size=size, steps=(4,)) for size in (1, 7))
    for name in one.bounds:
        assert one.bounds[name].nats == pytest.approx(other.bounds[name].nats, rel=1e-6)
    assert one.discrete[4].nats == pytest.approx(other.discrete[4].nats, rel=1e-6)


def test_the_estimators_agree_and_are_above_the_exact_likelihood(mdlm):
    text = "qu1ck"
    result = mdlm.score_details(text, precision=0.01)
    assert result.disagreement is None
    ids = torch.tensor([[*text.encode(), mdlm.tokenizer.eos_token_id]])
    exact = float(any_order(mdlm.denoiser, ids, torch.ones(6, dtype=torch.bool)).nll)
    for bound in result.bounds.values():
        assert bound.nats >= exact - 4 * bound.mc_stderr
        assert bound.tokens == 6
    assert result.headline.error("bits_per_token") <= 0.01


def test_the_other_estimators_get_a_quarter_of_the_passes_and_progress_counts_all_draws(mdlm):
    progress = []
    result = mdlm.score_details("qu1ck", precision=0.02, steps=(4,), progress=progress.append)
    passes = result.headline.draws // OFFSETS
    assert passes >= 8
    assert result.bounds["continuous"].draws == result.discrete[4].draws == OFFSETS * passes // 4
    assert sum(progress) > sum(bound.draws for bound in (*result.bounds.values(), result.discrete[4]))
    progress.clear()
    result = mdlm.score_details("qu1ck", precision=None, progress=progress.append)
    assert {bound.draws for bound in result.bounds.values()} == {OFFSETS}
    assert sum(progress) == OFFSETS * len(result.bounds)


def test_the_monte_carlo_error_is_the_spread_of_repeated_estimates(mdlm):
    rows, schedule = mdlm.text_processor.scored_rows(TEXTS, None), mdlm.config.schedule
    repeats = [estimate_bound(mdlm.denoiser, MaskCount(), schedule, rows, seed=seed, offsets=7) for seed in range(40)]
    assert {one.tokens for one in repeats} == {sum(map(len, TEXTS)) + 3}
    spread = np.std([one.nats for one in repeats], ddof=1)
    claimed = math.sqrt(np.mean([one.mc_stderr**2 for one in repeats]))
    assert 0.6 < spread / claimed < 1.6


def test_both_errors_of_known_totals(mdlm):
    rows = mdlm.text_processor.scored_rows(["ab", "abcd"], None)
    totals = NatTotals(np.array([[1.0, 5.0], [3.0, 9.0]]), np.array([3.0, 5.0]))
    bound = summarise("known", totals, rows, Draws(offsets=2))
    assert (bound.nats, bound.tokens, bound.characters) == (9.0, 8, 6)
    assert bound.mc_stderr == pytest.approx(3.0)  # sqrt(18) / sqrt(2), the totals of the offsets being 6 and 12
    residual = 2.0 - 9 / 8 * 3
    assert bound.data_stderr == pytest.approx(math.sqrt(2 * 2 * residual**2))


def test_discrete_bounds_converge_to_the_continuous_one(mdlm):
    rows = mdlm.text_processor.scored_rows(TEXTS, None)
    continuous, fine, coarse = (
        estimate_bound(mdlm.denoiser, objective, mdlm.config.schedule, rows, passes=32, batch_size=8)
        for objective in (Subs(), Subs(steps=4096), Subs(steps=1))
    )
    assert abs(fine.nats - continuous.nats) <= 4 * math.hypot(fine.mc_stderr, continuous.mc_stderr)
    assert coarse.nats != pytest.approx(continuous.nats, rel=1e-3)


def test_given_text_is_read_but_not_counted(mdlm):
    bound = mdlm.score("cd", given="ab", precision=None)
    assert (bound.tokens, bound.bytes, bound.characters) == (3, 2, 2)
    assert bound.nats != mdlm.score("cd", given="xy", precision=None).nats


def test_the_autoregressive_likelihood_is_exact_and_obeys_the_chain_rule(ar):
    whole = ar.score("abcdef")
    assert whole.exact
    assert whole.stderr == 0
    bos, eos = ar.denoiser.config.bos_token_id, ar.tokenizer.eos_token_id
    ids = torch.tensor([[bos, *b"abcdef", eos]])
    log_p = ar.denoiser(ids[:, :-1]).logits.detach().log_softmax(-1).gather(2, ids[:, 1:, None])
    assert whole.nats == pytest.approx(-float(log_p.sum()), rel=1e-5)
    assert ar.score("def", given="abc").nats == pytest.approx(-float(log_p[0, 3:].sum()), rel=1e-5)
    result = ar.score_details(TEXTS, precision=None, steps=(4,))
    assert (list(result.bounds), result.discrete) == (["ar"], {})
    bound = ar.score("0123456789" * 9)
    assert (bound.tokens, bound.bytes) == (91, 90), "a text longer than a row is scored in blocks"


def test_every_text_has_its_own_bound_and_the_data_error_is_that_of_a_ratio(ar):
    bound = ar.score(TEXTS)
    nats, tokens = (np.array([getattr(one, name) for one in bound]) for name in ("nats", "tokens"))
    assert len(bound) == 3
    assert bound.nats == pytest.approx(nats.sum())
    assert [one.characters for one in bound] == [len(text) for text in TEXTS]
    jackknife = (nats.sum() - nats) / (tokens.sum() - tokens)
    expected = math.sqrt(2 / 3 * np.square(jackknife - jackknife.mean()).sum())
    assert bound.data_stderr / bound.tokens == pytest.approx(expected, rel=0.5)
    bound = ar.score(["abcd", "wxyz", "1234"])
    expected = math.sqrt(3) * np.std([one.nats for one in bound], ddof=1)
    assert bound.data_stderr == pytest.approx(expected), "texts of equal length are a sample of totals"


def test_units_follow_from_nats():
    bound = Bound("x", nats=20.0, tokens=10, bytes=8, characters=5, mc_stderr=0.5, data_stderr=1.0, draws=8)
    assert bound.bits_per_token == pytest.approx(2 / math.log(2))
    assert bound.bits_per_byte == pytest.approx(2.5 / math.log(2))
    assert bound.bits_per_char == pytest.approx(4 / math.log(2))
    assert bound.perplexity == pytest.approx(math.exp(2))
    assert bound.error("perplexity") == pytest.approx(math.exp(2) * 0.05)
    assert bound.error("bits_per_char", "data") == pytest.approx(0.2 / math.log(2))
    assert bound.as_dict()["perplexity_mc_stderr"] == pytest.approx(math.exp(2) * 0.05)
    assert Bound.from_dict(bound.as_dict()) == bound
    assert format_with_errors(bound, "bits_per_token") == "≤ 2.885 ± 0.072 ± 0.144"


def test_estimates_more_than_four_errors_apart_disagree():
    def at(nats):
        return Bound("x", nats, 10, 10, 10, mc_stderr=1.0, data_stderr=None, draws=8)

    assert agree(at(100.0), at(105.0))
    assert not agree(at(100.0), at(106.0))
    evaluation = Evaluation({"continuous": at(100.0), "mask-count": at(106.0)}, {})
    assert "disagree" in evaluation.disagreement
    assert evaluation.as_dict()["agree"] is False


def test_texts_that_cannot_be_scored_are_named(mdlm):
    for texts, given, message in (
        ("", None, "no tokens"),
        ("x" * 40, "y" * 40, "shorten"),
        (["a", "b"], ["c"], "Got 1 conditions for 2 texts"),
    ):
        with pytest.raises(UnmaskError, match=message):
            mdlm.score(texts, given=given)
