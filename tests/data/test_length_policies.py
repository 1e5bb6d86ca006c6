"""Rows: every token of every document is where its policy says, and the counts add up."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from unmask import registry
from unmask.data import token_rows
from unmask.data.cache import TokenCache, Tokens
from unmask.data.length_policies import SpecialTokens, rows_of_texts
from unmask.data.rows import Rows
from unmask.data.sources import Document
from unmask.data.tokenizers import ByteTokenizer
from unmask.errors import UnmaskError

LISTS = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9]]
TEXTS = ["abc", "", "é", "12345"]
EOS, PAD = 99, 77
SPECS: list[dict[str, object]] = [
    {"name": "packed"},
    {"name": "padded"},
    {"name": "padded", "overflow": "truncate"},
    {"name": "supervised_eos"},
]


def table(
    spec: str | dict[str, object],
    length: int,
    eos: int | None = EOS,
    pad: int | None = PAD,
    lists: list[list[int]] = LISTS,
    texts: list[str] | None = None,
) -> Rows:
    return rows_of_texts(registry.build("policy", spec), lists, length, eos, pad, texts)


def shown(rows: Rows) -> list[str]:
    """Each row as text: ids, ``.`` behind what is not attended, and the documents."""
    batch = rows[:]
    assert (batch.input_ids.dtype, batch.attention_mask.dtype, batch.document.dtype) == (np.int64, bool, np.int64)
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.document.shape == (len(rows), rows.length)
    cells = [
        [f"{number}{'' if real else '.'}" for number, real in zip(ids, mask, strict=True)]
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
    return [f"{' '.join(row)} | {' '.join(map(str, of))}" for row, of in zip(cells, batch.document, strict=True)]


def test_packed_joins_documents_by_eos_and_drops_nothing() -> None:
    assert shown(table("packed", 4)) == [
        "1 2 3 99 | 0 0 0 0",
        "99 4 99 5 | 1 2 2 3",
        "6 7 8 9 | 3 3 3 3",
        "99 77. 77. 77. | 3 -1 -1 -1",
    ]
    assert table("packed", 4).counted == 13


def test_packed_without_eos_joins_directly_and_pads_with_0() -> None:
    assert shown(table("packed", 4, eos=None, pad=None)) == [
        "1 2 3 4 | 0 0 0 2",
        "5 6 7 8 | 3 3 3 3",
        "9 0. 0. 0. | 3 -1 -1 -1",
    ]


def test_padded_gives_each_document_its_rows() -> None:
    rows = table("padded", 4, texts=TEXTS)
    assert shown(rows) == [
        "1 2 3 99 | 0 0 0 0",
        "99 77. 77. 77. | 1 -1 -1 -1",
        "4 99 77. 77. | 2 2 -1 -1",
        "5 6 7 8 | 3 3 3 3",
        "9 99 77. 77. | 3 3 -1 -1",
    ]
    assert (rows.counted, rows.bytes, rows.characters) == (13, 10, 9)
    assert (rows.split_documents, rows.truncated_documents) == (1, 0)


def test_padded_without_eos_has_no_row_for_nothing() -> None:
    assert shown(table("padded", 5, eos=None)) == [
        "1 2 3 77. 77. | 0 0 0 -1 -1",
        "4 77. 77. 77. 77. | 2 -1 -1 -1 -1",
        "5 6 7 8 9 | 3 3 3 3 3",
    ]
    assert table("padded", 5, eos=None).split_documents == 0


def test_truncation_loses_the_end_and_says_so() -> None:
    rows = table({"name": "padded", "overflow": "truncate"}, 3, texts=TEXTS)
    assert shown(rows) == ["1 2 3 | 0 0 0", "99 77. 77. | 1 -1 -1", "4 99 77. | 2 2 -1", "5 6 7 | 3 3 3"]
    assert (rows.split_documents, rows.truncated_documents, rows.counted) == (0, 2, 9)
    assert rows.bytes is rows.characters is None, "the characters of the lost tokens are not known"
    assert table({"name": "padded", "overflow": "truncate"}, 6, texts=TEXTS).characters == 9


def test_overflow_can_be_an_error() -> None:
    with pytest.raises(
        UnmaskError, match=r"1 of 4 documents do not fit in a row of 5 \(the longest, document 3, takes 6"
    ):
        table({"name": "padded", "overflow": "error"}, 5)
    assert len(table({"name": "padded", "overflow": "error"}, 6)) == 4


def test_supervised_eos_learns_the_end() -> None:
    rows = table("supervised_eos", 4, texts=TEXTS)
    assert shown(rows) == [
        "1 2 3 99 | 0 0 0 0",
        "99 99 99 99 | 1 1 1 1",
        "4 99 99 99 | 2 2 2 2",
        "5 6 7 8 | 3 3 3 3",
        "9 99 99 99 | 3 3 3 3",
    ]
    assert (rows.counted, rows.characters, rows.split_documents) == (20, 9, 1)
    with pytest.raises(UnmaskError, match="needs a tokenizer with an EOS token"):
        table("supervised_eos", 4, eos=None)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_counts_add_up_for_random_documents(spec: dict[str, object], length: int) -> None:
    random = np.random.default_rng(length)
    lists = [random.integers(0, 50, size).tolist() for size in random.integers(0, 20, 60)]
    rows = table(spec, length, lists=lists)
    batch = rows[np.arange(len(rows))]
    assert batch.attention_mask.sum() == rows.counted
    assert np.array_equal(batch.document >= 0, batch.attention_mask)
    assert not batch.frozen.any()
    ends = [[*ids, EOS] for ids in lists]
    for index, whole in enumerate(ends):
        own = batch.input_ids[batch.document == index].tolist()
        expected = whole[:length] if spec.get("overflow") == "truncate" else whole
        assert own[: len(expected)] == expected
        assert set(own[len(expected) :]) <= ({EOS} if spec["name"] == "supervised_eos" else set())


@pytest.mark.parametrize("spec", SPECS)
def test_any_rows_in_any_order(spec: dict[str, object]) -> None:
    rows = table(spec, 3)
    whole = rows[:]
    picked = [len(rows) - 1, 0, 0, 1]
    for name in ("input_ids", "attention_mask", "document"):
        assert np.array_equal(getattr(rows[picked], name), getattr(whole, name)[picked])
        assert np.array_equal(getattr(rows[1], name), getattr(whole, name)[1:2])
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError):
            rows[[outside]]


def test_a_corpus_shorter_than_a_block_scores_but_does_not_train() -> None:
    rows = table("packed", 64)
    assert len(rows) == 1
    assert rows[0].attention_mask.sum() == 13
    with pytest.raises(
        UnmaskError, match="13 tokens, less than one block of 64; choose a length of at most 13 or give"
    ):
        rows.check_trainable()
    table("packed", 13).check_trainable()
    table("padded", 64).check_trainable()
    with pytest.raises(UnmaskError, match="no tokens"):
        table("padded", 64, eos=None, lists=[[]]).check_trainable()


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_and_the_empty_text(spec: dict[str, object]) -> None:
    assert len(table(spec, 4, lists=[])) == 0
    rows = table(spec, 2, lists=[[]], texts=[""])
    assert len(rows) == 1
    assert rows[0].input_ids[0, 0] == EOS
    assert rows.characters == 0


def test_the_length_is_checked() -> None:
    with pytest.raises(UnmaskError, match="length 0"):
        table("packed", 0)


def test_sizes_are_unknown_without_texts() -> None:
    assert table("packed", 4).bytes is None
    assert table("packed", 4, texts=TEXTS).bytes == 10


def test_a_cache_gives_the_rows_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    texts = ["héllo", "x", "a longer text"]
    tokenizer = ByteTokenizer().build(lambda: iter(()))
    cache = TokenCache.build(lambda: (Document(f"{text}.txt", text) for text in texts), tokenizer)
    for spec in SPECS:
        policy = registry.build("policy", spec)
        stored, memory = (
            policy.rows(cache, 5, SpecialTokens(256)),
            table(spec, 5, 256, None, [list(t.encode()) for t in texts], texts),
        )
        assert shown(stored) == shown(memory)
        assert (stored.counted, stored.bytes, stored.characters) == (memory.counted, memory.bytes, memory.characters)
    with pytest.raises(UnmaskError, match=r"a longer text\.txt, takes 14"):
        registry.build("policy", {"name": "padded", "overflow": "error"}).rows(cache, 5, SpecialTokens(256))


@pytest.mark.parametrize("name", ["packed", "padded", "supervised_eos"])
def test_a_million_tokens_a_second(name: str) -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(50, 400, 20_000)
    tokens = Tokens(
        random.integers(0, 50_000, sizes.sum()).astype(np.uint16), np.concatenate([[0], np.cumsum(sizes)]), None, None
    )
    rows = registry.build("policy", name).rows(tokens, 256, SpecialTokens(50_000))
    batches = [random.integers(0, len(rows), 64) for _ in range(30)]
    start = time.process_time()
    count = sum(rows[batch].input_ids.size for batch in batches)
    assert count / (time.process_time() - start) > 1e6


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says which pages a process has")
@pytest.mark.parametrize("name", ["packed", "padded"])
def test_pages_of_the_map_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    tokenizer = ByteTokenizer().build(lambda: iter(()))
    cache = TokenCache.build(lambda: (Document(str(n), "x" * 1000) for n in range(16_000)), tokenizer)

    def resident() -> int:
        """Kilobytes of this process that are pages of the map of ids."""
        _, *after = Path("/proc/self/smaps").read_text().split(f"{cache.folder / 'ids.bin'}\n")
        assert after
        return sum(int(part.split("Rss:")[1].split()[0]) for part in after)

    def read(every: int) -> int:
        monkeypatch.setattr(token_rows, "RELEASE_ROWS", every)
        rows = registry.build("policy", name).rows(cache, 1024, SpecialTokens(256))
        for start in range(0, len(rows), 64):
            rows[np.arange(start, min(start + 64, len(rows)))]
        return resident()

    assert read(1 << 30) > 30_000
    assert read(64) < 5_000
