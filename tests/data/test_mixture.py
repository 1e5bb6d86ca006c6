"""Mixtures: weights met exactly, parts read in their own order, one tokenizer, and a cache for each part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unmask import registry
from unmask.config import parse_recipe
from unmask.data.encoding import Encoder
from unmask.data.length_policies import Packed, Padded, rows_of_texts
from unmask.data.rows import Rows, sample_rows
from unmask.data.split import Corpus, MixtureSource, prepare, weighted_parts
from unmask.data.token_rows import MIXED_BLOCK, JoinedRows, MixedRows, quotas
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer
from unmask.errors import UnmaskError

LENGTH = 4


def table(first: int, rows: int) -> Rows:
    """Rows of one document each; row i holds first + i."""
    lists = [[first + number] * LENGTH for number in range(rows)]
    return rows_of_texts(Padded(), lists, LENGTH, eos_id=None, texts=["é" * LENGTH] * rows)


def mixed(weights: tuple[float, ...] = (3, 1), sizes: tuple[int, ...] = (50, 7)) -> MixedRows:
    return MixedRows([table(1000 * number, size) for number, size in enumerate(sizes)], weights)


@pytest.mark.parametrize("weights", [(3, 1), (1, 1, 1), (0.7, 0.2, 0.1), (5,), (1, 1e-3 * 2, 7)])
def test_every_block_meets_the_weights(weights: tuple[float, ...]) -> None:
    wanted = quotas(weights)
    exact = MIXED_BLOCK * np.array(weights) / sum(weights)
    assert sum(wanted) == MIXED_BLOCK
    assert (abs(wanted - exact) < 1).all()
    rows = mixed(weights, sizes=(9, 20, 300)[: len(weights)])
    drawn = rows[rows.sample(5, np.arange(3 * MIXED_BLOCK))].input_ids[:, 0] // 1000
    for block in drawn.reshape(3, MIXED_BLOCK):
        assert np.bincount(block, minlength=len(weights)).tolist() == list(wanted)


def test_the_rest_goes_to_the_largest_remainders() -> None:
    assert quotas((1, 1, 1)) == (1366, 1365, 1365)
    assert quotas((0.5 + 0.6 / MIXED_BLOCK, 0.25 - 0.2 / MIXED_BLOCK, 0.25 - 0.4 / MIXED_BLOCK)) == (2049, 1024, 1023)


def test_places_are_shuffled_anew_in_each_block() -> None:
    rows = mixed()
    first, second = (rows.sample(5, np.arange(MIXED_BLOCK) + start) >= 50 for start in (0, MIXED_BLOCK))
    assert (first == second).mean() < 0.7
    halves = first.reshape(2, -1).sum(axis=1)
    assert abs(halves[0] - halves[1]) < 5 * np.sqrt(MIXED_BLOCK * 3 / 16)
    assert (rows.sample(6, np.arange(MIXED_BLOCK)) >= 50).tolist() != first.tolist()


def test_a_part_is_read_in_the_order_in_which_it_would_be_alone() -> None:
    rows = mixed()
    drawn = rows.sample(5, np.arange(3 * MIXED_BLOCK))
    for first, size in ((0, 50), (50, 7)):
        own = drawn[(drawn >= first) & (drawn < first + size)] - first
        assert own.tolist() == sample_rows(5, size, np.arange(len(own))).tolist()


def test_any_sample_can_be_asked_for_alone() -> None:
    rows = mixed((0.6, 0.3, 0.1), (50, 7, 30))
    whole = rows.sample(5, np.arange(2 * MIXED_BLOCK))
    some = np.random.default_rng(0).integers(0, 2 * MIXED_BLOCK, (10, 20))
    assert np.array_equal(rows.sample(5, some), whole[some])
    assert rows.sample(5, 4711) == whole[4711]
    assert rows.sample(5, []).size == 0
    far = rows.sample(5, 10**12 + np.arange(100))
    assert ((far >= 0) & (far < len(rows))).all()


def test_a_table_alone_is_sampled_in_shuffled_epochs() -> None:
    rows = table(0, 40)
    assert np.array_equal(rows.sample(3, np.arange(100)), sample_rows(3, 40, np.arange(100)))


def test_joined_tables_are_read_one_after_the_other() -> None:
    one, empty, other = table(0, 5), rows_of_texts(Padded(), [], LENGTH, None, texts=[]), table(100, 3)
    rows = JoinedRows([one, empty, other])
    assert (len(rows), rows.documents, rows.counted) == (8, 8, 32)
    assert rows[:].input_ids[:, 0].tolist() == [0, 1, 2, 3, 4, 100, 101, 102]
    assert rows[[6, 0, 6]].input_ids[:, 0].tolist() == [101, 0, 101]
    assert rows[[6, 0, 6]].document[:, 0].tolist() == [6, 0, 6]
    assert (rows.bytes, rows.characters) == (64, 32)
    assert rows.document_bytes.tolist() == [8] * 8
    assert rows.document_characters.tolist() == [4] * 8
    with pytest.raises(IndexError):
        rows[8]


def test_pads_belong_to_no_document_of_any_table() -> None:
    rows = JoinedRows([rows_of_texts(Packed(), [[1] * 5], LENGTH, None, texts=["a"]) for _ in range(2)])
    assert rows[:].document.tolist() == [[0] * 4, [0, -1, -1, -1], [1] * 4, [1, -1, -1, -1]]
    assert rows[:].attention_mask.sum() == rows.counted == 10


def test_sizes_are_not_known_where_one_table_does_not_know_them() -> None:
    rows = JoinedRows([table(0, 5), rows_of_texts(Padded(), [[1]], LENGTH, None)])
    assert rows.bytes is rows.characters is None
    assert rows.document_bytes.tolist() == [0] * 6, "a sum of some would be taken for that of all"


def test_spread_rows_of_a_mixture_number_their_documents_anew() -> None:
    some = mixed().spread(10)
    assert (len(some), some.documents, some.counted) == (10, 10, 40)
    assert some[:].document[:, 0].tolist() == list(range(10))
    assert some[:].input_ids[:, 0].tolist() == [0, 5, 11, 17, 22, 28, 34, 39, 45, 1001]


def test_spread_rows_keep_pads_apart_from_documents() -> None:
    rows = rows_of_texts(Padded(), [[number] * 2 for number in range(20)], LENGTH, None).spread(3)
    assert rows[:].document.tolist() == [[n, n, -1, -1] for n in range(3)]


def test_a_weight_too_small_for_a_block_is_refused() -> None:
    with pytest.raises(UnmaskError, match=r"Part 2 of the mixture has the weight 1 of 1e\+06, less than one sample"):
        quotas((1e6 - 1, 1))


def test_each_part_must_have_something_to_train_on() -> None:
    with pytest.raises(UnmaskError, match="no tokens"):
        MixedRows([table(0, 3), rows_of_texts(Padded(), [[]], LENGTH, None)], (1, 1)).check_trainable()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text("\n".join(f"roses are red {number}" for number in range(300)))
    (tmp_path / "prose.txt").write_text("\n".join(f"it was a dark night {number}" for number in range(100)))
    return tmp_path


def mixture(folder: Path, *weights: float) -> MixtureSource:
    paths = [folder / name for name in ("verse.txt", "prose.txt")]
    sources = [{"name": "text", "paths": str(path), "separator": "line"} for path in paths]
    parts = [{"source": source, "weight": weight} for source, weight in zip(sources, weights, strict=True)]
    return registry.build("source", {"name": "mixture", "parts": parts})


def texts(corpus: Corpus, side: str) -> list[list[str]]:
    return [
        corpus.tokenizer.batch_decode([tokens.document(index).tolist() for index in range(len(tokens))])
        for tokens in getattr(corpus, f"{side}_parts")
    ]


def test_each_part_has_its_own_split_and_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = mixture(folder, 3, 1)
    corpus = prepare(source, ByteTokenizer(), fraction=0.1)
    for part, train, validation in zip(source.parts, texts(corpus, "train"), texts(corpus, "validation"), strict=True):
        alone = prepare(part.source, ByteTokenizer(), fraction=0.1)
        assert (texts(alone, "train"), texts(alone, "validation")) == ([train], [validation])
        assert alone.train.folder in [tokens.folder for tokens in corpus.train_parts]
    monkeypatch.setattr(Encoder, "encode", None)
    again = prepare(mixture(folder, 1, 5), ByteTokenizer(), fraction=0.1)
    assert [tokens.folder for tokens in again.train_parts] == [tokens.folder for tokens in corpus.train_parts]


def test_rows_of_a_mixture(folder: Path) -> None:
    corpus = prepare(mixture(folder, 3, 1), ByteTokenizer(), fraction=0.1)
    train, validation = corpus.rows(Padded(), 32)
    assert isinstance(train, MixedRows)
    assert train.quotas == (3072, 1024)
    assert (len(train) + len(validation), train.length) == (400, 32)
    order = [bytes(row[:3].tolist()).decode() for row in validation[:].input_ids]
    verses = len(corpus.validation_parts[0])
    assert order == ["ros"] * verses + ["it "] * (len(order) - verses), "as they are, one part after the other"
    single, _ = prepare(mixture(folder, 3, 1).parts[0].source, ByteTokenizer()).rows(Packed(), 32)
    assert not isinstance(single, JoinedRows)


def test_a_learnt_tokenizer_sees_the_training_text_of_all_parts(folder: Path) -> None:
    corpus = prepare(mixture(folder, 100, 1), BPETokenizer(vocab_size=400))
    learnt = "".join(corpus.tokenizer.get_vocab())
    assert "roses" in learnt
    assert "night" in learnt
    assert prepare(mixture(folder, 1, 1), BPETokenizer(vocab_size=400)).train_parts[1].folder == (
        corpus.train_parts[1].folder
    ), "whatever the weights"


def test_mixtures_inside_mixtures_are_taken_apart(folder: Path) -> None:
    inner = mixture(folder, 3, 1)
    source = registry.build("source", {"name": "mixture", "parts": [{"source": inner}, {"source": "stdlib"}]})
    parts = weighted_parts(source)
    assert [part.name for part, _ in parts] == ["text", "text", "stdlib"]
    assert [weight for _, weight in parts] == [0.375, 0.125, 0.5]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least 1 item"),
        ([{"source": "stdlib", "weight": 0}], "greater than 0"),
        ([{"source": "stdlib", "weight": -1}], "greater than 0"),
        ([{"source": "stdlib", "weight": float("inf")}], "finite"),
        ([{"source": "stdlb"}], "Did you mean 'stdlib'"),
        ([{"source": "stdlib", "wieght": 1}], "wieght"),
        ([{"weight": 1}], "source"),
    ],
)
def test_what_is_wrong_with_a_mixture_is_said(parts: list[object], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        registry.build("source", {"name": "mixture", "parts": parts})


def test_a_recipe_with_a_mixture_survives_its_yaml(folder: Path) -> None:
    import yaml

    recipe = parse_recipe({"data": {"source": mixture(folder, 3, 1).model_dump(mode="json")}})
    assert parse_recipe(yaml.safe_load(recipe.to_yaml())) == recipe
    assert recipe.data.source.persistent
    with_stdin = registry.build("source", {"name": "mixture", "parts": [{"source": "stdlib"}, {"source": "stdin"}]})
    assert not with_stdin.persistent
