"""Tables of rows: the order is a permutation, different in each epoch; rows spread evenly; items are read ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import rows_of_texts
from unmask.data.length_policies import Packed, Padded
from unmask.data.rows import permute, prefetch, reverse_complement_rows


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 99, 100, 101, 1000, 65_537, 100_000])
@pytest.mark.parametrize("seed", [0, 1, -3, 2**63 + 5])
def test_it_is_a_permutation(n: int, seed: int) -> None:
    values = permute(seed, 2, n, np.arange(n))
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), np.arange(n))


def test_one_index_gives_the_same_as_all() -> None:
    whole = permute(7, 3, 1000, np.arange(1000))
    assert [int(permute(7, 3, 1000, index)) for index in (0, 17, 999)] == whole[[0, 17, 999]].tolist()
    assert np.array_equal(permute(7, 3, 1000, np.arange(1000).reshape(10, 100)), whole.reshape(10, 100))


def test_all_permutations_of_three_occur_equally_often() -> None:
    epochs = np.repeat(np.arange(3000), 3)
    permutations = permute(0, epochs, 3, np.tile(np.arange(3), 3000)).reshape(-1, 3)
    _, counts = np.unique(permutations, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 500).max() < 5 * np.sqrt(500)


def test_it_mixes() -> None:
    n = 10_000
    values = permute(5, 0, n, np.arange(n))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(values, np.arange(n))[0, 1]) < 0.05
    assert (values == np.arange(n)).sum() < 8, "a random permutation has one fixed point on average"
    assert (np.diff(values) == 1).sum() < 8
    cells, _, _ = np.histogram2d(np.arange(n), values, bins=10)
    assert ((cells - 100) ** 2 / 100).sum() < 81 + 5 * np.sqrt(2 * 81), "chi-square with 81 degrees of freedom"
    for seed, epoch in ((5, 1), (6, 0)):
        assert (values == permute(seed, epoch, n, np.arange(n))).mean() < 0.02


def test_indices_outside_are_errors() -> None:
    for index in (5, -1):
        with pytest.raises(IndexError):
            permute(0, 0, 5, [index])
    assert permute(0, 0, 0, []).size == 0


def test_samples_go_through_epochs() -> None:
    rows = rows_of_texts(Padded(), [[number] * 4 for number in range(10)], 4, eos_id=None)
    drawn = rows.sample(3, np.arange(35))
    for epoch in range(3):
        assert drawn[10 * epoch : 10 * epoch + 10].tolist() == permute(3, epoch, 10, np.arange(10)).tolist()
    assert np.array_equal(rows.sample(3, np.arange(17, 29)), drawn[17:29]), "resumes without the samples before"
    assert 0 <= int(rows.sample(0, 10**15 + 3)) < 10


def test_rows_spread_evenly_and_documents_are_renumbered() -> None:
    rows = rows_of_texts(Packed(), [[1] * 30], length=8, eos_id=9, texts=["a" * 30])
    part = rows.spread(2)
    assert (len(part), part.counted, part.documents) == (2, 16, 1)
    assert np.array_equal(part[[1]].input_ids, rows[[2]].input_ids)
    assert part.document_bytes.tolist() == [0], "parts of documents have no known size"
    assert rows.spread(99) is rows
    padded = rows_of_texts(Padded(), [[number] * 2 for number in range(20)], 4, None).spread(3)
    assert padded[:].input_ids[:, 0].tolist() == [0, 6, 13]
    assert padded[:].document.tolist() == [[n, n, -1, -1] for n in range(3)]


def test_items_are_computed_ahead_in_another_thread() -> None:
    made: list[int] = []
    threads: set[int] = set()

    def make() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            threads.add(threading.get_ident())
            yield number

    taken = []
    for number in prefetch(make(), ahead=3):
        taken.append(number)
        assert len(made) <= len(taken) + 3
    assert taken == list(range(20))
    assert threading.get_ident() not in threads


def test_an_error_in_the_thread_is_raised_after_the_items_before_it() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken")

    coming = prefetch(make())
    assert next(coming) == 1
    with pytest.raises(RuntimeError, match="broken"):
        next(coming)


def test_the_thread_ends_with_the_generator() -> None:
    coming = prefetch(iter(range(1000)))
    next(coming)
    coming.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unmask-reader")]


def test_rows_on_the_opposite_strand() -> None:
    """A, C, G, T, N are 0 to 4. The text is reversed and complemented, padding and the other rows stay."""
    rows = rows_of_texts(Padded(), [[0, 0, 1, 4], [0, 2, 2], [3, 1]], 5, eos_id=None, pad_id=5)[np.arange(3)]
    rows = replace(rows, frozen=np.arange(5) < np.ones((3, 1)))
    complements = np.array([3, 2, 1, 0, 4, 5])
    turned = reverse_complement_rows(rows, np.array([True, False, True]), complements)
    assert turned.input_ids.tolist() == [[4, 2, 3, 3, 5], [0, 2, 2, 5, 5], [2, 0, 5, 5, 5]]
    assert turned.frozen.nonzero()[1].tolist() == [3, 0, 1]
    assert np.array_equal(turned.padding, rows.padding)
    again = reverse_complement_rows(turned, np.array([True, False, True]), complements)
    for name in ("input_ids", "document", "frozen"):
        assert np.array_equal(getattr(again, name), getattr(rows, name))
