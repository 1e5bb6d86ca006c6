"""Translation: figures of sacrebleu, lengths chosen by the model, and the verb with both recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import make_checkpoint
from unmask.config import read_recipe
from unmask.errors import UnmaskError
from unmask.evaluation.translation import Translations, measure, read_pairs, translate
from unmask.pipeline import load
from unmask.training import train

sacrebleu = pytest.importorskip("sacrebleu")

SMALL = ["data.length=8", "data.tokenizer.vocab_size=320", "model.hidden_size=32", "model.layers=2", "model.heads=2"]
SMALL += ["model.dropout=0", "optimizer={name: adamw, learning_rate: 0.01, warmup: 10, ema: 0.9}", "training.steps=150"]
SMALL += ["training.batch_size=32", "training.validation_rows=4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Both recipes, trained on a language of three words in sentences of two."""
    place = tmp_path_factory.mktemp("translation")
    source = "data.source={name: toy_translation, words: 3, longest: 2, count: 200, validation: 4}"
    for name in ("translation", "translation-ar"):
        train(read_recipe(name, [source, *SMALL]), place / name)
    return place


@pytest.fixture(scope="module")
def pairs(folders):
    from unmask.data.sources.parallel import ToyTranslationSource, split_pair

    source = ToyTranslationSource(words=3, longest=2, count=200, validation=4, test=30)
    return [split_pair(one.text) for one in source.documents() if one.name.startswith("test")]


@pytest.mark.parametrize(("name", "steps"), [("translation", 1), ("translation", None), ("translation-ar", None)])
def test_both_recipes_learn_to_translate_and_to_stop(folders, pairs, name, steps):
    lm = load(folders / name, device="cpu")
    done = translate(lm, [source for source, _ in pairs], steps, batch_size=7)
    right = [text == target for text, (_, target) in zip(done.texts, pairs, strict=True)]
    assert sum(right) >= 0.9 * len(right)
    assert done.truncated == 0
    assert done.calls == (1 if steps == 1 else pytest.approx(lm.row_length - 5, abs=3))


def test_a_long_source_is_cut_and_counted(folders):
    done = translate(load(folders / "translation", device="cpu"), ["x" * 40, "y"], 2)
    assert done.truncated == 1
    assert len(done.texts) == 2


def test_figures_are_those_of_sacrebleu():
    references = ["the cat sat on the mat", "a dog runs in the park", "two birds sing"]
    written = ["the cat sat on a mat", "a dog runs", "two birds sing"]
    found = measure(Translations(written, 3.0, 0.5), references)
    assert found["bleu"].value == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score)
    assert found["chrf"].value == pytest.approx(sacrebleu.corpus_chrf(written, [references]).score)
    assert found["length_ratio"].value == pytest.approx(12 / 15)
    assert 0 <= found["bleu"].low < found["bleu"].value < found["bleu"].high <= 100
    assert measure(Translations(references, 3.0, 0.5), references)["bleu"].value == pytest.approx(100)
    many = measure(Translations(written * 60, 3.0, 0.5), references * 60)
    theirs = sacrebleu.BLEU().corpus_score(written * 60, [references * 60], n_bootstrap=1000)
    assert (many["bleu"].high - many["bleu"].low) / 2 == pytest.approx(theirs._ci, rel=0.15)
    none = measure(Translations(["", "the cat sat on the mat"], 3.0, 0.5), references[:2])
    assert none["bleu"].low == 0


def test_the_verb_compares_checkpoints_by_steps(folders, pairs, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.src").write_text("".join(f"{source}\n" for source, _ in pairs))
    Path("a.trg").write_text("".join(f"{target}\n" for _, target in pairs))
    models = (folders / "translation", folders / "translation-ar")
    options = ("--data", "a.src", "--data", "a.trg", "--steps", 1, "--steps", "none", "--count", 12)
    code, out, err = run("eval", "translation", *models, *options, "--out", "all.json")
    assert code == 0, err
    assert all(word in out for word in ("BLEU", "chrF", "translation-ar", "95%"))
    report = json.loads(Path("all.json").read_text())
    rows = report.pop("rows")
    shared = {"pairs": 12, "order": "confidence", "temperature": 0.0, "seed": 0}
    assert report == shared | {"interval": {"level": 0.95, "resamples": 1000}}
    assert [(row["checkpoint"], row["steps"], row["causal"], row["pairs"]) for row in rows] == [
        ("translation", 1, False, 12), ("translation", None, False, 12), ("translation-ar", None, True, 12),
    ]  # fmt: skip
    assert all(row["chrf"]["low"] <= row["chrf"]["value"] <= row["chrf"]["high"] for row in rows)


def test_pairs_come_from_the_training_data_unless_others_are_named(folders, tmp_path):
    lm = load(folders / "translation", device="cpu")
    assert len(read_pairs(lm, "toy-translation", count=5)) == 5
    plain = tmp_path / "plain.txt"
    plain.write_text("\n\n".join(f"Paragraph {number}." for number in range(200)))
    with pytest.raises(UnmaskError, match="names no held-out pairs; give --on or --data"):
        read_pairs(lm)
    with pytest.raises(UnmaskError, match="has no pairs of texts"):
        read_pairs(lm, str(plain))
    lm.config.protocol["data"]["source"] = {"name": "protocol", "protocol": "toy-translation"}
    assert read_pairs(lm) == read_pairs(lm, "toy-translation")


@pytest.mark.parametrize(
    ("policy", "arguments", "words"),
    [
        ("packed", (), "not on pairs of texts"),
        ({"name": "prompted"}, (), "cannot choose the length"),
        ({"name": "prompted", "supervised_eos": True}, (), "--on or --data"),
        ({"name": "prompted", "supervised_eos": True}, ("--on", "multi30kk"), "Did you mean 'multi30k'"),
        ({"name": "prompted", "supervised_eos": True}, ("--on", "x", "--data", "y"), "give one of them"),
        ({"name": "prompted", "supervised_eos": True}, ("--steps", "few"), "few"),
    ],
)
def test_bad_input_is_one_sentence(refused, tmp_path, policy, arguments, words):
    folder = make_checkpoint(tmp_path / "model", policy=policy)
    assert words in refused("eval", "translation", folder, *arguments)
