"""Generation options: types, bounds, combinations, the defaults of a checkpoint, and the sampler they choose."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch

import unmask
from unmask.checkpoint import GENERATION_FILE, read_generation_config
from unmask.constraints import Regex, Words
from unmask.errors import UnmaskError
from unmask.generation_config import CPU_TOKENS_PER_CALL, MAX_COUNT, GenerationConfig, SamplingOptions, choose_sampler
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler
from unmask.samplers.remasking import ReMDMSampler
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import Cosine, LogLinear


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
    (tmp_path / GENERATION_FILE).write_text(json.dumps(theirs | DEFAULTS))
    assert read_generation_config(tmp_path) == DEFAULTS
    (tmp_path / GENERATION_FILE).write_text('{"do_sample": false, "temperature": 0.7}')
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
    (folder / GENERATION_FILE).write_bytes(content)
    with pytest.raises(
        UnmaskError, match=rf"{GENERATION_FILE}' cannot be used \(.*({message}).*\); correct or delete it"
    ) as caught:
        unmask.load(folder)
    assert "\n" not in str(caught.value)


WAYS = [
    {"order": "confidence", "steps": 5},
    {"order": "margin", "steps": 5},
    {"order": "entropy", "steps": 5},
    {"order": "left_to_right", "steps": 5},
    {"order": "uniform", "steps": 5},
    {"order": "threshold"},
    {"order": "entropy_bounded"},
    {"sampler": {"name": "entropy_bounded", "gamma": 6.0}},
    {"sampler": "remdm", "steps": 5},
    {"sampler": {"name": "remdm", "strategy": "cap_conf", "eta": 0.4}, "steps": 5},
    {"sampler": "remdm-conf", "steps": 5},
    {"sampler": {"name": "remdm", "strategy": "loop", "eta": 0.4, "steps": 5}},
    {"sampler": "corrector", "steps": 5},
]


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ({"steps": 7}, AncestralSampler(steps=7, schedule=Cosine())),
        ({"steps": 7, "sampler": "reveal"}, AncestralSampler(steps=7, schedule=Cosine())),
        ({"steps": 7, "order": "margin"}, OrderedSampler(order="margin", steps=7)),
        ({"order": "threshold"}, ThresholdSampler()),
        ({"order": "entropy_bounded"}, EntropyBoundedSampler()),
        ({"steps": 7, "sampler": "remdm"}, ReMDMSampler(steps=7, schedule=Cosine())),
        ({"sampler": {"name": "remdm", "schedule": "loglinear", "steps": 9}}, ReMDMSampler(steps=9)),
        ({"sampler": AncestralSampler(steps=3)}, AncestralSampler(steps=3)),
        ({"steps": 3, "sampler": AncestralSampler(steps=3)}, AncestralSampler(steps=3)),
    ],
)
def test_names_become_samplers(options, sampler):
    assert choose_sampler(Cosine(), **options) == sampler


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "confidense"}, "Did you mean 'confidence'"),
        ({"sampler": "remmd"}, "Did you mean 'remdm'"),
        ({"sampler": {"name": "remdm", "etta": 1}}, "Did you mean 'eta'"),
        ({"sampler": {"strategy": "cap"}}, "must be a name or a mapping"),
        ({"order": "margin", "sampler": "remdm"}, "give one of them"),
        ({"order": "threshold", "steps": 4}, "leave out steps=4"),
        ({"sampler": {"name": "remdm", "steps": 8}, "steps": 4}, "steps=4 contradicts steps=8"),
        ({"sampler": AncestralSampler(), "steps": 4}, "steps=4 contradicts steps=None"),
        ({"sampler": "ar"}, "needs an autoregressive model"),
        ({"sampler": "analytic"}, "only the objective 'sedd'.*use 'ancestral'"),
        ({"order": "margin", "steps": 0}, "steps must be .* got 0"),
    ],
)
def test_samplers_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UnmaskError, match=message) as caught:
        choose_sampler(LogLinear(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 2}, "needs a constraint or a score"),
        ({"particles": 2, "constraint": Words("a"), "score": len}, "only one of them"),
        ({"particles": 2, "constraint": Words("a"), "temperature": 0.0}, "at temperature 0"),
        ({"particles": 2, "constraint": Words("a"), "sampler": "remdm"}, "ReMDMSampler does not support particles"),
        ({"particles": 2, "constraint": Words("a"), "sampler": "corrector"}, "does not support particles"),
        ({"particles": 0}, "particles must be .* got 0"),
        ({"guidance": -1.0, "prompt": "a"}, "guidance must be .* got -1"),
    ],
)
def test_options_that_do_not_fit_are_refused(mdlm, options, message):
    with pytest.raises(UnmaskError, match=message):
        mdlm.generate(1, length=8, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"constraint": Regex("[a-z]*")},
        {"guidance": 1.0, "prompt": "a"},
        {"particles": 2, "score": len},
        {"order": "confidence"},
        {"sampler": "remdm"},
    ],
)
def test_an_autoregressive_model_refuses_options_of_masked_models(ar, options):
    with pytest.raises(UnmaskError, match="An autoregressive model"):
        ar.generate(1, length=8, **options)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_sampler_generates_and_streams(mdlm, way):
    done = mdlm.sample(3, prompt="Once", length=14, seed=4, **way)
    alone = [mdlm.sample(prompt="Once", length=14, seed=4 + i, **way)[0] for i in range(3)]
    assert [one.ids for one in done] == [one.ids for one in alone]
    for one in done:
        assert one.text.startswith("Once")
        assert one.order[:4] == [-1] * 4
        assert min(one.order[4:]) >= 0
        assert max(one.order) < one.calls
        assert one.calls <= 10 if mdlm.sampler(**way).adaptive else one.calls == 5
    assert mdlm.generate(3, prompt="Once", length=14, seed=4, **way) == [one.text for one in done]
    *_, last = mdlm.stream("Once", length=14, seed=4, **way)
    assert (last.ids, last.calls) == (done[0].ids, done[0].calls)


def test_windows_overlap_by_half_by_default(mdlm):
    rows = [[mdlm.text_processor.mask_token_id] * 20]
    windows = GenerationConfig(window=8).bind(mdlm.text_processor, rows).windows
    assert (windows.size, windows.stride) == (8, 4)
    assert GenerationConfig(window=8, stride=3).bind(mdlm.text_processor, rows).windows.stride == 3
    assert GenerationConfig(window=20).bind(mdlm.text_processor, rows).windows is None


def test_particles_share_the_tokens_of_a_call():
    length, cpu = CPU_TOKENS_PER_CALL // 32, torch.device("cpu")
    assert SamplingOptions().batch_size(length, cpu) == 32
    assert SamplingOptions(particles=8).batch_size(length, cpu) == 4
    assert SamplingOptions(particles=64).batch_size(length, cpu) == 1


def test_token_sampling_options_reach_every_sampler(mdlm):
    for way in [{"steps": 4}, *WAYS[:3]]:
        greedy = mdlm.generate(2, length=12, temperature=0, **way)
        assert greedy[0] == greedy[1]
        assert mdlm.generate(2, length=12, greedy_tail=1.0, **way) == greedy
        assert mdlm.generate(2, length=12, min_p=1.0, **way) == greedy
