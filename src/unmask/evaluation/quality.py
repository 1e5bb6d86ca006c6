"""Diversity and failures of generated texts, and MAUVE, their distance from held-out texts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np

from unmask.evaluation.statistics import RESAMPLES, Estimate, Values, Z, ngrams, to_array

BLEU_ORDER = 4
SPAN_WORDS = 8
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""A run of letters, which may have apostrophes inside."""
SENTENCE_END = re.compile(r"[.!?…。！？][\s\"'”’»)\]]*$")
DIVERGENCE_POINTS, MAUVE_SCALE = 25, 5
"""Points of the divergence frontier and the factor of the divergences: the defaults of mauve-text."""


def self_bleu(texts: Sequence[str]) -> Values:
    """[n] the BLEU-4 of each text with all other texts as references, in [0, 100].

    Equals sacrebleu's `sentence_bleu`, but counts every text only once: the largest count of an n-gram in the others is
    the largest of all texts, or the second largest if the text itself has the largest.
    """
    from sacrebleu.metrics.bleu import BLEU

    tokenize = BLEU().tokenizer
    words = [tokenize(text.rstrip()).split() for text in texts]
    correct = np.zeros((len(texts), BLEU_ORDER), dtype=np.int64)
    for order in range(1, BLEU_ORDER + 1):
        counts = [Counter(ngrams(line, order)) for line in words]
        largest: dict[tuple[str, ...], tuple[int, int]] = {}
        for found in counts:
            for gram, count in found.items():
                first, second = largest.get(gram, (0, 0))
                largest[gram] = (max(first, count), max(second, min(first, count)))
        for i, found in enumerate(counts):
            others = ((count, largest[gram][count == largest[gram][0]]) for gram, count in found.items())
            correct[i, order - 1] = sum(min(pair) for pair in others)
    lengths = sorted(map(len, words))
    scores = []
    for line, right in zip(words, correct.tolist(), strict=True):
        total = [max(0, len(line) - order) for order in range(BLEU_ORDER)]
        closest = _closest_other(len(line), lengths)
        scores.append(BLEU.compute_bleu(right, total, len(line), closest, "exp", effective_order=True).score)
    return np.array(scores)


def _closest_other(length: int, lengths: list[int]) -> int:
    """The closest length of another text, the shorter one of a tie; 0 if there is no other."""
    place = bisect_left(lengths, length)
    others = [*lengths[max(0, place - 1) : place], *lengths[place + 1 : place + 2]]
    return min(others, key=lambda other: (abs(other - length), other), default=0)


def count_failures(
    texts: Sequence[str], held_out: Sequence[str] | None, are_held_out: bool = False
) -> dict[str, tuple[Values, Values] | None]:
    """For each kind of failure, the failures [n] of every text, and what they are divided by [n].

    - broken_words, of all words: no held-out text has the word; for the held-out texts themselves, no other one.
    - repeated_spans, of all texts: 8 consecutive words occur twice.
    - unfinished_quotes, of all texts: an odd number of straight quotes, or not as many opening as closing ones.
    - unfinished_end, of all texts that are not blank: the last sentence has no final punctuation.
    """
    words = [WORD.findall(text.lower()) for text in texts]
    spans = [ngrams(line, SPAN_WORDS) for line in words]
    one = np.ones(len(texts))
    unfinished = (text.count('"') % 2 or text.count("“") != text.count("”") for text in texts)
    filled = to_array(text.strip() != "" for text in texts)
    broken = None
    if held_out is not None:
        containing = Counter(word for text in held_out for word in set(WORD.findall(text.lower())))
        unknown = (sum(containing[word] <= are_held_out for word in line) for line in words)
        broken = to_array(unknown), to_array(map(len, words))
    return {
        "broken_words": broken,
        "repeated_spans": (to_array(len(set(grams)) < len(grams) for grams in spans), one),
        "unfinished_quotes": (to_array(unfinished), one),
        "unfinished_end": (filled * to_array(SENTENCE_END.search(text) is None for text in texts), filled),
    }


def mauve(held_out: Values, generated: Values) -> Estimate:
    """MAUVE of features [n, d] of held-out texts and of generated ones, by mauve-text with its default options.

    The interval is that of a bootstrap over the texts of both sides, with the clusters fixed. It is the value plus and
    minus standard deviations, since quantiles are biased: resamples are further apart than the texts they come from.
    """
    from mauve.compute_mauve import compute_mauve, get_divergence_curve_for_multinomials
    from sklearn.metrics import auc

    found = compute_mauve(p_features=held_out, q_features=generated)
    weights = np.linspace(1e-6, 1 - 1e-6, DIVERGENCE_POINTS)
    rng = np.random.Generator(np.random.Philox(0))
    p_counts = rng.multinomial(len(held_out), found.p_hist, RESAMPLES)
    q_counts = rng.multinomial(len(generated), found.q_hist, RESAMPLES)
    areas = []
    for p, q in zip(p_counts / len(held_out), q_counts / len(generated), strict=True):
        x, y = get_divergence_curve_for_multinomials(p, q, weights, MAUVE_SCALE).T
        areas.append((auc(x[x.argsort()], y[x.argsort()]) + auc(y[y.argsort()], x[y.argsort()])) / 2)
    half = Z * float(np.std(areas))
    value = float(found.mauve)
    return Estimate(value, max(0.0, value - half), min(1.0, value + half))
