"""Bounds: independent of the batch, with correct errors, and never below the likelihood."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from tests.conftest import make_checkpoint, rows_of_texts
from unmask.data.length_policies import Padded, SupervisedEOS
from unmask.data.rows import POSITIONS, TEXT_TOKENS
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import bootstrap_weights
from unmask.laws.exact import any_order, continuous_bound, step_bound
from unmask.laws.tables import random_table
from unmask.likelihood import (
    OFFSETS,
    Bound,
    Draws,
    Evaluation,
    NatTotals,
    _data_stderr,
    agree,
    estimate_bound,
    evaluate,
    format_tokens,
    format_with_errors,
    summarise,
)
from unmask.objectives.subs import MaskCount, Subs
from unmask.pipeline import MaskedDiffusionLM, load
from unmask.schedules import Cosine, Learned, LinearSigma, LogLinear, Polynomial, Schedule

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


def test_the_default_precision_ends_after_256_draws(mdlm):
    assert mdlm.score("q").draws < 256
    rough, fine = mdlm.score("the cat"), mdlm.score("the cat", precision=0.05)
    assert rough.draws == 256 < fine.draws
    assert rough.error("bits_per_token") > 0.05 >= fine.error("bits_per_token")


def test_the_monte_carlo_error_is_the_spread_of_repeated_estimates(mdlm):
    rows, schedule = mdlm.text_processor.scored_rows(TEXTS, None), mdlm.config.schedule
    repeats = [estimate_bound(mdlm.denoiser, MaskCount(), schedule, rows, seed=seed, offsets=7) for seed in range(40)]
    assert {one.tokens for one in repeats} == {sum(map(len, TEXTS)) + 3}
    spread = np.std([one.nats for one in repeats], ddof=1)
    claimed = math.sqrt(np.mean([one.mc_stderr**2 for one in repeats]))
    assert 0.6 < spread / claimed < 1.6


def summary_of(nats_RD, texts, mdlm) -> Bound:
    """The bound of texts with these nats; a text counts its bytes and one end as tokens."""
    rows, sizes = mdlm.text_processor.scored_rows(texts, None), [len(text) + 1.0 for text in texts]
    return summarise("known", NatTotals(np.array(nats_RD), np.array(sizes)), rows, Draws(offsets=len(nats_RD)))


def test_both_errors_of_known_totals(mdlm):
    bound = summary_of([[1.0, 5.0], [3.0, 9.0]], ["ab", "abcd"], mdlm)
    assert (bound.nats, bound.tokens, bound.characters) == (9.0, 8, 6)
    assert bound.mc_stderr == pytest.approx(3.0)  # sqrt(18) / sqrt(2), the totals of the offsets being 6 and 12
    # Residuals per character are 1 - 6 / 6 * 2 and 3 - 12 / 6 * 2 for the first text, the opposite for the second:
    # a mean of -1 in both offsets, without noise. Those per token, 1 - 6 / 8 * 3 and 3 - 12 / 8 * 3, have some.
    assert bound.character_data_stderr == pytest.approx(math.sqrt(2 * 2 * 1.0))
    noise = (1.5 - 1.25) ** 2 / 2 / 2
    assert bound.data_stderr == pytest.approx(math.sqrt(2 * 2 * (1.375**2 - noise)))


def test_the_data_error_of_every_unit_is_that_of_a_bootstrap_over_documents(mdlm):
    texts = ["x" * size for size in (200, 600, 250, 550)]
    bound = summary_of([[70.0] * 4], texts, mdlm)
    weights = bootstrap_weights(4, 4000)
    characters = np.array([len(text) for text in texts])
    ratios = (weights @ np.full(4, 70.0)) / (weights @ characters) / math.log(2)
    assert bound.error("bits_per_char", "data") == pytest.approx(ratios.std(), rel=0.1)
    assert bound.error("bits_per_char", "data") == pytest.approx(0.0644, abs=1e-4)


def test_the_data_error_has_no_noise_of_the_draws(mdlm):
    generator = np.random.default_rng(0)
    texts = ["x" * int(size) for size in generator.integers(20, 60, 40)]
    true = generator.gamma(9.0, 10.0, 40)
    expected = summary_of([true], texts, mdlm)
    noisy = [summary_of(true + generator.normal(0, 100, (16, 40)), texts, mdlm) for _ in range(20)]
    for unit in ("bits_per_token", "bits_per_char"):
        mean_square = np.mean([bound.error(unit, "data") ** 2 for bound in noisy])
        assert math.sqrt(mean_square) == pytest.approx(expected.error(unit, "data"), rel=0.1)


def test_learned_padding_adds_nats_but_no_tokens(mdlm):
    config = mdlm.config.model_copy(update={"policy": SupervisedEOS()})
    filled = MaskedDiffusionLM(mdlm.denoiser, mdlm.tokenizer, config)
    long = "0123456789" * 9
    for text, given, tokens in (("some text", None, 10), ("cd", "ab", 3), (long, None, 91)):
        bound = filled.score(text, given, precision=None)
        assert (bound.tokens, bound.denominator) == (tokens, TEXT_TOKENS)
        assert bound.nats > 1.5 * mdlm.score(text, given, precision=None).nats or text == long
    rows = filled.text_processor.scored_rows(["some text"], None)
    everything = Bound.from_dict({**filled.evaluate(rows).headline.as_dict(), "tokens": rows.length})
    assert everything.perplexity < filled.evaluate(rows).headline.perplexity
    old = {key: value for key, value in everything.as_dict().items() if key != "denominator"}
    assert Bound.from_dict(old).denominator == POSITIONS
    assert format_tokens(Bound.from_dict(old)) == f"{rows.length} positions"


def test_discrete_bounds_converge_to_the_continuous_one(mdlm):
    rows = mdlm.text_processor.scored_rows(TEXTS, None)
    continuous, fine, coarse = (
        estimate_bound(mdlm.denoiser, objective, mdlm.config.schedule, rows, passes=32, batch_size=8)
        for objective in (Subs(), Subs(steps=4096), Subs(steps=1))
    )
    assert abs(fine.nats - continuous.nats) <= 4 * math.hypot(fine.mc_stderr, continuous.mc_stderr)
    assert coarse.nats != pytest.approx(continuous.nats, rel=1e-3)


TABLE, TABLE_TEXT = random_table(), torch.tensor([[2, 0, 3]])
TABLE_ROWS = rows_of_texts(Padded(), TABLE_TEXT.tolist() * 8, 3, eos_id=None)
"""Eight times the same text."""


@pytest.mark.parametrize("schedule", [LogLinear(), Polynomial(power=8)], ids=lambda schedule: schedule.name)
def test_the_bound_of_t_steps_is_that_of_t_steps_and_of_the_schedule(schedule):
    found = evaluate(TABLE, Subs(), schedule, TABLE_ROWS, steps=(1, 2), precision=0.01, batch_size=4096).discrete

    def off(T: int, schedule: Schedule, grid: int) -> float:
        """Standard errors between the estimate of T steps and the enumerated bound of `grid` steps."""
        rates = schedule.mask_rate(torch.arange(grid + 1, dtype=torch.float64) / grid)
        exact = step_bound(TABLE, TABLE_TEXT, torch.ones(3, dtype=torch.bool), rates, mask_logit=False, carry_over=True)
        return abs(found[T].nats - 8 * float(exact.sum())) / (found[T].mc_stderr + 1e-3)

    assert off(1, schedule, 1) < 4
    assert off(2, schedule, 2) < 4
    if schedule == LogLinear():
        assert off(1, schedule, 2) > 6
    else:
        assert off(2, LogLinear(), 2) > 6


def test_a_model_is_scored_under_its_own_schedule(tmp_path, mdlm):
    folder = make_checkpoint(tmp_path / "model")
    settings = json.loads((folder / "unmask.json").read_text())
    settings["schedule"] = {"name": "polynomial", "power": 8}
    (folder / "unmask.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="has changed"):
        other = load(folder, device="cpu")
    rows = other.text_processor.scored_rows(TEXTS, None)
    found = other.score_details(TEXTS, steps=(2,), precision=None).discrete[2].nats
    expected = evaluate(other.denoiser, Subs(), Polynomial(power=8), rows, steps=(2,)).discrete[2].nats
    assert found == pytest.approx(expected)
    assert found != pytest.approx(mdlm.score_details(TEXTS, steps=(2,), precision=None).discrete[2].nats)


class Twice(Subs):
    """Has the same estimator twice, whose values are equal unless they are drawn independently."""

    def estimators(self):
        return {"one": MaskCount(), "other": MaskCount()}


@pytest.mark.parametrize("agreement", [4.0, -1.0], ids=["at first", "again"])
def test_the_two_estimators_are_drawn_independently(monkeypatch, agreement):
    monkeypatch.setattr("unmask.likelihood.AGREEMENT", agreement)
    pairs = [evaluate(TABLE, Twice(), LogLinear(), TABLE_ROWS, seed=seed, offsets=4).bounds for seed in range(200)]
    one, other = np.array([[bounds[name].nats for bounds in pairs] for name in ("one", "other")])
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.21, "three standard errors of a correlation of 0"


SCHEDULES = [Polynomial(power=0.5), LinearSigma(), LogLinear(), Cosine(), Learned()]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_the_errors_of_the_continuous_estimator_hold_for_every_schedule(schedule):
    exact = 8 * float(continuous_bound(TABLE, TABLE_TEXT, torch.ones(3, dtype=torch.bool)).sum())
    estimator = Subs().estimators()["continuous"]
    found = [estimate_bound(TABLE, estimator, schedule, TABLE_ROWS, seed=seed) for seed in range(200)]
    z = np.array([(bound.nats - exact) / bound.mc_stderr for bound in found])
    assert abs(z.mean()) < 0.3
    assert 0.8 < z.std() < 1.25
    assert (abs(z) > 4).sum() <= 2


def test_a_disagreement_by_chance_is_drawn_again_and_a_wrong_weight_is_found(monkeypatch):
    # with two offsets the errors are so rough that many evaluations disagree at first
    found = [evaluate(TABLE, Subs(), LogLinear(), TABLE_ROWS.spread(1), seed=seed, offsets=2) for seed in range(30)]
    again = sum(one.bounds["continuous"].draws > 2 for one in found)
    assert 0 <= sum(one.disagreement is not None for one in found) < again
    monkeypatch.setattr(LogLinear, "raw_weight", lambda self, t: 1.1 / t)
    bounds = [
        estimate_bound(TABLE, estimator, LogLinear(), TABLE_ROWS, passes=128, batch_size=4096, stream=stream)
        for stream, estimator in enumerate(Subs().estimators().values())
    ]
    assert not agree(*bounds)


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


def test_a_spread_that_the_draws_hide_is_unknown():
    """Equal documents whose draws vary: the estimate without that noise would be negative."""
    nats = np.array([[1.0, 3.0], [3.0, 1.0], [1.0, 3.0], [3.0, 1.0]])
    assert _data_stderr(nats, np.array([1, 1]), 2) is None
    assert _data_stderr(nats[:1], np.array([1, 1]), 2) == pytest.approx(2.0)
