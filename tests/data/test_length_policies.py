"""Length policies: every token of every document is where its policy says, and the counts add up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import rows_of_texts
from unmask import registry
from unmask.data import rows as row_tables
from unmask.data.cache import TokenCache
from unmask.data.documents import Document
from unmask.data.encoding import encode, encode_one
from unmask.data.length_policies import (
    Overlaid,
    Packed,
    Padded,
    Policy,
    Prompted,
    SpecialTokens,
    SupervisedEOS,
    rows_given,
)
from unmask.data.rows import RowBatch, Rows
from unmask.data.tokenizers import ByteTokenizer
from unmask.errors import UnmaskError

LISTS = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9]]
TEXTS = ["abc", "", "é", "12345"]
EOS, PAD = 99, 77
TRUNCATED = Padded(overflow="truncate")
POLICIES = [Packed(), Padded(), TRUNCATED, SupervisedEOS()]
DIGITS = registry.build("tokenizer", {"name": "char", "alphabet": "0123456789.=:"}).build()
BYTES = ByteTokenizer().build()


def table(
    policy: Policy,
    length: int,
    eos: int | None = EOS,
    pad: int | None = PAD,
    lists: list[list[int]] = LISTS,
    texts: list[str] | None = None,
) -> Rows:
    return rows_of_texts(policy, lists, length, eos, pad, texts)


def shown(rows: Rows) -> list[str]:
    """Return each row as text: ids, ``.`` after those that are not attended, and the documents."""
    batch = rows[:]
    assert (batch.input_ids.dtype, batch.attention_mask.dtype, batch.document.dtype) == (np.int64, bool, np.int64)
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.document.shape == (len(rows), rows.length)
    cells = [
        [f"{number}{'' if real else '.'}" for number, real in zip(ids, mask, strict=True)]
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
    return [f"{' '.join(row)} | {' '.join(map(str, of))}" for row, of in zip(cells, batch.document, strict=True)]


def sizes(rows: Rows) -> tuple[int, int, int]:
    """Counted positions, bytes and characters."""
    return rows.counted, int(rows.document_bytes.sum()), int(rows.document_characters.sum())


def test_packed_joins_documents_by_eos_and_drops_nothing() -> None:
    rows = table(Packed(), 4, texts=TEXTS)
    assert shown(rows) == [
        "1 2 3 99 | 0 0 0 0",
        "99 4 99 5 | 1 2 2 3",
        "6 7 8 9 | 3 3 3 3",
        "99 77. 77. 77. | 3 -1 -1 -1",
    ]
    assert sizes(rows) == (13, 10, 9)
    assert shown(table(Packed(), 4, eos=None, pad=None)) == [
        "1 2 3 4 | 0 0 0 2",
        "5 6 7 8 | 3 3 3 3",
        "9 0. 0. 0. | 3 -1 -1 -1",
    ], "without EOS documents are joined directly"
    assert table(Packed(), 4).byte_counts is None, "the size of unknown texts is not known"


def test_framed_blocks_begin_with_bos_and_end_with_eos() -> None:
    framed = Packed(framed=True)
    rows = rows_of_texts(framed, LISTS, 6, EOS, PAD, TEXTS, bos_id=88)
    assert shown(rows) == [
        "88 1 2 3 99 99 | 0 0 0 0 0 0",
        "88 99 4 99 5 99 | 1 1 2 2 3 3",
        "88 6 7 8 9 99 | 3 3 3 3 3 3",
        "88 99 99 77. 77. 77. | 3 3 3 -1 -1 -1",
    ]
    assert sizes(rows) == (13 + 2 * 4, 10, 9)
    assert table(framed, 4, lists=[[5, 6, 7]])[:].input_ids.tolist() == [[EOS, 5, 6, EOS], [EOS, 7, EOS, EOS]]
    with pytest.raises(UnmaskError, match="fewer than one block"):
        table(framed, 20).check_trainable()
    with pytest.raises(UnmaskError, match="framed needs a tokenizer with an EOS token"):
        table(framed, 6, eos=None)
    with pytest.raises(UnmaskError, match="must be at least 3 for framed rows, got 2"):
        table(framed, 2)


def test_padded_gives_each_document_its_rows() -> None:
    rows = table(Padded(), 4, texts=TEXTS)
    assert shown(rows) == [
        "1 2 3 99 | 0 0 0 0",
        "99 77. 77. 77. | 1 -1 -1 -1",
        "4 99 77. 77. | 2 2 -1 -1",
        "5 6 7 8 | 3 3 3 3",
        "9 99 77. 77. | 3 3 -1 -1",
    ]
    assert sizes(rows) == (13, 10, 9)
    without_eos = table(Padded(), 5, eos=None)
    assert shown(without_eos) == [
        "1 2 3 77. 77. | 0 0 0 -1 -1",
        "4 77. 77. 77. 77. | 2 -1 -1 -1 -1",
        "5 6 7 8 9 | 3 3 3 3 3",
    ], "an empty document without EOS has no row"


def test_truncation_drops_the_end() -> None:
    rows = table(TRUNCATED, 3, texts=TEXTS)
    assert shown(rows) == ["1 2 3 | 0 0 0", "99 77. 77. | 1 -1 -1", "4 99 77. | 2 2 -1", "5 6 7 | 3 3 3"]
    assert sizes(rows) == (9, 0, 0), "the characters of the dropped tokens are not known"
    assert rows.document_bytes.tolist() == [0] * 4
    assert sizes(table(TRUNCATED, 6, texts=TEXTS)) == (13, 10, 9)


def test_overflow_can_be_an_error() -> None:
    message = r"1 of 4 documents do not fit in a row of 5 \(the longest, document 3, takes 6"
    with pytest.raises(UnmaskError, match=message):
        table(Padded(overflow="error"), 5)
    assert len(table(Padded(overflow="error"), 6)) == 4


def test_supervised_eos_counts_every_position() -> None:
    rows = table(SupervisedEOS(), 4, texts=TEXTS)
    assert shown(rows) == [
        "1 2 3 99 | 0 0 0 0",
        "99 99 99 99 | 1 1 1 1",
        "4 99 99 99 | 2 2 2 2",
        "5 6 7 8 | 3 3 3 3",
        "9 99 99 99 | 3 3 3 3",
    ]
    assert sizes(rows) == (20, 10, 9)
    with pytest.raises(UnmaskError, match="needs a tokenizer with an EOS token"):
        table(SupervisedEOS(), 4, eos=None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_counts_add_up_for_random_documents(policy: Policy, length: int) -> None:
    random = np.random.default_rng(length)
    lists = [random.integers(0, 50, size).tolist() for size in random.integers(0, 20, 60)]
    rows = table(policy, length, lists=lists)
    batch = rows[np.arange(len(rows))]
    assert batch.attention_mask.sum() == rows.counted
    assert np.array_equal(batch.document >= 0, batch.attention_mask)
    assert not batch.frozen.any()
    for index, ids in enumerate(lists):
        own = batch.input_ids[batch.document == index].tolist()
        expected = [*ids, EOS][:length] if policy == TRUNCATED else [*ids, EOS]
        assert own[: len(expected)] == expected
        assert set(own[len(expected) :]) <= ({EOS} if policy.supervises_padding else set())


@pytest.mark.parametrize("policy", POLICIES)
def test_any_rows_in_any_order(policy: Policy) -> None:
    rows = table(policy, 3)
    whole = rows[:]
    picked = [len(rows) - 1, 0, 0, 1]
    for name in ("input_ids", "attention_mask", "document"):
        assert np.array_equal(getattr(rows[picked], name), getattr(whole, name)[picked])
        assert np.array_equal(getattr(rows[1], name), getattr(whole, name)[1:2])
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError):
            rows[[outside]]
    assert len(table(policy, 4, lists=[])) == 0
    empty = table(policy, 2, lists=[[]], texts=[""])
    assert (len(empty), empty[0].input_ids[0, 0]) == (1, EOS)


def test_too_little_text_can_be_scored_but_not_trained_on() -> None:
    rows = table(Packed(), 64)
    assert (len(rows), rows[0].attention_mask.sum()) == (1, 13)
    message = "13 tokens, fewer than one block of 64; choose a length of at most 13 or give"
    with pytest.raises(UnmaskError, match=message):
        rows.check_trainable()
    table(Packed(), 13).check_trainable()
    table(Padded(), 64).check_trainable()
    with pytest.raises(UnmaskError, match="no tokens"):
        table(Padded(), 64, eos=None, lists=[[]]).check_trainable()


def test_eos_is_appended_as_in_training() -> None:
    assert Packed().append_eos([1, 2], 5, EOS) == [1, 2]
    assert Padded().append_eos([1, 2], 5, EOS) == [1, 2, EOS]
    assert SupervisedEOS().append_eos([1, 2], 5, EOS) == [1, 2, EOS, EOS, EOS]
    assert Padded().append_eos([1, 2], 2, EOS) == [1, 2]
    assert Padded().append_eos([1, 2], 5, None) == [1, 2]


def test_given_tokens_are_frozen_and_only_the_text_is_measured() -> None:
    rows = rows_given(
        Packed(), [[1, 2], []], [[3, 4, 5], [6]], length=8, special=SpecialTokens(EOS), texts=["cde", "é"]
    )
    batch = rows[[0, 1]]
    assert batch.input_ids[0].tolist() == [1, 2, 3, 4, 5, EOS], "no longer than the longest text needs"
    assert batch.frozen[0].tolist() == [True, True] + [False] * 4
    assert not batch.frozen[1].any()
    assert batch.attention_mask.sum(axis=1).tolist() == [6, 2]
    assert rows.document_bytes.tolist() == [3, 2]
    assert rows.document_characters.tolist() == [3, 1]
    supervised = rows_given(SupervisedEOS(), [[1]], [[2]], length=5, special=SpecialTokens(EOS), texts=["b"])[0]
    assert supervised.input_ids[0].tolist() == [1, 2, EOS, EOS, EOS]
    assert supervised.attention_mask.all()
    with pytest.raises(UnmaskError, match="take 6 tokens, but the model's rows have 5"):
        rows_given(Packed(), [[1, 2, 3]], [[4, 5]], length=5, special=SpecialTokens(EOS), texts=["de"])


def question_rows(policy: Policy, texts: list[str], length: int, tokenizer: object = DIGITS) -> Rows:
    ids = encode(tokenizer, texts)
    eos = tokenizer.eos_token_id
    return rows_of_texts(policy, ids, length, eos, texts=texts, encode=partial(encode_one, tokenizer))


def frozen_of(row: RowBatch) -> tuple[str, str]:
    return DIGITS.decode(row.input_ids[0]), "".join("x" if one else "-" for one in row.frozen[0])


def test_an_overlaid_row_is_the_answer_with_the_givens_frozen() -> None:
    rows = question_rows(Overlaid(), ["1..4=1234", "....=4321"], 4)
    assert [frozen_of(rows[index]) for index in range(len(rows))] == [("1234", "x--x"), ("4321", "----")]
    both = rows[[1, 0]]
    assert both.attention_mask.all()
    assert both.document.tolist() == [[1] * 4, [0] * 4]
    assert both.frozen.tolist() == [[False] * 4, [True, False, False, True]]
    asked = question_rows(Overlaid(asks=True), ["1..4=1234", ".3..=4321"], 9)
    assert frozen_of(asked[0]) == ("1..4=1234", "xxxxxx--x")
    assert frozen_of(asked[1]) == (".3..=4321", "xxxxx-x--")


def test_a_prompted_row_freezes_everything_up_to_the_first_separator() -> None:
    rows = question_rows(Prompted(), ["12=34", "1=2=3"], 7)
    assert [frozen_of(rows[index])[1][:5] for index in (0, 1)] == ["xxx--", "xx---"]
    assert rows[0].attention_mask[0].tolist() == [True] * 5 + [False] * 2
    row = question_rows(Prompted(separator="\t"), ["un chat\ta cat"], 16, BYTES)[0]
    assert row.frozen[0].tolist() == [True] * 8 + [False] * 8
    assert row.input_ids[0, 13] == BYTES.eos_token_id, "the answer ends with EOS, which counts"
    assert row.attention_mask[0].tolist() == [True] * 14 + [False] * 2


def test_a_prompted_row_may_be_filled_with_eos_that_counts() -> None:
    policy = Prompted(separator="\t", supervised_eos=True)
    rows = question_rows(policy, ["un chat\ta cat", "x\ty"], 16, BYTES)
    both = rows[[0, 1]]
    assert both.frozen.sum(axis=1).tolist() == [8, 2]
    assert both.attention_mask.all()
    assert (both.input_ids == BYTES.eos_token_id).sum(axis=1).tolist() == [3, 13]
    assert policy.supervises_padding
    assert not Prompted().supervises_padding


def test_sizes_of_answers_are_not_those_of_the_whole_text() -> None:
    for rows in (question_rows(Overlaid(), ["1..4=1234"], 4), question_rows(Prompted(), ["12=34"], 5)):
        assert rows.byte_counts is rows.character_counts is None
        assert rows.document_bytes.tolist() == rows.document_characters.tolist() == [0]


@pytest.mark.parametrize(
    ("policy", "texts", "length", "message"),
    [
        (Overlaid(), ["1.=12"], 4, r"equally many tokens with one token between.* data\.length is 4"),
        (Overlaid(), ["1.=12", "1=1"], 2, r"document 1 has 3 tokens"),
        (Overlaid(asks=True), ["12=2"], 4, "equally many tokens"),
        (Prompted(), ["1=2", "12"], 5, "looks for '=' between a question and its answer, but document 1 has none"),
        (Prompted(separator="=:"), ["1=2"], 5, "is 2 tokens; choose"),
        (Prompted(), ["12=345"], 4, "do not fit in a row of 4"),
        (Prompted(supervised_eos=True), ["1=2"], 5, "needs a tokenizer with an EOS token"),
    ],
)
def test_texts_that_are_not_a_question_and_an_answer_are_errors(policy, texts, length, message) -> None:
    with pytest.raises(UnmaskError, match=message):
        question_rows(policy, texts, length)


def test_a_cache_gives_the_same_rows_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    texts = ["héllo", "x", "a longer text"]
    cache = TokenCache.build(lambda: (Document(f"{text}.txt", text) for text in texts), BYTES)
    for policy in (*POLICIES, Packed(framed=True)):
        stored = policy.rows(cache, 5, SpecialTokens.of(BYTES))
        memory = table(policy, 5, 256, None, [list(text.encode()) for text in texts], texts)
        assert shown(stored) == shown(memory)
        assert sizes(stored) == sizes(memory)
    with pytest.raises(UnmaskError, match=r"a longer text\.txt, takes 14"):
        Padded(overflow="error").rows(cache, 5, SpecialTokens(256))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages a process has")
@pytest.mark.parametrize("policy", [Packed(), Padded()])
def test_pages_of_the_map_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    cache = TokenCache.build(lambda: (Document(str(n), "x" * 1000) for n in range(16_000)), BYTES)

    def resident_kilobytes(release_rows: int) -> int:
        monkeypatch.setattr(row_tables, "RELEASE_ROWS", release_rows)
        rows = policy.rows(cache, 1024, SpecialTokens(256))
        for start in range(0, len(rows), 64):
            rows[np.arange(start, min(start + 64, len(rows)))]
        _, *after = Path("/proc/self/smaps").read_text().split(f"{cache.folder / 'ids.bin'}\n")
        return sum(int(part.split("Rss:")[1].split()[0]) for part in after)

    assert resident_kilobytes(1 << 30) > 30_000
    assert resident_kilobytes(64) < 5_000
