"""Orders and samplers through the front door: what users write, what they get, what is refused."""

from __future__ import annotations

import pytest

from unmask.constraints import Regex
from unmask.errors import UnmaskError
from unmask.registry import build
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.options import choose_sampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler
from unmask.samplers.remasking import ReMDMSampler
from unmask.schedules import Cosine, LogLinear

EVERY_WAY = [
    {"order": "confidence", "steps": 5},
    {"order": "margin", "steps": 5},
    {"order": "entropy", "steps": 5},
    {"order": "left_to_right", "steps": 5},
    {"order": "uniform", "steps": 5},
    {"order": "threshold"},
    {"order": "entropy_bounded"},
    {"sampler": {"name": "entropy_bounded", "gamma": 6.0}},
    {"sampler": "remdm", "steps": 5},
    {"sampler": {"name": "remdm", "strategy": "conf", "eta": 0.4}, "steps": 5},
    {"sampler": {"name": "remdm", "strategy": "loop", "eta": 0.4, "steps": 5}},
    {"sampler": "corrector", "steps": 5},
]


def test_words_become_samplers():
    assert choose_sampler(Cosine(), 7) == AncestralSampler(steps=7, schedule=Cosine())
    assert choose_sampler(Cosine(), 7, "margin") == OrderedSampler(order="margin", steps=7)
    assert choose_sampler(Cosine(), order="threshold") == ThresholdSampler()
    assert choose_sampler(Cosine(), order="entropy_bounded") == EntropyBoundedSampler()
    assert choose_sampler(Cosine(), 7, sampler="remdm") == ReMDMSampler(steps=7, schedule=Cosine())
    own = {"name": "remdm", "schedule": "loglinear", "steps": 9}
    assert choose_sampler(Cosine(), sampler=own) == ReMDMSampler(steps=9, schedule=LogLinear())
    assert choose_sampler(Cosine(), sampler=AncestralSampler(steps=3)) == AncestralSampler(steps=3)
    assert choose_sampler(Cosine(), 3, sampler=AncestralSampler(steps=3)) == AncestralSampler(steps=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "confidense"}, "Did you mean 'confidence'"),
        ({"sampler": "remmd"}, "Did you mean 'remdm'"),
        ({"sampler": {"name": "remdm", "etta": 1}}, "Did you mean 'eta'"),
        ({"sampler": {"strategy": "cap"}}, "name or a mapping"),
        ({"order": "margin", "sampler": "remdm"}, "give one of them"),
        ({"order": "threshold", "steps": 4}, "leave out steps=4"),
        ({"sampler": {"name": "remdm", "steps": 8}, "steps": 4}, "steps=8 of its own; leave out steps=4"),
        ({"sampler": AncestralSampler(), "steps": 4}, "leave out steps=4"),
        ({"sampler": "ar"}, "left to right"),
        ({"sampler": "analytic"}, "only the objective 'sedd'.*take 'ancestral'"),
        ({"order": "margin", "steps": 0}, "steps must be .*, got 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(options, words):
    with pytest.raises(UnmaskError, match=words) as caught:
        choose_sampler(LogLinear(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", EVERY_WAY, ids=str)
def test_every_way_keeps_the_prompt_the_calls_and_its_neighbours_out(mdlm, way):
    done = mdlm.sample(3, prompt="Once", length=14, seed=4, **way)
    alone = [mdlm.sample(prompt="Once", length=14, seed=4 + i, **way)[0] for i in range(3)]
    assert [one.ids for one in done] == [one.ids for one in alone]
    for one in done:
        assert one.text.startswith("Once")
        assert one.order[:4] == [-1] * 4
        assert min(one.order[4:]) >= 0
        assert max(one.order) < one.calls
        adaptive = mdlm.sampler(**way).adaptive
        assert one.calls <= 10 if adaptive else one.calls == 5
    assert mdlm.generate(3, prompt="Once", length=14, seed=4, **way) == [one.text for one in done]
    *_, last = mdlm.stream("Once", length=14, seed=4, **way)
    assert (last.ids, last.calls) == (done[0].ids, done[0].calls)


@pytest.mark.parametrize("way", EVERY_WAY, ids=str)
def test_every_way_fills_under_a_constraint(mdlm, way):
    texts = mdlm.fill(["a[MASK:6]b", "[MASK:3]"], constraint=Regex("[a-z]+"), seed=1, **way)
    assert all(text.isascii() and text.isalpha() and text.islower() for text in texts)
    assert texts[0][::7] == "ab"


def test_autoregressive_models_have_one_order(ar):
    for way in ({"order": "confidence"}, {"sampler": "remdm"}):
        with pytest.raises(UnmaskError, match="left to right"):
            ar.generate(length=8, **way)


def test_rules_reach_every_way(mdlm):
    for way in EVERY_WAY[:3]:
        greedy = mdlm.generate(2, length=12, temperature=0, **way)
        assert greedy[0] == greedy[1]
        assert mdlm.generate(2, length=12, greedy_tail=1.0, **way) == greedy
        assert mdlm.generate(2, length=12, min_p=1.0, **way) == greedy


def test_registered_samplers_say_their_options():
    for name in ("ordered", "threshold", "entropy_bounded", "remdm", "corrector"):
        assert build("sampler", name).model_dump()["name"] == name
