"""The command line as a user meets it: words, JSON, exit codes, and one sentence for bad input."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import LENGTH, make_checkpoint

VERBS = ("demo", "train", "eval", "sample", "fill", "score", "convert", "ship", "list", "doctor")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_and_json(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert f"unmask {verb}" in out
    assert "Examples" in out
    assert "--json" in out


def test_sample_prints_texts_and_their_calls(run, mdlm_folder):
    code, out, _ = run("sample", mdlm_folder, "-n", 2, "--length", 12, "--steps", 3, "--json")
    assert code == 0
    result = json.loads(out)
    assert [one["seed"] for one in result["texts"]] == [0, 1]
    assert all(1 <= one["calls"] <= 3 and len(one["ids"]) == 12 for one in result["texts"])
    assert result["sampler"]["name"] == "ancestral"
    code, out, _ = run("sample", mdlm_folder, "--length", 12, "--steps", 3)
    assert code == 0
    assert "network calls" in out


def test_sample_draws_a_picture(run, mdlm_folder, tmp_path):
    picture = tmp_path / "canvas.png"
    code, _, _ = run("sample", mdlm_folder, "--length", 12, "--steps", 3, "--png", picture)
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_fill_writes_the_blanks(run, mdlm_folder):
    code, out, _ = run("fill", mdlm_folder, "a[MASK]c", "[MASK:2]z", "--greedy", "--json")
    assert code == 0
    first, second = json.loads(out)["texts"]
    assert (first["ids"][0], first["ids"][2], second["ids"][2]) == (97, 99, 122)
    assert first["order"] == [-1, 0, -1]


def test_score_reports_every_unit_with_its_error(run, mdlm_folder, ar_folder):
    code, out, _ = run("score", mdlm_folder, "some text", "--steps", 8, "--precision", 0.2, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["agree"] is True
    assert set(result["bounds"]) == {"mask-count", "continuous"}
    assert result["discrete"]["8"]["nats"] > 0
    headline = result["headline"]
    for unit in ("bits_per_token", "bits_per_byte", "bits_per_char", "perplexity"):
        assert headline[f"{unit}_mc_stderr"] > 0
    code, out, _ = run("score", ar_folder, "some text", "other text", "--json")
    assert code == 0
    exact = json.loads(out)["headline"]
    assert exact["exact"]
    assert exact["mc_stderr"] == 0
    assert exact["data_stderr"] > 0


def test_score_explains_the_errors_that_it_shows_and_no_others(run, mdlm_folder, ar_folder):
    draws, data = "Monte-Carlo error", "data error"
    for folder, texts, said in (
        (mdlm_folder, ["some text"], {draws}),
        (mdlm_folder, ["some text", "other text"], {draws, data}),
        (ar_folder, ["some text"], set()),
        (ar_folder, ["some text", "other text"], {data}),
    ):
        out = run("score", folder, *texts)[1]
        assert {words for words in (draws, data) if words in out} == said
        assert ("±" in out) == bool(said)


def test_score_says_how_to_get_a_smaller_error_where_there_is_one(run, mdlm_folder, ar_folder):
    code, out, _ = run("score", mdlm_folder, "some text", "--precision", 0.3)
    assert code == 0
    assert "an error of 0.3 bits per token; lower --precision" in " ".join(out.split())
    assert "--precision" not in run("score", ar_folder, "some text")[1]


def test_score_and_eval_say_that_tokens_include_a_fill_that_counts(run, mdlm_folder, tmp_path):
    filled = make_checkpoint(tmp_path / "filled", policy="supervised_eos")
    text = tmp_path / "book.txt"
    text.write_text("a few words")
    for words in (("score", filled, "some text", "--precision", 0.5), ("eval", filled, "--data", text)):
        out = " ".join(run(*words)[1].split())
        assert f"{LENGTH} tokens" in out
        assert "Tokens include the EOS that fill a row" in out
    assert "EOS" not in run("score", mdlm_folder, "some text", "--precision", 0.5)[1]


def test_score_is_not_silent_while_it_draws(run, mdlm_folder, monkeypatch):
    heard = []

    @contextmanager
    def bar(description, total, quiet):
        yield heard.append

    monkeypatch.setattr("unmask.cli.score.progress", bar)
    _, out, _ = run("score", mdlm_folder, "some text", "--precision", 0.3, "--json")
    assert sum(heard) >= sum(bound["draws"] for bound in json.loads(out)["bounds"].values())


def test_the_default_precision_of_score_is_one_number():
    from unmask.cli.score import score
    from unmask.likelihood import SCORE_PRECISION
    from unmask.pipeline import MaskedDiffusionLM

    methods = (score, MaskedDiffusionLM.score, MaskedDiffusionLM.score_details)
    defaults = {inspect.signature(one).parameters["precision"].default for one in methods}
    assert defaults == {SCORE_PRECISION}


def test_the_shipped_model_is_meant_where_none_is_named(run, shipped_models, tmp_path, monkeypatch):
    """Each verb gives what it gives for the model by its name, and for its folder."""
    book = tmp_path / "book.txt"
    book.write_text("a few words to be judged\n" * 8)
    ways = [
        (("sample",), ("--length", 12, "--steps", 3, "--json")),
        (("fill",), ("a[MASK]c", "[MASK:2]z", "--json")),
        (("score",), ("some text", "--precision", 0.2, "--json")),
        (("eval",), ("--data", book, "--json")),
    ]
    for verb, rest in ways:
        told = [run(*verb, *model, *rest) for model in ((), ("stories",), (shipped_models / "stories",))]
        assert [code for code, _, _ in told] == [0, 0, 0], told
        assert len({out for _, out, _ in told}) == 1
        assert run(*verb, "smoke", *rest)[1] != told[0][1]


def test_lines_of_standard_input_go_to_the_shipped_model(run, shipped_models, monkeypatch):
    import io

    for words in (("fill", "-"), ("fill", "stories", "-")):
        monkeypatch.setattr("sys.stdin", io.StringIO("a[MASK]c\n\nb[MASK]\n"))
        code, out, _ = run(*words, "--json")
        assert code == 0
        assert [one["ids"][0] for one in json.loads(out)["texts"]] == [97, 98]
    for nothing in (io.StringIO("\n"), None):
        monkeypatch.setattr("sys.stdin", nothing)
        code, _, err = run("score", "-")
        assert (code, "has no text to score" in err) == (2, True)


def test_lines_of_standard_input_end_as_windows_ends_them(run, shipped_models, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("a[MASK]c\r\nb[MASK]d\r\n", newline=""))
    code, out, _ = run("fill", "-", "--json")
    assert code == 0
    assert [chr(one["ids"][-1]) for one in json.loads(out)["texts"]] == ["c", "d"]


@pytest.mark.parametrize("words", [("sample", "--length", 12), ("fill", "a[MASK]"), ("score", "a text")])
def test_more_steps_than_there_can_be_are_one_sentence(refused, shipped_models, words):
    assert "less than or equal to 1000000" in refused(*words, "--steps", 10**30)


@pytest.mark.parametrize("words", [("sample", "--length", 8), ("fill", "a[MASK:8]"), ("edit", "abc", "--span", "0-3")])
def test_particles_that_do_not_fit_into_memory_are_to_be_fewer(refused, shipped_models, monkeypatch, words):
    import torch

    from unmask.models import DiT

    def crowded(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(DiT, "_run", crowded)
    told = refused(*words, "--particles", 50, "--with", "b")
    assert told == "unmask: 50 particles do not fit into memory; lower --particles.\n"


@pytest.mark.parametrize("verb", ["fill", "edit", "score"])
def test_standard_input_that_is_no_text_is_one_sentence_in_every_locale(refused, shipped_models, monkeypatch, verb):
    import io

    for errors in ("strict", "surrogateescape"):
        stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe [MASK]\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr("sys.stdin", stdin)
        assert refused(verb, "-") == "unmask: Standard input is not valid UTF-8; convert it first.\n"


def test_the_doctor_examines_the_shipped_model(run, shipped_models):
    code, out, _ = run("doctor", "--quick", "--text", "a text of some tokens", "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["checkpoint"]["about"]["path"] == str(shipped_models / "stories")


def test_what_ships_is_listed(run):
    code, out, _ = run("list", "shipped")
    assert code == 0
    assert "smoke" in out


def test_eval_on_a_file(run, mdlm_folder, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("a few words to be judged\n" * 8)
    code, out, _ = run("eval", mdlm_folder, "--data", text, "--json")
    assert code == 0
    assert json.loads(out)["headline"]["bytes"] == text.stat().st_size
    code, out, _ = run("eval", mdlm_folder, "--data", text)
    assert code == 0
    assert "perplexity" in out
    assert "±" in out


def test_estimators_that_disagree_are_an_error(run, mdlm_folder, monkeypatch):
    from unmask.objectives.subs import MaskCount

    right = MaskCount.terms

    def wrong(self, *args):
        terms = right(self, *args)
        return type(terms)(**{**vars(terms), "diffusion": 2 * terms.diffusion})

    monkeypatch.setattr(MaskCount, "terms", wrong)
    code, _, err = run("score", mdlm_folder, "a text of several words", "--precision", 0.05)
    assert code == 1
    assert "disagree" in err


def test_train_a_text_file_then_use_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("the cat sat on the mat. " * 200)
    small = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32", "training.batch_size=4"]
    code, out, err = run("train", "my.txt", "training.steps=3", *small)
    assert code == 0, err
    assert "±" in out
    code, out, _ = run("sample", "runs/my", "--length", 8, "--json")
    assert code == 0
    code, out, _ = run("eval", "runs/my", "--json")
    assert code == 0
    code, out, err = run("train", "my.txt", "training.steps=3", *small)
    assert code == 2
    assert "--resume" in err
    code, out, _ = run("train", "my.txt", "training.steps=5", *small, "--resume", "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 5


def test_a_batch_that_does_not_fit_is_told_what_would(run, tmp_path, monkeypatch):
    """A device with room for three sequences: ten of them need four micro-batches, and are then trained."""
    import torch

    from unmask.models import DiT

    hidden = DiT.hidden

    def crowded(self, input_ids, *args, **kwargs):
        if len(input_ids) > 3 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return hidden(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(DiT, "hidden", crowded)
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("the cat sat on the mat. " * 200)
    small = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32", "training.batch_size=10"]
    code, out, err = run("train", "my.txt", "training.steps=2", *small)
    assert (code, out) == (2, "")
    assert "micro-batch of 10 sequences of 32 tokens" in err
    assert "largest that does is 3" in err
    assert "training.accumulation=4, which keeps the batch of 10" in err
    assert err.count("\n") == 1
    code, out, err = run("train", "my.txt", "training.steps=2", *small, "training.accumulation=4")
    assert code == 0, err


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "{mdlm}", "--data", "{book}"),
        ("score", "{mdlm}", "one", "two", "three"),
        ("sample", "{mdlm}", "-n", 5, "--length", 8),
        ("fill", "{mdlm}", "a[MASK]", "b[MASK]", "c[MASK]"),
    ],
)
def test_a_batch_size_that_does_not_fit_is_to_be_lowered(run, mdlm_folder, tmp_path, monkeypatch, arguments):
    import torch

    from unmask.models import DiT

    run_trunk = DiT._run

    def crowded(self, input_ids, *args, **kwargs):
        if len(input_ids) > crowded.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return run_trunk(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(DiT, "_run", crowded)
    book = tmp_path / "book.txt"
    book.write_text("a few words to be judged\n" * 8)
    filled = [str(a).format(mdlm=mdlm_folder, book=book) for a in arguments]
    crowded.room = 2
    code, out, err = run(*filled)
    assert (code, out) == (2, "")
    assert "lower --batch-size" in err
    assert err.count("\n") == 1
    code, _, err = run(*filled, "--batch-size", 2)
    assert code == 0, err
    crowded.room = 0
    code, _, err = run(*filled, "--batch-size", 1)
    assert code == 2
    assert "A batch of 1 does not fit" in err
    assert "--batch-size" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sample", "nowhere"), "no checkpoint at 'nowhere'"),
        (("sample", "{mdlm}", "--top-p", "1.5"), "got 1.5"),
        (("sample", "{ar}", "--length", "9999"), "length must be at most 48"),
        (("sample", "{mdlm}", "--prompt", "x" * 60), "prompt"),
        (("sample", "{mdlm}", "--steps", "0"), "--steps"),
        (("fill", "{mdlm}", "nothing to fill"), "no blank"),
        (("fill", "nothing to fill"), "no blank"),
        (("fill", "{mdlm}"), "is a checkpoint; add the text"),
        (("fill", "nowhere", "a [MASK]"), "no checkpoint at 'nowhere'"),
        (("score", "{mdlm}"), "is a checkpoint; add the text"),
        (("score", "one text", "another"), "no checkpoint at 'one text'"),
        (("ship", "nowhere", "out"), "'nowhere' is not the folder of a run"),
        (("ship", "{mdlm}", "out"), "is not the folder of a run"),
        (("fill", "{ar}", "a [MASK] b"), "autoregressive"),
        (("score", "{mdlm}", ""), "no tokens"),
        (("eval", "{mdlm}"), "--data"),
        (("eval", "{mdlm}", "--data", "missing.txt"), "missing.txt"),
        (("train", "missing.txt"), "neither a text file"),
        (("train", "dmeo"), "Did you mean 'demo'"),
        (("train", "demo", "trainng.steps=3"), "Did you mean 'training'"),
        (("train", "demo", "training.stepz=3"), "Did you mean 'steps'"),
        (("train", "demo", "schedule=cosin"), "Did you mean 'cosine'"),
        (("train", "demo", "schedule={name: polynomial, powr: 3}"), "Did you mean 'power'"),
        (("train", "demo", "training.steps=many"), "training.steps"),
        (("train", "demo", "objective=ar"), "model.name=causal"),
        (("train", "demo", "training=3"), "training must be a mapping, got 3."),
        (("train", "demo", f"training.seed={2**63}"), "got 9223372036854775808"),
        (("train", "demo", f"data.seed={-(2**63) - 1}"), "got -9223372036854775809"),
        (("train", "demo", "expect.bits_per_byte=.nan"), "expect.bits_per_byte must be a finite number, got nan"),
        (("train", "demo", "optimizer.betas=[0.9, 2]"), "betas.1 must be less than 1, got 2."),
        (("train", "demo", "optimizer.betas=[0.9]"), "betas.1 is missing, got [0.9]."),
        (("train", "demo", "optimizer.learning_rate=.inf"), "learning_rate must be a finite number, got inf."),
        (("train", "demo", "optimizer.eps=.inf"), "eps must be a finite number, got inf."),
        (("train", "demo", "data.source={name: mixture, parts: []}"), "parts must have at least 1 item, got []."),
        (("train", "demo", "data.source={name: mixture, parts: [{source: txet}]}"), "Did you mean 'text'?\n"),
        (("train", "demo", "--from", "{mdlm}", "model.lora.targets=[]"), "targets must have at least 1 item, got []."),
        (("train", "demo", "--from", "{mdlm}", "objective=ar"), "choose another objective, or another one."),
        (("list", "schedul"), "Did you mean 'schedule'"),
        (("convert", "nowhere.ckpt", "out"), "nowhere.ckpt"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(run, mdlm_folder, ar_folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    filled = [a.format(mdlm=mdlm_folder, ar=ar_folder) if a.startswith(("{mdlm", "{ar")) else a for a in arguments]
    code, out, err = run(*filled)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sampel"], "Did you mean 'sample'? See 'unmask --help'."),
        (["--nope"], "No such option: --nope. See 'unmask --help'."),
        (["sample", "--nope"], "--nope"),
        (["sample", "--steps"], "requires an argument."),
        (["sample", "--steps", "0"], "'--steps'"),
        (["fill"], "See 'unmask fill --help'."),
        (["train"], "See 'unmask train --help'."),
        (["bench", "nope"], "No such command 'nope'. See 'unmask bench --help'."),
    ],
)
def test_words_that_make_no_command_are_one_sentence_and_exit_2(refused, arguments, words):
    assert words in refused(*arguments)


@pytest.mark.parametrize("group", [(), ("bench",), ("plot",)])
def test_help_is_shown_once_where_nothing_is_asked_for(run, group):
    code, out, err = run(*group)
    assert (code, err) == (2, "")
    assert out.count("Usage:") == 1


def test_a_member_says_all_of_its_first_paragraph(run):
    code, out, _ = run("list", "sampler")
    assert code == 0
    assert "between the times `t_on` and `t_off`, 0 before and after. (strategy, steps," in " ".join(out.split())


def test_list_shows_every_axis(run):
    code, out, _ = run("list", "--json")
    assert code == 0
    axes = json.loads(out)
    assert "loglinear" in axes["schedule"]
    assert "demo" in axes["recipe"]
    code, out, _ = run("list", "schedule")
    assert code == 0
    assert "power" in out


def test_import_is_quick_and_leaves_torch_alone():
    """`import unmask` costs next to nothing; the best of three, since machines hiccup."""
    program = (
        "import sys, time; start = time.perf_counter(); import unmask; unmask.__version__; "
        "print(time.perf_counter() - start, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    results = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    assert min(float(seconds) for seconds, _, _ in results) < 0.5
    assert results[0][1:] == ["False", "False"]


def test_a_pipe_gets_no_progress_bar(mdlm_folder):
    program = [sys.executable, "-c", "from unmask.cli import main; main()"]
    command = [*program, "sample", str(mdlm_folder), "--length", "6", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    json.loads(done.stdout)
    assert done.stderr == ""


def test_a_model_of_standard_input_is_judged_on_named_texts(run, tmp_path, monkeypatch):
    import io

    monkeypatch.chdir(tmp_path)
    text = "the cat sat on the mat. " * 100
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    small = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32", "training.batch_size=4"]
    code, _, err = run("train", "-", "training.steps=2", *small, "--out", "run")
    assert code == 0, err
    code, _, err = run("eval", "run")
    assert code == 2
    assert "standard input" in err
    assert "--data" in err


def test_texts_are_printed_as_they_are(run, mdlm_folder, mdlm):
    """No wrapping at the width of a terminal that is not there, and no markup."""
    text = "[bold]" + "x" * 37 + "[MASK]"
    code, out, _ = run("fill", mdlm_folder, text, "--greedy")
    assert code == 0
    assert out == mdlm.fill(text, greedy=True) + "\n"
    long = mdlm.generate(1, length=48, steps=4)[0]
    code, out, _ = run("sample", mdlm_folder, "--length", 48, "--steps", 4)
    assert code == 0
    assert out.split("\n", 1)[1] == long + "\n"
