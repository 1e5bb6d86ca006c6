"""Entropy, repetition and distinct n-grams counted by hand; intervals compared with known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unmask.evaluation.statistics import (
    Estimate,
    bootstrap_ratio,
    bootstrap_weights,
    distinct,
    format_estimate,
    repetition,
    unigram_entropy,
    wilson,
)


@pytest.mark.parametrize(
    ("ids", "shares"), [([7, 7, 7, 7], [1]), ([1, 2, 3, 4], [0.25] * 4), ([5, 5, 5, 9], [0.75, 0.25]), ([], [])]
)
def test_entropy_of_the_token_histogram_in_nats(ids, shares):
    assert unigram_entropy(ids) == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_repetition_counts_earlier_ngrams_of_the_same_text():
    repeated = [1, 2, 3, 4, 9, 1, 2, 3, 4]
    same, total = repetition([repeated, [1, 2, 3, 4], [5] * 6, [1, 2], []])
    assert same.tolist() == [1, 0, 2, 0, 0]
    assert total.tolist() == [6, 1, 3, 0, 0]
    same, total = repetition([repeated], n=1)
    assert (same.item(), total.item()) == (4, 9)


@pytest.mark.parametrize(
    ("texts", "n", "shares", "totals"),
    [
        ([[1, 2, 1], [1, 3], []], 1, [1.5, 1.5, 0], [3, 2, 0]),
        ([[1, 2, 1, 2], [1, 2], [8, 9]], 2, [1.5, 0.5, 1], [3, 1, 1]),
        ([list(range(10))] * 20, 3, [8 / 20] * 20, [8] * 20),
    ],
)
def test_distinct_ngrams_are_counted_over_all_texts(texts, n, shares, totals):
    found, total = distinct(texts, n)
    assert found == pytest.approx(shares)
    assert total.tolist() == totals


def test_resamples_have_the_size_of_the_sample_and_depend_on_the_seed():
    weights = bootstrap_weights(7, resamples=50)
    assert weights.shape == (50, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert (weights == bootstrap_weights(7, resamples=50)).all()
    assert not (weights == bootstrap_weights(7, resamples=50, seed=1)).all()
    assert bootstrap_weights(40, resamples=4000).mean(axis=0) == pytest.approx(np.ones(40), abs=0.1)


def test_an_interval_covers_the_true_mean_as_often_as_stated():
    draws = np.random.default_rng(0).exponential(size=(400, 60))
    weights = bootstrap_weights(60, resamples=400)
    estimates = [bootstrap_ratio(row, np.ones(60), weights) for row in draws]
    assert 0.89 <= np.mean([one.low <= 1.0 <= one.high for one in estimates]) <= 0.97
    assert all(one.low < one.value < one.high for one in estimates)
    assert [one.value for one in estimates] == pytest.approx(draws.mean(axis=1))


def test_an_interval_has_the_width_of_the_normal_approximation():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=900)
    estimate = bootstrap_ratio(values, np.ones(900), bootstrap_weights(900))
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(900), rel=0.08)


def test_a_ratio_resamples_numerator_and_denominator_together():
    bottom = np.array([1.0, 10.0, 100.0, 1000.0])
    estimate = bootstrap_ratio(3 * bottom, bottom, bootstrap_weights(4))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3, 3, 3))
    assert bootstrap_ratio(np.array([1.0, 8.0]), np.array([1.0, 2.0]), bootstrap_weights(2)).value == 3


def test_degenerate_samples():
    assert bootstrap_ratio(np.zeros(3), np.zeros(3), bootstrap_weights(3)) is None
    with_empty_resamples = bootstrap_ratio(np.array([0.0, 6.0]), np.array([0.0, 2.0]), bootstrap_weights(2))
    assert with_empty_resamples == Estimate(3.0, 3.0, 3.0)
    assert bootstrap_ratio(np.array([2.0]), np.array([4.0]), bootstrap_weights(1)) == Estimate(0.5)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (1000, 1000, 0.9962, 1.0)]
)
def test_wilson_intervals(right, n, low, high):
    found = wilson(np.array([1.0] * right + [0.0] * (n - right)))
    assert (found.value, found.low, found.high) == pytest.approx((right / n, low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(20.14, 18.93, 21.41), "20.1 (18.9–21.4)"),
        (Estimate(0.0234, 0.0201, 0.0266), "0.023 (0.020–0.027)"),
        (Estimate(28754.4, 20938.0, 41682.0), "28,754 (20,938–41,682)"),
        (Estimate(3.2761, 3.2743, 3.2748), "3.276 (3.274–3.275)"),
        (Estimate(-0.004, -0.006, 0.002), "-0.004 (-0.006 to 0.002)"),
        (Estimate(48.0, 48.0, 48.0), "48.0"),
        (Estimate(4.187), "4.19"),
        (None, "-"),
    ],
)
def test_estimates_are_printed_with_three_digits_and_their_interval(estimate, text):
    assert format_estimate(estimate) == text
