"""Self-BLEU against sacrebleu, failures counted by hand, MAUVE of equal and of different texts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.judges import CONTEXT, save_judge
from unmask.evaluation.judge import open_judge
from unmask.evaluation.quality import count_failures, mauve, self_bleu

TEXTS = [
    "The cat sat on the mat, and the cat slept.",
    "The cat sat on the chair and the dog slept on the mat.",
    "A dog sat.",
    "",
    "the the the the cat",
    "A dog sat.",
    "Nothing else in here matches!",
]


def test_self_bleu_is_the_sentence_bleu_of_each_text_against_the_others():
    sacrebleu = pytest.importorskip("sacrebleu")
    expected = [sacrebleu.sentence_bleu(text, TEXTS[:i] + TEXTS[i + 1 :]).score for i, text in enumerate(TEXTS)]
    assert self_bleu(TEXTS) == pytest.approx(expected)
    assert expected[2] == pytest.approx(100)
    assert 0 < expected[0] < 100


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        ('She said "yes".', ""),
        ('She said "yes.', "unfinished_quotes"),
        ("She said “yes”.", ""),
        ("She said “yes.”)  \n", ""),
        ("She “said yes.", "unfinished_quotes"),
        ("She said", "unfinished_end"),
        ("She said,", "unfinished_end"),
        ('She "said', "unfinished_quotes unfinished_end"),
        ("Yes!", ""),
        ("", ""),
        (" \n", ""),
        ("One two three four five six seven. Yes.", ""),
        ("One two three four five six seven eight, one two three four five six seven eight.", "repeated_spans"),
        ("one " * 8 + "two three.", ""),
        ("one " * 9 + "two three.", "repeated_spans"),
    ],
)
def test_failures_of_a_text(text, failures):
    found = count_failures([text], None)
    assert found.pop("broken_words") is None, "there are no held-out texts"
    assert {name for name, (failed, _) in found.items() if failed.item()} == set(failures.split())


def test_blank_texts_have_no_end():
    _, total = count_failures(["", " ", "a"], None)["unfinished_end"]
    assert total.tolist() == [0, 0, 1]


def test_words_that_no_other_held_out_text_has_are_broken():
    held_out = ["The cat's mat. A dog!", "a DOG and the cat", "a 4x4 car"]
    broken, words = count_failures(["The dgo, the cat's dog 12.", "", "Car car xx y_y"], held_out)["broken_words"]
    assert broken.tolist() == [1, 0, 3], "dgo; xx, x, x"
    assert words.tolist() == [5, 0, 5]
    own, _ = count_failures(held_out, held_out, are_held_out=True)["broken_words"]
    assert own.tolist() == [2, 2, 2], "cat's, mat; and, cat; x, car"


def test_mauve_is_high_for_equal_laws_and_low_for_different_ones():
    pytest.importorskip("mauve")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 16)) * 5
    held_out, same = (centres[rng.integers(4, size=200)] + rng.normal(size=(200, 16)) for _ in range(2))
    near = centres[rng.integers(2, size=200)] + rng.normal(size=(200, 16))
    far = rng.normal(size=(200, 16)) - 9
    values = [mauve(held_out, other) for other in (same, near, far)]
    assert values[0].value > 0.8 > values[1].value > 0.2 > values[2].value
    assert all(0 <= one.low <= one.value <= one.high <= 1 for one in values)
    assert values[1].high - values[1].low > 0.02
    few = mauve(held_out[:20], near[:20])
    assert few.high - few.low > values[1].high - values[1].low


def test_features_are_those_of_mauve_text(tmp_path):
    utils = pytest.importorskip("mauve.utils")
    import torch

    judge = open_judge(str(save_judge(tmp_path / "llama")), "cpu")
    texts = ["a few words", "", "x", "a text that is longer than the context of the judge"]
    ids = judge.encode(texts)
    found = judge.features(ids, batch_size=2)
    expected = utils.featurize_tokens_from_model(
        judge.model, [torch.tensor([row[:CONTEXT] or [judge.bos]]) for row in ids], batch_size=1
    )
    assert found == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-5)
