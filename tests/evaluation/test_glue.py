"""GLUE: tiny tasks are learned, scores agree with hand computation, results repeat, and finished work is kept."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import make_checkpoint
from tests.encoders import make_encoder
from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data.glue import TASKS, Examples, TaskData
from unmask.errors import UnmaskError
from unmask.evaluation.glue import (
    EncodedTask,
    GlueResult,
    GlueSettings,
    SequenceClassifier,
    batch_rows,
    choose_rate,
    collate,
    encode_examples,
    evaluate_glue,
    fine_tune,
    fine_tune_side_by_side,
    glue_table,
    score,
)
from unmask.evaluation.tables.workspace import Workspace
from unmask.pipeline import build_pipeline, load

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

QUICK = GlueSettings(learning_rates=(3e-3,), seeds=1, epochs=6)


def small_lm(model: str, length: int = 32, tokenizer: str = "byte", **special: str):
    """A fresh model of bytes or bases, optionally with special tokens of its own."""
    torch.manual_seed(0)
    tokenizer = registry.build("tokenizer", tokenizer).build()
    if special:
        tokenizer.add_special_tokens(special)
    heads = {"heads": 2} if model in ("dit", "causal", "encoder") else {}
    spec = registry.build("model", {"name": model, "hidden_size": 32, "layers": 1, "dropout": 0.0, **heads})
    options = spec.token_options(tokenizer) if model == "encoder" else {}
    network = spec.build(len(tokenizer), tokenizer.mask_token_id, length, **options)
    config = CheckpointConfig(objective="ar" if spec.causal else "subs", length=length)
    return build_pipeline(network.eval(), tokenizer, config)


def make_task(name: str, count: int = 160) -> TaskData:
    """Sentences whose label is whether they have a 'z', and pairs whose label is the share of 'z' in the second."""
    generator = np.random.default_rng(0)
    task, texts, labels = TASKS[name], [], []
    for _ in range(2 * count):
        letters = generator.choice(list("abcd"), size=generator.integers(4, 10))
        positive = bool(generator.integers(2))
        if not task.classes:
            share = generator.integers(len(letters) + 1)
            letters[:share] = "z"
            labels.append(5 * share / len(letters))
        else:
            letters[generator.integers(len(letters))] = "z" if positive else "b"
            labels.append(float(positive))
        texts.append(("ab", "".join(letters)) if len(task.texts) == 2 else ("".join(letters),))
    dev = Examples(texts[count:], labels[count:])
    return TaskData(task, Examples(texts[:count], labels[:count]), (dev,) * len(task.dev))


@pytest.mark.parametrize(
    ("model", "name", "score_name"),
    [
        *((model, "SST-2", "accuracy") for model in ("dit", "causal", "encoder", "mamba", "bimamba", "hyena")),
        ("dit", "STS-B", "Spearman"),
        ("causal", "MRPC", "F1"),
    ],
)
def test_a_simple_function_of_the_text_is_learned(model, name, score_name):
    lm = small_lm(model)
    rate = 1e-2 if model == "mamba" else 3e-3
    scores = fine_tune(lm, EncodedTask.of(lm, make_task(name)), rate, 0, QUICK)
    assert scores[score_name] > 85


def test_the_checkpoint_itself_is_not_changed_and_results_repeat():
    lm = small_lm("dit")
    before = {name: weight.clone() for name, weight in lm.denoiser.state_dict().items()}
    encoded, settings = EncodedTask.of(lm, make_task("STS-B", 40)), GlueSettings(epochs=1)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = fine_tune(lm, encoded, 1e-3, 0, settings)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert fine_tune(lm, encoded, 1e-3, 0, settings) == first
    assert fine_tune(lm, encoded, 1e-3, 1, settings) != first
    assert fine_tune(lm, encoded, 2e-3, 0, settings) != first
    assert all(torch.equal(weight, before[name]) for name, weight in lm.denoiser.state_dict().items())
    assert not lm.denoiser.training
    assert all(weight.grad is None for weight in lm.denoiser.parameters())


def test_scores_agree_with_hand_computation():
    truth, found = [1, 1, 1, 0, 0, 0, 0, 1], np.array([1, 1, 0, 0, 0, 1, 0, 1.0])
    tp, fp, fn, tn = 3, 1, 1, 3
    matthews = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert score(TASKS["CoLA"], [found], [truth]) == {"Matthews": pytest.approx(100 * matthews)}
    both = {"F1": pytest.approx(100 * 2 * tp / (2 * tp + fp + fn)), "accuracy": pytest.approx(75.0)}
    assert score(TASKS["MRPC"], [found], [truth]) == both
    x, y = np.array([1.0, 2.0, 3.0, 10.0]), [1.0, 3.0, 2.0, 4.0]
    pearson = np.corrcoef(x, y)[0, 1]
    ranks = 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)
    expected = {"Spearman": pytest.approx(100 * ranks), "Pearson": pytest.approx(100 * pearson)}
    assert score(TASKS["STS-B"], [x], [y]) == expected
    assert score(TASKS["STS-B"], [np.ones(4)], [y]) == {"Spearman": 0.0, "Pearson": 0.0}
    assert score(TASKS["STS-B"], [np.full(4, np.nan)], [y]) == {"Spearman": 0.0, "Pearson": 0.0}
    assert score(TASKS["MRPC"], [np.zeros(2)], [[1, 1]]) == {"F1": 0.0, "accuracy": 0.0}
    two = score(TASKS["MNLI"], [np.array([0, 1.0]), np.array([2, 2.0])], [[0, 1], [2, 0]])
    assert two == {"accuracy, matched": 100.0, "accuracy, mismatched": 50.0}


def test_rows_have_the_tokens_of_the_checkpoint(tmp_path):
    byte = list(b"abcdef")
    lm = load(make_checkpoint(tmp_path / "dit", policy="padded"), device="cpu")
    eos = lm.tokenizer.eos_token_id
    assert encode_examples(lm, [("ab", "cd"), ("a", "")]) == ([[*byte[:2], eos, *byte[2:4], eos], [97, eos, eos]], 0)
    causal = load(make_checkpoint(tmp_path / "ar", model="causal"), device="cpu")
    begin, eos = causal.denoiser.config.bos_token_id, causal.tokenizer.eos_token_id
    assert encode_examples(causal, [("ab",)]) == ([[begin, *byte[:2]]], 0)
    assert encode_examples(causal, [("ab", "c")]) == ([[begin, *byte[:2], eos, 99]], 0)
    lm.denoiser.config.frame = (1, 2)  # a network that frames its rows itself, as encoders do
    assert encode_examples(lm, [("ab", "cd")])[0] == [[*byte[:2], lm.tokenizer.eos_token_id, *byte[2:4]]]
    with_sep = small_lm("dit", cls_token="[CLS]", sep_token="[SEP]")
    assert encode_examples(with_sep, [("ab", "c")])[0] == [[*byte[:2], with_sep.tokenizer.sep_token_id, 99]]


def test_long_pairs_lose_tokens_of_the_longer_sentence():
    lm = small_lm("dit", length=8)
    eos = lm.tokenizer.eos_token_id
    rows, cut = encode_examples(
        lm, [("ab", "cdefghij"), ("abcdefgh", "ijklmnop"), ("abcdefghij", "k"), ("abc", "defg")]
    )
    sizes = [(row.index(eos), len(row) - row.index(eos) - 1) for row in rows]
    assert sizes[0] == (2, 5)
    assert sorted(sizes[1]) == [3, 4]
    assert sizes[2:] == [(6, 1), (3, 4)]
    assert cut == 3
    assert rows[2] == [*b"abcdef", eos, *b"k"]


def test_letters_without_a_token_are_refused(shipped_models):
    with pytest.raises(UnmaskError, match="alphabet"):
        encode_examples(load("smoke"), [("Hello there",)])


def test_batches_cover_an_epoch_with_little_padding():
    sizes = np.random.default_rng(0).integers(1, 100, 333).tolist()
    batches = batch_rows(sizes, 16, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(333))
    assert sorted(map(len, batches))[:2] == [333 % 16, 16]
    spread = [np.ptp([sizes[i] for i in batch]) for batch in batches]
    assert np.mean(spread) < 10
    assert np.corrcoef(range(len(batches)), [sizes[batch[0]] for batch in batches])[0, 1] < 0.5
    assert [b.tolist() for b in batches] == [b.tolist() for b in batch_rows(sizes, 16, 1, 0)]
    assert [b.tolist() for b in batches] != [b.tolist() for b in batch_rows(sizes, 16, 1, 1)]
    assert [b.tolist() for b in batches] != [b.tolist() for b in batch_rows(sizes, 16, 2, 0)]


@pytest.mark.parametrize("model", ["dit", "causal", "encoder", "mamba", "bimamba", "hyena", "caduceus-ps"])
def test_padding_does_not_change_the_output(model):
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if model == "encoder" else {}
    lm = small_lm(model, tokenizer="byte", **special)
    classifier = SequenceClassifier(lm.denoiser, 3, lm.causal).eval()
    rows = [[1, 2, 3], [4, 5, 6, 7, 8, 9]]
    both = classifier(*collate(rows, torch.device("cpu")))
    alone = torch.cat([classifier(*collate([row], torch.device("cpu"))) for row in rows])
    torch.testing.assert_close(both, alone, rtol=1e-5, atol=1e-6)
    other = classifier(*collate([[1, 2, 4]], torch.device("cpu")))
    assert not torch.allclose(other, alone[:1])


class Duck(torch.nn.Module):
    """A denoiser of any kind: it has `hidden` and the width of its rows, and nothing else that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=12)
        self.embedding = torch.nn.Embedding(300, 12)

    def hidden(self, input_ids, alpha=None, attention_mask=None):
        return self.embedding(input_ids)


