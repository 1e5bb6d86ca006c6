"""Rows with a given part, some rows of a table, and texts framed as in training."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.data.length_policies import Packed, Padded, SupervisedEOS, rows_given, rows_of_texts
from unmask.errors import UnmaskError

EOS = 9


def test_given_tokens_are_frozen_and_the_text_alone_is_measured():
    rows = rows_given(Packed(), [[1, 2], []], [[3, 4, 5], [6]], length=8, eos_id=EOS, texts=["cde", "é"])
    table = rows[[0, 1]]
    assert table.input_ids[0, :6].tolist() == [1, 2, 3, 4, 5, EOS]
    assert table.frozen[0].tolist() == [True, True] + [False] * 6
    assert not table.frozen[1].any()
    assert table.attention_mask.sum(axis=1).tolist() == [6, 2]
    assert rows.document_bytes.tolist() == [3, 2]
    assert rows.document_characters.tolist() == [3, 1]


def test_learnt_ends_are_counted_behind_a_given_text():
    rows = rows_given(SupervisedEOS(), [[1]], [[2]], length=5, eos_id=EOS, texts=["b"])
    assert rows[0].input_ids[0].tolist() == [1, 2, EOS, EOS, EOS]
    assert rows[0].attention_mask.all()


def test_what_does_not_fit_is_named():
    with pytest.raises(UnmaskError, match="take 6 tokens, but the model's rows have 5"):
        rows_given(Packed(), [[1, 2, 3]], [[4, 5]], length=5, eos_id=EOS, texts=["de"])


def test_some_rows_know_their_tokens_but_not_their_bytes():
    rows = rows_of_texts(Packed(), [[1] * 30], length=8, eos_id=EOS, texts=["a" * 30])
    part = rows.spread(2)
    assert len(part) == 2
    assert np.array_equal(part[[1]].input_ids, rows[[2]].input_ids)
    assert part.counted == 16
    assert part.document_bytes.sum() == 0
    assert rows.spread(99) is rows


def test_texts_are_framed_as_the_policy_shows_them():
    assert Packed().append_eos([1, 2], 5, EOS) == [1, 2]
    assert Padded().append_eos([1, 2], 5, EOS) == [1, 2, EOS]
    assert SupervisedEOS().append_eos([1, 2], 5, EOS) == [1, 2, EOS, EOS, EOS]
    assert Padded().append_eos([1, 2], 2, EOS) == [1, 2]
    assert Padded().append_eos([1, 2], 5, None) == [1, 2]
