"""The order in which rows are visited: a permutation that can be asked for any position at once.

A permutation of range(n) is a Feistel network on pairs (left, right), left < a, right < b, a b >= n, walked along its
cycle until it lands below n. It needs no table, so training resumes at any sample without reading what went before.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

ROUNDS = 8
_WORD = (1 << 64) - 1


def order(seed: int, epoch: int | npt.ArrayLike, n: int, indices: npt.ArrayLike) -> Integers:
    """Where positions ``indices`` of a pass fall in the shuffled range(n).

    seed, epoch: choose the permutation; ``epoch`` is one number or one for each index. indices: integers in [0, n), of
    any shape. Returns int64 of that shape; all n indices of one epoch give all n values.
    """
    where = np.asarray(indices, dtype=np.int64)
    if where.size and (where.min() < 0 or where.max() >= n):
        raise IndexError(f"positions must lie in [0, {n})")
    epochs = np.broadcast_to(np.asarray(epoch, dtype=np.int64), where.shape).astype(np.uint64).ravel()
    keys = _mix(_mix(np.full(epochs.shape, seed & _WORD, dtype=np.uint64)) ^ epochs)
    left_size = isqrt(max(n - 1, 0)) + 1
    sizes = np.uint64(left_size), np.uint64(-(-n // left_size) or 1)
    values = _feistel(where.ravel().astype(np.uint64), keys, *sizes)
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], keys[outside], *sizes)
    return values.astype(np.int64).reshape(where.shape)


def sample_rows(seed: int, n_rows: int, global_indices: npt.ArrayLike) -> Integers:
    """The row of each global sample index: sample g is position g mod n of epoch g // n, shuffled anew each epoch."""
    indices = np.asarray(global_indices, dtype=np.int64)
    return order(seed, indices // n_rows, n_rows, indices % n_rows)


def _feistel(values: _Words, keys: _Words, left_size: np.uint64, right_size: np.uint64) -> _Words:
    left, right = np.divmod(values, right_size)
    for number in range(0, ROUNDS, 2):
        left = (left + _mix(keys ^ _mix(right + np.uint64(number << 40))) % left_size) % left_size
        right = (right + _mix(keys ^ _mix(left + np.uint64((number + 1) << 40))) % right_size) % right_size
    return left * right_size + right


def _mix(words: _Words) -> _Words:
    """SplitMix64: a bijection of 64-bit words that looks random."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