def test_pooling_is_the_mean_of_the_text_or_its_last_row():
    duck = Duck()
    ids, mask = collate([[1, 2], [3, 4, 5]], torch.device("cpu"))
    for causal, expected in (
        (False, [duck.embedding.weight[[1, 2]].mean(0), duck.embedding.weight[[3, 4, 5]].mean(0)]),
        (True, [duck.embedding.weight[2], duck.embedding.weight[5]]),
    ):
        model = SequenceClassifier(duck, 2, causal).eval()
        by_hand = model.out(torch.tanh(model.dense(torch.stack(expected))))
        torch.testing.assert_close(model(ids, mask), by_hand)


@pytest.mark.parametrize("model", ["caduceus-ps", "caduceus-ph"])
def test_both_strands_of_dna_have_the_same_output(model):
    lm = small_lm(model, tokenizer="dna")
    classifier = SequenceClassifier(lm.denoiser, 2, lm.causal).eval()
    for weight in classifier.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    rows = lm.text_processor.encode(["ACGGTTAC", "GTAACCGT"])  # a text and its reverse complement
    given, opposite, other = classifier(*collate([*rows, rows[0][::-1]], torch.device("cpu")))
    torch.testing.assert_close(given, opposite, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(given, other)
    lm.denoiser.train()  # a post-hoc network reads one strand in training
    trained = classifier(*collate(rows[:1], torch.device("cpu")))[0]
    assert torch.allclose(trained, given, atol=1e-6) == (model == "caduceus-ps")


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "deberta-v2"])
def test_encoders_of_transformers_read_pairs_as_they_were_trained(kind, tmp_path):
    make_encoder(tmp_path, kind, noise=0.05)
    with warnings.catch_warnings(action="ignore"):
        lm = load(tmp_path, device="cpu", dtype="float32")
    texts = [("the cat sat", "a dog ran in the sun ."), ("it was",)]
    rows, _ = encode_examples(lm, texts)
    framed = lm.denoiser.config.frame
    assert framed is not None
    assert [[framed[0], *row, framed[1]] for row in rows] == [lm.tokenizer(*pair)["input_ids"] for pair in texts]
    classifier = SequenceClassifier(lm.denoiser, 2, lm.causal).eval()
    both = classifier(*collate(rows, torch.device("cpu")))
    alone = torch.cat([classifier(*collate([row], torch.device("cpu"))) for row in rows])
    torch.testing.assert_close(both, alone, rtol=1e-5, atol=1e-6)
    before = {name: weight.clone() for name, weight in lm.denoiser.state_dict().items()}
    words, labels = [("the cat",), ("the dog",)] * 16, [0.0, 1.0] * 16
    data = TaskData(TASKS["SST-2"], Examples(words, labels), (Examples(words, labels),))
    assert fine_tune(lm, EncodedTask.of(lm, data), 3e-3, 0, QUICK) == {"accuracy": 100.0}
    assert all(torch.equal(weight, before[name]) for name, weight in lm.denoiser.state_dict().items())
    assert all(weight.grad is None for weight in lm.denoiser.parameters())


