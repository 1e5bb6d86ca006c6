"""Generation options: types, bounds, combinations, unknown names, and the defaults of a checkpoint."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest

import unmask
from unmask.constraints import Words
from unmask.errors import UnmaskError
from unmask.generation_config import FILE, MAX_COUNT, GenerationConfig, read_generation_config
from unmask.samplers.token_sampling import TokenSampler


def parse(**options):
    return GenerationConfig.parse(options, lambda length, prompt: None)


def test_the_options_make_a_token_sampler():
    options = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "greedy_tail": 0.2, "greedy_above": 0.8}
    assert parse(**options).token_sampler == TokenSampler(**options)
    assert parse(rule=TokenSampler(top_k=2)).token_sampler == TokenSampler(top_k=2)
    assert parse().token_sampler == TokenSampler()


def test_numpy_scalars_are_numbers():
    config = parse(seed=np.int64(3), top_k=np.int32(2), temperature=np.float32(0.5))
    assert (config.seed, config.top_k, config.temperature) == (3, 2, 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must be greater than or equal to 0, got -1"),
        ({"temperature": math.inf}, "temperature must be a finite number, got inf"),
        ({"top_k": 0}, "top_k must be greater than or equal to 1, got 0"),
        ({"top_k": "5"}, "top_k must be a valid integer, got '5'"),
        ({"top_p": 0.0}, "top_p must be greater than 0, got 0.0"),
        ({"top_p": 1.5}, "top_p must be less than or equal to 1, got 1.5"),
        ({"top_p": "0.5"}, "top_p must be a valid number, got '0.5'"),
        ({"min_p": -0.1}, "min_p must be greater than or equal to 0"),
        ({"min_p": math.nan}, "min_p must be .*, got nan"),
        ({"greedy_tail": 1.1}, "greedy_tail must be less than or equal to 1"),
        ({"greedy_above": 2.0}, "greedy_above must be less than or equal to 1"),
        ({"rule": 3}, "rule must be a.* TokenSampler, got 3"),
        ({"rule": TokenSampler(top_k=2), "min_p": 0.5}, "one or the other"),
        ({"particles": 2.5}, "particles must be a valid integer, got 2.5"),
        ({"particles": 0}, "particles must be greater than or equal to 1, got 0"),
        ({"best_of": 0}, "best_of must be greater than or equal to 1"),
        ({"best_of": MAX_COUNT + 1, "score": len}, "best_of must be less than or equal to 1000000"),
        ({"best_of": 2}, "best_of=2 needs a score"),
        ({"score": 3, "best_of": 2}, "score must be callable, got 3"),
        ({"score": len}, "several texts"),
        ({"score": len, "best_of": 2, "particles": 2}, "one of them"),
        ({"guidance": -1.0}, "guidance must be greater than or equal to 0"),
        ({"guidance": math.nan}, "guidance must be .*, got nan"),
        ({"guidance": None}, "guidance must be a valid number, got None"),
        ({"stride": 0}, "stride must be greater than or equal to 1"),
        ({"batch_size": 0}, "batch_size must be greater than or equal to 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be a valid integer, got 1.5"),
        ({"seed": None}, "seed must be a valid integer, got None"),
        ({"seed": 2**63}, "seed must be less than or equal to 9223372036854775807"),
        ({"constraint": 3}, "3"),
        ({"constraint": []}, "constraint"),
        ({"constraint": Words("a"), "eos_rule": False}, "leave out eos_rule=False"),
        ({"exact": 1}, "exact must be a valid boolean, got 1"),
        ({"temprature": 3}, "no option 'temprature'. Did you mean 'temperature'"),
        ({"lenght": 3}, "no option 'lenght'. Did you mean 'length'"),
        ({"zzz": 3}, "no option 'zzz'. Choose one of: .*top_p"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(UnmaskError, match=message) as caught:
        parse(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("score", [lambda text: None, lambda text: "good", lambda text: math.nan])
def test_a_score_is_a_finite_number(score):
    assert parse(score=len, best_of=2).score_text("abc") == 3.0
    with pytest.raises(UnmaskError, match=r"score must return a finite number, got .* for 'abc'"):
        parse(score=score, best_of=2).score_text("abc")


def test_constraints_are_added():
    one, other = Words("a"), Words("b")
    assert parse(constraint=one).with_constraints([other]).constraint == [one, other]
    assert parse().with_constraints([other]).constraint == [other]
    assert parse().with_constraints([]).constraint is None


DEFAULTS = {"temperature": 0.8, "top_p": 0.9, "steps": 128, "sampler": "remdm"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, DEFAULTS),
        ({"top_p": None, "steps": None}, DEFAULTS),
        ({"top_p": 0.5}, {**DEFAULTS, "top_p": 0.5}),
        ({"temperature": 1.0, "top_p": 1.0}, {**DEFAULTS, "temperature": 1.0, "top_p": 1.0}),
        ({"steps": 4}, {**DEFAULTS, "steps": 4}),
        ({"order": "margin"}, {"temperature": 0.8, "top_p": 0.9, "steps": None, "sampler": None}),
        ({"sampler": "ancestral"}, {"temperature": 0.8, "top_p": 0.9, "steps": None, "sampler": "ancestral"}),
        ({"rule": TokenSampler(top_k=2)}, {**DEFAULTS, "temperature": 1.0, "top_p": None}),
        ({"exact": True}, {"temperature": 1.0, "top_p": None, "steps": None, "sampler": None}),
        ({"exact": True, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5, "steps": None, "sampler": None}),
    ],
)
def test_an_explicit_option_precedes_the_default(options, expected):
    config = GenerationConfig.parse(options, parse, DEFAULTS)
    assert {name: getattr(config, name) for name in expected} == expected


def test_defaults_are_read_from_the_checkpoint(tmp_path):
    assert read_generation_config(tmp_path) == {}
    theirs = {"do_sample": True, "bos_token_id": 1, "transformers_version": "5", "top_k": 0, "min_p": None}
    (tmp_path / FILE).write_text(json.dumps(theirs | DEFAULTS))
    assert read_generation_config(tmp_path) == DEFAULTS
    (tmp_path / FILE).write_text('{"do_sample": false, "temperature": 0.7}')
    assert read_generation_config(tmp_path) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "Expecting"),
        (b"[1]", "it must be a JSON object"),
        (b"\xff", "utf-8"),
        (b"[" * 100_000, "recursion|nest"),
        (b'{"top_p": 1.5}', "top_p must be less than or equal to 1, got 1.5"),
        (b'{"temperature": "hot"}', "temperature must be a valid number, got 'hot'"),
    ],
)
def test_a_bad_file_of_defaults_is_one_sentence(mdlm_folder, tmp_path, content, message):
    folder = shutil.copytree(mdlm_folder, tmp_path / "model")
    (folder / FILE).write_bytes(content)
    with pytest.raises(
        UnmaskError, match=rf"{FILE}' cannot be used \(.*({message}).*\); correct or delete it"
    ) as caught:
        unmask.load(folder)
    assert "\n" not in str(caught.value)
