"""Joined and mixed tables: weights are exact in each block, and each part is read in the order that it has alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import rows_of_texts
from unmask.data.joined_rows import MIX_BLOCK, JoinedRows, MixedRows, block_quotas
from unmask.data.length_policies import Packed, Padded
from unmask.data.rows import Rows
from unmask.errors import UnmaskError

LENGTH = 4


def table(first: int, rows: int) -> Rows:
    """Row i holds the token first + i, and is a document."""
    lists = [[first + number] * LENGTH for number in range(rows)]
    return rows_of_texts(Padded(), lists, LENGTH, eos_id=None, texts=["é" * LENGTH] * rows)


def mixed(weights: tuple[float, ...] = (3, 1), sizes: tuple[int, ...] = (50, 7)) -> MixedRows:
    return MixedRows([table(1000 * number, size) for number, size in enumerate(sizes)], weights)


@pytest.mark.parametrize("weights", [(3, 1), (1, 1, 1), (0.7, 0.2, 0.1), (5,), (1, 2e-3, 7)])
def test_every_block_has_the_weights(weights: tuple[float, ...]) -> None:
    quotas = block_quotas(weights)
    assert sum(quotas) == MIX_BLOCK
    assert (abs(quotas - MIX_BLOCK * np.array(weights) / sum(weights)) < 1).all()
    rows = mixed(weights, sizes=(9, 20, 300)[: len(weights)])
    drawn = rows[rows.sample(5, np.arange(3 * MIX_BLOCK))].input_ids[:, 0] // 1000
    for block in drawn.reshape(3, MIX_BLOCK):
        assert np.bincount(block, minlength=len(weights)).tolist() == list(quotas)


def test_the_rest_goes_to_the_largest_remainders() -> None:
    assert block_quotas((1, 1, 1)) == (1366, 1365, 1365)
    weights = (0.5 + 0.6 / MIX_BLOCK, 0.25 - 0.2 / MIX_BLOCK, 0.25 - 0.4 / MIX_BLOCK)
    assert block_quotas(weights) == (2049, 1024, 1023)


def test_places_are_shuffled_in_each_block() -> None:
    rows = mixed()
    first, second = (rows.sample(5, np.arange(MIX_BLOCK) + start) >= 50 for start in (0, MIX_BLOCK))
    assert (first == second).mean() < 0.7
    halves = first.reshape(2, -1).sum(axis=1)
    assert abs(halves[0] - halves[1]) < 5 * np.sqrt(MIX_BLOCK * 3 / 16)
    assert (rows.sample(6, np.arange(MIX_BLOCK)) >= 50).tolist() != first.tolist()


def test_a_part_is_read_in_the_order_that_it_has_alone() -> None:
    rows = mixed()
    drawn = rows.sample(5, np.arange(3 * MIX_BLOCK))
    for number, (first, size) in enumerate(((0, 50), (50, 7))):
        own = drawn[(drawn >= first) & (drawn < first + size)] - first
        assert own.tolist() == rows.tables[number].sample(5, np.arange(len(own))).tolist()


def test_any_sample_can_be_computed_alone() -> None:
    rows = mixed((0.6, 0.3, 0.1), (50, 7, 30))
    whole = rows.sample(5, np.arange(2 * MIX_BLOCK))
    some = np.random.default_rng(0).integers(0, 2 * MIX_BLOCK, (10, 20))
    assert np.array_equal(rows.sample(5, some), whole[some])
    assert rows.sample(5, 4711) == whole[4711]
    assert rows.sample(5, []).size == 0
    far = rows.sample(5, 10**12 + np.arange(100))
    assert ((far >= 0) & (far < len(rows))).all()


def test_joined_tables_follow_each_other() -> None:
    one, empty, other = table(0, 5), rows_of_texts(Padded(), [], LENGTH, None, texts=[]), table(100, 3)
    rows = JoinedRows([one, empty, other])
    assert (len(rows), rows.documents, rows.counted) == (8, 8, 32)
    assert rows[:].input_ids[:, 0].tolist() == [0, 1, 2, 3, 4, 100, 101, 102]
    assert rows[[6, 0, 6]].input_ids[:, 0].tolist() == [101, 0, 101]
    assert rows[[6, 0, 6]].document[:, 0].tolist() == [6, 0, 6]
    assert rows.document_bytes.tolist() == [8] * 8
    assert rows.document_characters.tolist() == [4] * 8
    with pytest.raises(IndexError):
        rows[8]
    unknown = JoinedRows([table(0, 5), rows_of_texts(Padded(), [[1]], LENGTH, None)])
    assert unknown.document_bytes.tolist() == [0] * 6, "a part of the bytes must not be taken for all"


def test_padding_belongs_to_no_document() -> None:
    rows = JoinedRows([rows_of_texts(Packed(), [[1] * 5], LENGTH, None, texts=["a"]) for _ in range(2)])
    assert rows[:].document.tolist() == [[0] * 4, [0, -1, -1, -1], [1] * 4, [1, -1, -1, -1]]
    assert rows[:].attention_mask.sum() == rows.counted == 10


def test_rows_of_a_mixture_spread_over_all_parts() -> None:
    some = mixed().spread(10)
    assert (len(some), some.documents, some.counted) == (10, 10, 40)
    assert some[:].document[:, 0].tolist() == list(range(10))
    assert some[:].input_ids[:, 0].tolist() == [0, 5, 11, 17, 22, 28, 34, 39, 45, 1001]


def test_bad_mixtures_are_errors() -> None:
    with pytest.raises(
        UnmaskError, match=r"Part 2 of the mixture has the weight 1 of 1e\+06, less than one .* in 4096"
    ):
        block_quotas((1e6 - 1, 1))
    with pytest.raises(UnmaskError, match="no tokens"):
        MixedRows([table(0, 3), rows_of_texts(Padded(), [[]], LENGTH, None)], (1, 1)).check_trainable()