def measured(folder):
    """The kept measurements with their times."""
    return {path: path.stat().st_mtime_ns for path in (folder / "measurements").glob("glue-a-*.json")}


def test_finished_fine_tunings_are_kept(tmp_path):
    lm, tasks = small_lm("dit"), [make_task("SST-2", 20), make_task("RTE", 20)]
    settings = GlueSettings(learning_rates=(1e-3, 2e-3), seeds=2, epochs=1)
    workspace, done, seen = Workspace(tmp_path), [], []

    def stop_in_the_sixth(examples):
        seen.append(examples)
        if sum(seen) > 5 * 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_glue(lm, "runs/a", tasks, settings, workspace, stop_in_the_sixth)
    first = measured(tmp_path)
    assert len(first) == 5
    results = evaluate_glue(lm, "runs/a", tasks, settings, workspace, done.append)
    assert len(measured(tmp_path)) == len(results) == 8
    assert first.items() <= measured(tmp_path).items()
    assert sum(done) == 2 * 2 * 2 * 20
    fresh = evaluate_glue(lm, "runs/a", tasks, settings, Workspace(tmp_path / "fresh"))
    assert fresh == results
    with torch.no_grad():
        lm.denoiser.blocks[0].norm1.weight += 1
    other = evaluate_glue(lm, "runs/a", tasks[:1], settings, workspace)
    assert len(measured(tmp_path)) == 12
    assert len(other) == 4


