"""`unmask bench` on tiny networks."""

from __future__ import annotations

import re

import pytest

TINY = ("model.hidden_size=16", "model.layers=1", "model.heads=2", "--vocab", 19, "--repeats", 2, "--warmup", 0)
SHORT = ("--length", 12, "--batch", 3)


def check_figures(result: dict, unit: str) -> None:
    seconds = result["seconds"]
    assert seconds["low"] <= seconds["median"] <= seconds["high"]
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / seconds["median"])
    assert result[f"ms_per_{unit}"] == pytest.approx(1000 * seconds["median"] / result[f"{unit}s"])
    assert result["mfu"] > 0


def test_training_against_plain(reported):
    options = ("--steps", 2, "--optimizer", "muon", "--against", "plain", "--no-memory")
    report = reported("bench", "train", *TINY, *SHORT, *options)
    assert report["setup"]["vocab_size"] == 19
    assert report["setup"]["optimizer"]["name"] == "muon"
    assert report["setup"]["model"]["hidden_size"] == 16
    assert set(report["results"]) == {"unmask", "plain"}
    for result in report["results"].values():
        check_figures(result, "step")
        assert result["tokens"] == 2 * 3 * 12
    assert report["against"]["plain"]["speed"]["median"] > 0
    assert report["against"]["plain"]["memory"] is None


def test_likelihood_against_training_with_memory(reported):
    report = reported("bench", "eval", *TINY, *SHORT, "--calls", 2, "--against", "training")
    assert list(report["results"]) == ["unmask", "training"]
    for result in report["results"].values():
        check_figures(result, "call")
        assert result["tokens"] == 2 * 3 * 12
        assert 0 < result["peak_gib"] < 1
    assert report["against"]["training"]["speed"]["median"] > 0


def test_samplers_over_lengths_and_batches(reported):
    sizes = ("--length", 12, "--length", 6, "--batch", 2, "--batch", 1, "--steps", 3, "--steps", 5)
    report = reported("bench", "sample", *TINY, *sizes, "--against", "plain")
    assert [(cell["length"], cell["batch"]) for cell in report["cells"]] == [(6, 1), (12, 1), (6, 2), (12, 2)]
    for cell in report["cells"]:
        results = cell["results"]
        assert list(results) == ["mdlm T=3", "mdlm T=5", "mdlm one by one", "ar", "plain T=3", "plain T=5"]
        for result in results.values():
            check_figures(result, "call")
            assert result["tokens"] == cell["length"] * cell["batch"]
        assert results["ar"]["calls"] == results["mdlm one by one"]["calls"] == cell["length"]
        assert results["mdlm T=3"]["calls"] <= 3
        assert set(cell["against"]) == {"plain T=3", "plain T=5"}
    assert len(report["crossings"]) == 3 * (2 + 2)
    for one in report["crossings"]:
        assert "ar" in (one["winner"], one["loser"])
        low, high = (6, 12) if one["along"] == "length" else (1, 2)
        assert one["at"] is None or low <= one["at"] <= high


def test_tables_for_a_terminal(printed, mdlm_folder):
    out = printed("bench", "train", *TINY, *SHORT, "--no-memory", "--against", "plain")
    for words in ("TFLOP/s", "19 tokens, length 12, batch 3", "tokens/s", "ms/step", "times as fast as plain"):
        assert words in out
    out = printed("bench", "sample", mdlm_folder, "--length", 8, "--length", 16, "--batch", 1, "--limit", "inf")
    assert "mdlm one by one" in out
    assert "At batch 1, " in out
    assert set(re.findall(r"length \d+, batch \d+", out)) == {"length 8, batch 1", "length 16, batch 1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "nowhere"), "no recipe named 'nowhere'"),
        (("train", "model.sise=nano"), "sise"),
        (("train", "paper/text8"), "--vocab"),
        (("train", "--device", "tpu9"), "tpu9"),
        (("train", "--device", "meta"), "meta"),
        (("train", "--size", "huge"), "--size"),
        (("train", "--batch", "0"), "--batch"),
        (("train", "objective=ar"), "left to right"),
        (("train", "objective=ar", "model.name=causal", "--against", "plain"), "leave --against out"),
        (("sample", "--length", "1"), "--length"),
        (("eval", "--against", "nobody"), "--against"),
        (("eval", "no=1", "--vocab", "9"), "no"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, arguments, words):
    assert words in refused("bench", *arguments)


@pytest.mark.parametrize("verb", ["train", "sample", "eval"])
def test_out_of_memory_is_one_sentence_and_other_errors_are_bugs(refused, run, monkeypatch, verb):
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("unmask.models.dit.DiT.hidden", fail)
    command = ("bench", verb, *TINY, *SHORT, "--no-memory")
    assert refused(*command) == (
        "unmask: A batch of 3 rows of 12 tokens, with a vocabulary of 19, does not fit into the memory of this "
        "machine; lower --batch.\n"
    )
    error = RuntimeError("no kernel")
    code, _, err = run(*command)
    assert code == 1
    assert "Internal error (RuntimeError: no kernel)" in err


def test_missing_benchmarks_are_refused(refused, monkeypatch, tmp_path):
    monkeypatch.setattr("unmask.cli.bench.__file__", str(tmp_path / "site-packages" / "unmask" / "cli" / "bench.py"))
    assert "The benchmarks are missing" in refused("bench", "train", *TINY)
