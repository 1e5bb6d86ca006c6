"""Entropy, repetition and distinct n-grams as counted by hand; intervals against distributions that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unmask.evaluation.statistics import (
    Estimate,
    distinct,
    exponential,
    ngrams,
    ratio,
    repetition,
    resamples,
    unigram_entropy,
)


def test_entropy_is_that_of_the_histogram_in_nats():
    assert unigram_entropy([7, 7, 7, 7]) == 0
    assert unigram_entropy([1, 2, 3, 4]) == pytest.approx(math.log(4))
    assert unigram_entropy([5, 5, 5, 9]) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert unigram_entropy([]) == 0


def test_ngrams_overlap_and_short_lists_have_none():
    assert ngrams([1, 2, 3, 4], 3) == [(1, 2, 3), (2, 3, 4)]
    assert ngrams([1, 2], 3) == []


def test_repetition_counts_what_stood_before_in_the_same_list_only():
    again = [1, 2, 3, 4, 9, 1, 2, 3, 4]
    same, total = repetition([again, [1, 2, 3, 4], [5] * 6, [1, 2], []])
    assert same.tolist() == [1, 0, 2, 0, 0]
    assert total.tolist() == [6, 1, 3, 0, 0]
    same, total = repetition([again], n=1)
    assert (same.item(), total.item()) == (4, 9)


def test_distinct_counts_over_all_lists_together():
    part, total = distinct([[1, 2, 1], [1, 3], []], 1)
    assert part.tolist() == [1.5, 1.5, 0]
    assert total.tolist() == [3, 2, 0]
    part, total = distinct([[1, 2, 1, 2], [1, 2], [8, 9]], 2)
    assert part.sum() == len({(1, 2), (2, 1), (8, 9)})
    assert total.sum() == 5


def test_one_text_again_and_again_is_not_distinct():
    part, total = distinct([list(range(10))] * 20, 3)
    assert part.sum() / total.sum() == pytest.approx(1 / 20)


def test_resamples_are_as_large_as_the_sample_and_always_the_same():
    weights = resamples(7, times=50)
    assert weights.shape == (50, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert (weights == resamples(7, times=50)).all()
    assert not (weights == resamples(7, times=50, seed=1)).all()
    assert resamples(40, times=4000).mean(axis=0) == pytest.approx(np.ones(40), abs=0.1)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    """Of means of 60 draws from an exponential law, whose mean is 1."""
    draws = np.random.default_rng(0).exponential(size=(400, 60))
    weights = resamples(60, times=400)
    estimates = [ratio(row, np.ones(60), weights) for row in draws]
    covered = np.mean([one.low <= 1.0 <= one.high for one in estimates])
    assert 0.89 <= covered <= 0.97
    assert all(one.low < one.value < one.high for one in estimates)


def test_an_interval_has_the_width_of_the_normal_law():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=900)
    estimate = ratio(values, np.ones(900), resamples(900))
    half = 1.96 * values.std() / math.sqrt(900)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.high - estimate.low == pytest.approx(2 * half, rel=0.08)


def test_a_ratio_is_of_sums_and_resamples_both_together():
    bottom = np.array([1.0, 10.0, 100.0, 1000.0])
    estimate = ratio(3 * bottom, bottom, resamples(4))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3, 3, 3))
    assert ratio(np.array([1.0, 8.0]), np.array([1.0, 2.0]), resamples(2)).value == 3


def test_nothing_to_count_gives_no_figure_and_empty_resamples_are_left_out():
    assert ratio(np.zeros(3), np.zeros(3), resamples(3)) is None
    assert exponential(None) is None
    estimate = ratio(np.array([0.0, 6.0]), np.array([0.0, 2.0]), resamples(2))
    assert estimate == Estimate(3.0, 3.0, 3.0)


def test_one_text_has_no_interval():
    assert ratio(np.array([2.0]), np.array([4.0]), resamples(1)) == Estimate(0.5)
    assert exponential(Estimate(0.0)) == Estimate(1.0)
    assert exponential(Estimate(1.0, 0.0, 2.0)) == Estimate(math.e, 1.0, math.exp(2))
