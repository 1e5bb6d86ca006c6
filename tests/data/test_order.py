"""The order of rows is a permutation, a different one each epoch, and can be asked anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.data.rows import order, sample_rows


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 99, 100, 101, 1000, 65_537, 100_000])
@pytest.mark.parametrize("seed", [0, 1, -3, 2**63 + 5])
def test_it_is_a_permutation(n: int, seed: int) -> None:
    values = order(seed, 2, n, np.arange(n))
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), np.arange(n))


def test_a_position_alone_gives_what_the_whole_gives() -> None:
    whole = order(7, 3, 1000, np.arange(1000))
    assert [int(order(7, 3, 1000, position)) for position in (0, 17, 999)] == whole[[0, 17, 999]].tolist()
    assert np.array_equal(order(7, 3, 1000, np.arange(1000).reshape(10, 100)), whole.reshape(10, 100))


def test_the_values_do_not_change_between_versions() -> None:
    assert order(0, 0, 1000, np.arange(6)).tolist() == [948, 619, 836, 162, 419, 505]


def test_all_permutations_of_three_occur_equally_often() -> None:
    epochs = np.repeat(np.arange(3000), 3)
    permutations = order(0, epochs, 3, np.tile(np.arange(3), 3000)).reshape(-1, 3)
    _, counts = np.unique(permutations, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 500).max() < 5 * np.sqrt(500)


def test_it_mixes() -> None:
    n = 10_000
    values = order(5, 0, n, np.arange(n))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(values, np.arange(n))[0, 1]) < 0.05
    assert (values == np.arange(n)).sum() < 8, "a random permutation has one fixed point on average"
    assert (np.diff(values) == 1).sum() < 8
    cells, _, _ = np.histogram2d(np.arange(n), values, bins=10)
    assert ((cells - 100) ** 2 / 100).sum() < 81 + 5 * np.sqrt(2 * 81), "chi-square with 81 degrees of freedom"


def test_epochs_and_seeds_differ() -> None:
    base = order(5, 0, 1000, np.arange(1000))
    assert (base == order(5, 1, 1000, np.arange(1000))).mean() < 0.02
    assert (base == order(6, 0, 1000, np.arange(1000))).mean() < 0.02


def test_samples_run_through_epochs() -> None:
    rows = sample_rows(3, 10, np.arange(35))
    for epoch in range(3):
        assert sorted(rows[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))
        assert rows[10 * epoch : 10 * epoch + 10].tolist() == order(3, epoch, 10, np.arange(10)).tolist()
    assert np.array_equal(sample_rows(3, 10, np.arange(17, 29)), rows[17:29]), "resumes without what went before"
    assert int(sample_rows(0, 10**12, 10**15 + 3)) < 10**12


def test_positions_outside_are_refused() -> None:
    with pytest.raises(IndexError):
        order(0, 0, 5, [5])
    with pytest.raises(IndexError):
        order(0, 0, 5, [-1])
    assert order(0, 0, 0, []).size == 0
