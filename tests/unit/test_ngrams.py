"""The n-gram baselines: bits as counted by hand."""

from __future__ import annotations

import math

import pytest

from unmask.evaluation import ngrams
from unmask.evaluation.ngrams import score_ngrams


def test_the_unigram_counts_bytes_and_ends():
    (unigram, _) = score_ngrams(["aab"], ["ab"])
    a, b, end = 3 / 261, 2 / 261, 2 / 261
    assert unigram.bits_per_byte == pytest.approx(-(math.log2(a) + math.log2(b) + math.log2(end)) / 2)
    assert unigram.data_stderr is None


def test_the_bigram_shares_out_its_pseudo_counts_by_the_unigram():
    train = "abac"
    counts = ngrams._pair_counts([train])
    unigram = (counts.sum(axis=0) + 1.0) / (counts.sum() + ngrams.SYMBOLS)
    bits = 0.0
    for before, after in ((ngrams.END, ord("a")), (ord("a"), ord("c")), (ord("c"), ngrams.END)):
        kinds = max(int((counts[before] > 0).sum()), 1)
        bits -= math.log2((counts[before, after] + kinds * unigram[after]) / (counts[before].sum() + kinds))
    assert score_ngrams([train], ["ac"])[1].bits_per_byte == pytest.approx(bits / 2)


def test_the_bigram_beats_the_unigram_on_a_chain():
    unigram, bigram = score_ngrams(["abababab" * 20], ["abab" * 10, "abababab"])
    assert bigram.bits_per_byte < unigram.bits_per_byte / 2
    assert unigram.data_stderr > 0
