"""Which sampler a user gets, which options fit together, and that every sampler works through the public calls."""

from __future__ import annotations

import pytest

from unmask.constraints import Words
from unmask.errors import UnmaskError
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.options import choose_sampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler
from unmask.samplers.remasking import ReMDMSampler
from unmask.schedules import Cosine, LogLinear

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


def test_token_sampling_options_reach_every_sampler(mdlm):
    for way in [{"steps": 4}, *WAYS[:3]]:
        greedy = mdlm.generate(2, length=12, temperature=0, **way)
        assert greedy[0] == greedy[1]
        assert mdlm.generate(2, length=12, greedy_tail=1.0, **way) == greedy
        assert mdlm.generate(2, length=12, min_p=1.0, **way) == greedy