def test_fine_tunings_side_by_side_give_the_same_scores(tmp_path):
    folder = make_checkpoint(tmp_path / "a")
    lm, tasks = load(folder, device="cpu", dtype="float32"), [make_task("SST-2", 20), make_task("RTE", 20)]
    settings = GlueSettings(learning_rates=(1e-3,), seeds=2, epochs=1)
    alone = evaluate_glue(lm, "runs/a", tasks, settings, Workspace(tmp_path / "alone"))
    workspace = Workspace(tmp_path / "together", jobs=2)
    fine_tune_side_by_side([(lm, "runs/a")], tasks, settings, workspace)
    before = measured(workspace.folder)
    assert evaluate_glue(lm, "runs/a", tasks, settings, workspace) == alone
    assert len(before) == 4
    assert measured(workspace.folder) == before


def result(checkpoint, task, rate, seed, **scores):
    return GlueResult(checkpoint, task, rate, seed, {name.replace("_", ", "): x for name, x in scores.items()}, 10, 0)


def test_the_table_has_the_best_mean_rate_and_the_spread_of_its_seeds():
    results = [
        result("a", "MRPC", 1e-5, 0, F1=90.0, accuracy=10.0),
        result("a", "MRPC", 1e-5, 1, F1=40.0, accuracy=99.0),
        result("a", "MRPC", 2e-5, 0, F1=70.0, accuracy=50.0),
        result("a", "MRPC", 2e-5, 1, F1=74.0, accuracy=60.0),
        result("a", "MNLI", 1e-5, 0, accuracy_matched=60.0, accuracy_mismatched=50.0),
        result("a", "MNLI", 1e-5, 1, accuracy_matched=60.0, accuracy_mismatched=52.0),
        result("a", "MNLI", 2e-5, 0, accuracy_matched=61.0, accuracy_mismatched=40.0),
        result("a", "MNLI", 2e-5, 1, accuracy_matched=61.0, accuracy_mismatched=40.0),
    ]
    assert [one.learning_rate for one in choose_rate(results[:4], TASKS["MRPC"])] == [2e-5, 2e-5]
    settings = GlueSettings((1e-5, 2e-5), seeds=2)
    table = glue_table(results, [TASKS["MNLI"], TASKS["MRPC"]], settings, ["QNLI is left out."])
    shown = {label: str(row["a"]) for label, row in table.rows.items()}
    assert shown == {
        "MNLI, accuracy, matched": "60.00 ± 0.00",
        "MNLI, accuracy, mismatched": "51.00 ± 1.41",
        "MRPC, F1": "72.00 ± 2.83",
        "MRPC, accuracy": "55.00 ± 7.07",
        "average": "61.00 ± 1.41",
    }
    assert "a: learning rate 1e-05 for MNLI; 2e-05 for MRPC." in table.notes
    assert table.notes[-1] == "QNLI is left out."
