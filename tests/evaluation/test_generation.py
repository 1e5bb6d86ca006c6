"""Generation: metrics counted by hand, the form of reference texts, the plan and the results."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import make_checkpoint
from tests.judges import save_judge
from unmask.data.documents import Document
from unmask.errors import UnmaskError
from unmask.evaluation import generation
from unmask.evaluation.generation import (
    GenerationEvaluation,
    GenerationSettings,
    Texts,
    generate_texts,
    make_plan,
    measure,
    parse_steps,
    read_texts,
    reference_texts,
)
from unmask.evaluation.judge import open_judge
from unmask.pipeline import load
from unmask.samplers.token_sampling import TokenSampler


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return open_judge(str(save_judge(tmp_path_factory.mktemp("judges") / "llama")), "cpu")


def test_perplexity_is_per_token_of_all_texts_together():
    texts = Texts(["a b", "", "abcdef"])
    metrics = measure(texts, [[1, 2], [], [1, 2, 3, 4, 5, 6]], np.array([4.0, 0.0, 12.0]))
    expected = {
        "perplexity": math.exp(16 / 8),
        "entropy": (math.log(2) + 0 + math.log(6)) / 3,
        "repetition": 0,
        "distinct_1": 6 / 8,
        "distinct_2": 5 / 6,
        "distinct_3": 4 / 4,
        "tokens": 8 / 3,
        "characters": 9 / 3,
    }
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    assert metrics["perplexity"].low == pytest.approx(math.exp(2)), "both texts have 2 nats per token"
    assert metrics["calls"] is None
    assert metrics["seconds"] is None


def test_empty_texts_have_no_perplexity_and_no_nan(judge):
    evaluation = GenerationEvaluation(judge, GenerationSettings(2))
    evaluation.add_texts("nothing", "texts", Texts(["", ""]))
    (row,) = evaluation.rows
    assert (row.texts, row.empty) == (2, 2)
    assert row.metrics["perplexity"] is None
    assert row.metrics["entropy"].value == 0
    json.dumps(evaluation.as_dict(), allow_nan=False)


def test_a_row_measures_the_texts_of_the_model(judge, mdlm_folder, mdlm):
    rule = TokenSampler(temperature=0.7)
    evaluation = GenerationEvaluation(judge, GenerationSettings(5, seed=3, rule=rule, length=20, batch_size=2))
    (plan,) = make_plan([str(mdlm_folder)], [4, None], 20)
    done = []
    evaluation.add_model(plan, mdlm, done.append)
    assert sum(done) == 5 * plan.work == 5 * (4 + 20 + 2)
    for row, steps in zip(evaluation.rows, (4, None), strict=True):
        generated = mdlm.sample(5, length=20, steps=steps, seed=3, rule=rule)
        ids = judge.encode([one.text for one in generated])
        expected = math.exp(judge.nll(ids).sum() / sum(map(len, ids)))
        assert row.metrics["perplexity"].value == pytest.approx(expected, rel=1e-4)
        assert row.metrics["calls"].value == np.mean([one.calls for one in generated])
        assert (row.name, row.steps, row.sampler["steps"]) == ("mdlm", steps, steps)
        assert row.metrics["seconds"].low is not None


def test_seconds_of_a_batch_are_divided_and_one_batch_has_no_interval(mdlm, monkeypatch):
    alone = generate_texts(mdlm, mdlm.sampler(2), GenerationSettings(3, length=8))
    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=iter([10.0, 12.0, 15.0]).__next__))
    several = generate_texts(mdlm, mdlm.sampler(2), GenerationSettings(3, length=8, batch_size=2))
    assert (alone.batches, several.batches) == (1, 2)
    assert several.seconds.tolist() == [1, 1, 3]
    assert measure(alone, [[1]] * 3, np.zeros(3))["seconds"].low is None
    assert measure(several, [[1]] * 3, np.zeros(3))["seconds"].low is not None


def test_reference_texts_have_the_form_of_generated_texts(tmp_path, mdlm, monkeypatch):
    book, lines = tmp_path / "book.txt", tmp_path / "lines.txt"
    book.write_text("".join(chr(97 + i % 26) for i in range(480)))
    lines.write_text("one\ntwo two\nthree\nfour\n")
    rows = [book.read_text()[i * 11 // 5 * 48 :][:48] for i in range(5)]
    assert reference_texts(mdlm, 5, [str(book)]).texts == rows
    assert reference_texts(mdlm, 2, [str(book)], length=7).texts[0] == "abcdefg"
    lm = load(make_checkpoint(tmp_path / "stories", policy="supervised_eos"), device="cpu")
    assert reference_texts(lm, 9, [str(lines)], "line").texts == ["one", "two two", "three", "four"]
    assert reference_texts(None, 2, [str(lines)], "line").texts == ["one", "three"]
    pieces = [Document("a", "one ", more=True), Document("a", "text"), Document("b", "another")]
    monkeypatch.setattr(generation, "open_documents", lambda data, **options: lambda: iter(pieces))
    assert reference_texts(None, 9, ["some.txt"]).texts == ["one text", "another"], "pieces of a document are joined"


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("list.json", '["a b", "c\\nd"]', ["a b", "c\nd"]),
        ("ours.json", '{"texts": [{"text": "a b", "seed": 0}, {"text": "c\\nd"}]}', ["a b", "c\nd"]),
        ("lines.txt", "a b\n\nc", ["a b", "", "c"]),
    ],
)
def test_texts_are_read_from_json_and_lines(tmp_path, name, content, texts):
    (tmp_path / name).write_text(content)
    assert read_texts(tmp_path / name).texts == texts


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.json", "[1, 2]", "not a list of strings"),
        ("bad.json", '{"a": 1}', "not a list of strings"),
        ("bad.json", "[", "not JSON"),
        ("none.txt", "", "no texts"),
        ("nowhere.txt", None, "cannot be read"),
    ],
)
def test_files_without_texts_are_refused(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UnmaskError, match=words):
        read_texts(tmp_path / name)


def test_the_plan_has_names_and_the_largest_numbers_of_calls(mdlm_folder, ar_folder, tmp_path):
    other = make_checkpoint(tmp_path / "mdlm")
    plan = make_plan([str(mdlm_folder), str(ar_folder), str(other)], [16, 100, None])
    assert [one.name for one in plan] == [str(mdlm_folder), "ar", str(other)]
    masked = [(16, 16), (100, 48), (None, 48)]
    assert [[(run.steps, run.calls) for run in one.runs] for one in plan] == [masked, [(None, 48)], masked]
    assert plan[1].work == 49
    with pytest.raises(UnmaskError, match="planner"):
        make_plan([str(mdlm_folder)], [2], 12, {"planner": {"order": "planner"}})


def test_adaptive_samplers_and_samplers_with_steps_run_once(judge, mdlm_folder, mdlm):
    sixty = {"sampler": {"name": "remdm", "steps": 60}}
    strategies = {"margin": {"order": "margin"}, "threshold": {"order": "threshold"}, "sixty": sixty}
    (plan,) = make_plan([str(mdlm_folder)], [2, 5], 12, strategies)
    assert [(run.name, run.steps, run.calls) for run in plan.runs] == [
        ("mdlm, margin", 2, 2), ("mdlm, margin", 5, 5), ("mdlm, threshold", None, 12), ("mdlm, sixty", None, 60),
    ]  # fmt: skip
    evaluation = GenerationEvaluation(judge, GenerationSettings(2, length=12))
    evaluation.add_model(plan, mdlm)
    assert [row.sampler["name"] for row in evaluation.rows] == ["ordered", "ordered", "threshold", "remdm"]
    assert [row.metrics["calls"].value for row in evaluation.rows if row.name != "mdlm, threshold"] == [2, 5, 60]


def test_steps_are_integers_or_none():
    assert parse_steps(["16", "none", "64", "16"]) == [16, None, 64]
    for word in ("0", "-3", "1.5", "many", ""):
        with pytest.raises(UnmaskError, match="--steps must be an integer of at least 1, or 'none'"):
            parse_steps([word])
