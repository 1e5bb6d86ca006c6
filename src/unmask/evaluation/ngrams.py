"""Byte unigrams and bigrams: what a model must beat. The end of a document is a symbol of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

END = 256
SYMBOLS = 257


@dataclass(frozen=True)
class NGramScore:
    """Bits per byte on held-out documents and the standard error from their spread."""

    name: str
    bits_per_byte: float
    data_stderr: float | None


def score_ngrams(train: Iterable[str], held_out: Iterable[str]) -> list[NGramScore]:
    """Fit on the training texts, score the held-out ones: unigram, then bigram backed off to the unigram."""
    pairs = _pair_counts(train)
    unigram = (pairs.sum(axis=0) + 1.0) / (pairs.sum() + SYMBOLS)
    # Each context shares out one pseudo-count a seen successor by the unigram (Witten-Bell).
    kinds = np.maximum((pairs > 0).sum(axis=1, keepdims=True), 1)
    bigram = (pairs + kinds * unigram) / (pairs.sum(axis=1, keepdims=True) + kinds)
    documents = [_symbols(text) for text in held_out]
    return [
        _score("unigram", [-np.log2(unigram[s[1:]]).sum() for s in documents], documents),
        _score("bigram", [-np.log2(bigram[s[:-1], s[1:]]).sum() for s in documents], documents),
    ]


def _symbols(text: str) -> np.ndarray:
    """The bytes of a text between two ends: what stands before a document is the end of another."""
    return np.concatenate([[END], np.frombuffer(text.encode(), np.uint8), [END]]).astype(np.int64)


def _pair_counts(texts: Iterable[str]) -> np.ndarray:
    counts = np.zeros(SYMBOLS * SYMBOLS)
    for text in texts:
        s = _symbols(text)
        counts += np.bincount(s[:-1] * SYMBOLS + s[1:], minlength=SYMBOLS * SYMBOLS)
    return counts.reshape(SYMBOLS, SYMBOLS)


def _score(name: str, bits: list[float], documents: list[np.ndarray]) -> NGramScore:
    sizes = np.array([len(s) - 2 for s in documents], dtype=np.float64)
    rate = sum(bits) / sizes.sum()
    count = len(documents)
    if count < 2:
        return NGramScore(name, float(rate), None)
    residual = np.array(bits) - rate * sizes
    error = np.sqrt(count / (count - 1) * np.square(residual).sum()) / sizes.sum()
    return NGramScore(name, float(rate), float(error))
