"""lm-evaluation-harness: tasks over local files, the same figures as its own model class, bounds with shared noise."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lm_eval", reason="lm_eval is not installed")
from lm_eval.tasks import TaskManager

from unmask.evaluation.harness import HarnessLM, cut_at, rolling_windows
from unmask.laws import exact

CHOICES = """
task: animals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


def requests(*arguments):
    return [SimpleNamespace(args=one) for one in arguments]


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A folder with one task, which is the only one that is indexed: reading those of lm_eval takes seconds."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    items = [{"question": f"A {n} is", "choices": [" red", " blue too"], "answer": n % 2} for n in range(4)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/animals.yaml").write_text(CHOICES.format(path=tmp_path / "items.jsonl"))
    return tmp_path / "tasks"


def test_autoregressive_likelihoods_equal_those_of_the_harness(ar):
    from lm_eval.models.huggingface import HFLM

    pairs = [("Once upon", " a time"), ("A", "b"), ("The cat sat ", "on the mat")]
    theirs = HFLM(pretrained=ar.denoiser, tokenizer=ar.tokenizer, max_length=ar.row_length, batch_size=1)
    theirs.tok_encode = lambda text, **options: [ar.denoiser.config.bos_token_id, *HarnessLM(ar).tok_encode(text)]
    ours = HarnessLM(ar).loglikelihood(requests(*pairs))
    expected = theirs.loglikelihood(requests(*pairs), disable_tqdm=True)
    for (value, greedy), (other, other_greedy) in zip(ours, expected, strict=True):
        assert value == pytest.approx(other, rel=1e-4)
        assert greedy == other_greedy
    for text in ("a text of some length", "b"):
        (rolling,) = HarnessLM(ar).loglikelihood_rolling(requests((text,)))
        ((end, _),) = HarnessLM(ar)._loglikelihood_tokens(
            [((text, ""), HarnessLM(ar).tok_encode(text), [ar.text_processor.eos_token_id])]
        )
        assert rolling + end == pytest.approx(-ar.score(text).nats, rel=1e-4)  # the harness does not count the end


def test_one_token_is_scored_exactly_and_greedily(mdlm):
    """The bound of a single open position is its likelihood."""
    model = HarnessLM(mdlm, precision=10.0)
    ((value, greedy),) = model.loglikelihood(requests(("abc", "d")))
    ids = [*model.tok_encode("abc"), mdlm.text_processor.mask_token_id]
    log_p = exact.log_conditionals(mdlm.denoiser, torch.tensor([ids]), 0.0)[0, 3]
    token = model.tok_encode("d")[0]
    assert value == pytest.approx(float(log_p[token]), abs=1e-4)
    assert greedy == (int(log_p.argmax()) == token)


def test_choices_share_their_noise(mdlm):
    """Equal answers have equal bounds, whatever stands around them in the batch."""
    model = HarnessLM(mdlm, precision=10.0)
    pairs = [("Q one", " yes it is"), ("Q two", " no"), ("Q two", " yes"), ("Q one", " yes it is"), ("Q one", " no")]
    values = [value for value, _ in model.loglikelihood(requests(*pairs))]
    assert values[0] == values[3]
    alone = [value for value, _ in model.loglikelihood(requests(pairs[0]))]
    assert values[0] == pytest.approx(alone[0], rel=1e-6)


def test_long_items_are_cut_and_counted(ar):
    model = HarnessLM(ar)
    model.loglikelihood(requests(("x" * 100, "yes"), ("short", "y" * 100), ("a", "b")))
    assert model.truncated == {"contexts": 1, "continuations": 1}


@pytest.mark.parametrize(("count", "length"), [(0, 4), (3, 4), (4, 4), (5, 4), (11, 4), (30, 7)])
def test_windows_predict_every_token_once(count, length):
    ids = list(range(count))
    windows = rolling_windows(ids, length)
    assert [token for _, predicted in windows for token in predicted] == ids
    for context, predicted in windows:
        assert len(context) + len(predicted) <= length
        assert [*context, *predicted] == list(range((context or predicted)[0], predicted[-1] + 1))
    if count > length:
        assert len(windows[-1][0]) + len(windows[-1][1]) == length


def test_generation_stops_at_the_first_stop_string(mdlm, ar):
    assert cut_at("one. two\nthree", ["\n", "."]) == "one"
    for lm in (mdlm, ar):
        model = HarnessLM(lm, steps=4)
        kwargs = {"until": ["q"], "max_gen_toks": 8}
        texts = model.generate_until(
            requests(("Once", kwargs), ("Once", {**kwargs, "max_gen_toks": 4}), ("Once", kwargs))
        )
        assert texts[0] == cut_at(model.generate_until(requests(("Once", {"max_gen_toks": 8})))[0], ["q"])
        assert all("q" not in text for text in texts)


def test_the_verb_runs_a_local_task(task, ar_folder, mdlm_folder, run, refused, tmp_path):
    arguments = ("eval", "harness", ar_folder, "--tasks", "animals", "--include", task)
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["items"] == {"animals": 4}
    assert 0 <= report["results"]["animals"]["acc"]["value"] <= 1
    code, out, err = run("eval", "harness", mdlm_folder, *arguments[3:], "--limit", 2, "--precision", 1)
    assert code == 0, err
    assert "animals" in out
    assert "no task named 'plants'" in refused("eval", "harness", ar_folder, "--tasks", "plants", "--include", task)
