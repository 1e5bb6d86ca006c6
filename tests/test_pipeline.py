"""The front door: generate, fill, stream."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from tests.test_streaming import Diary
from unmask.checkpoint import CheckpointConfig
from unmask.constraints import Banned, Words
from unmask.data.encoding import encode
from unmask.data.sources import Document
from unmask.errors import UnmaskError
from unmask.generation_config import check_most, token_rule
from unmask.pipeline import load
from unmask.registry import build
from unmask.samplers.token_sampling import TokenSampler
from unmask.text_processor import GLYPH, TextProcessor, parse_blanks


def test_a_sequence_does_not_depend_on_its_neighbours(mdlm):
    together = mdlm.sample(5, length=24, steps=6, seed=10, batch_size=3)
    for i, one in enumerate(together):
        alone = mdlm.sample(1, length=24, steps=6, seed=10 + i)[0]
        assert (alone.ids, alone.order, alone.calls) == (one.ids, one.order, one.calls)
    assert len({one.text for one in together}) == 5


@pytest.mark.parametrize("steps", [1, 4, None])
def test_calls_are_counted_and_every_mask_is_written(mdlm, steps):
    calls = []
    run = mdlm.denoiser._run
    mdlm.denoiser._run = lambda *a, **k: calls.append(1) or run(*a, **k)
    try:
        one = mdlm.sample(1, length=20, steps=steps, seed=3)[0]
    finally:
        del mdlm.denoiser._run
    assert one.calls == len(calls) == max(one.order) + 1
    assert one.calls == 20 if steps is None else one.calls <= steps
    assert mdlm.denoiser.config.mask_token_id not in one.ids
    assert all(0 < c <= 1 for c in one.confidence)


def test_a_prompt_is_kept_and_marked_as_given(mdlm):
    one = mdlm.sample(1, prompt="def f(", length=20, steps=5)[0]
    assert bytes(one.ids[:6]) == b"def f("
    assert one.order[:6] == [-1] * 6
    assert min(one.order[6:]) >= 0


def test_fill_keeps_what_is_known(mdlm):
    text = "The [MASK] sat on [MASK:3]."
    one = mdlm.fill_details([text], seed=1)[0]
    assert bytes(one.ids[:4]) == b"The "
    assert bytes(one.ids[5:13]) == b" sat on "
    assert one.ids[-1] == ord(".")
    assert [i for i, o in enumerate(one.order) if o >= 0] == [4, 13, 14, 15]
    assert one.calls == 4


def test_fill_of_ragged_lines_equals_fill_of_each(mdlm):
    lines = ["a[MASK]b", "a much longer [MASK:5] line with [MASK] two", "[MASK:2]"]
    batch = mdlm.fill(lines, seed=5)
    assert batch == [mdlm.fill(line, seed=5 + i) for i, line in enumerate(lines)]


def test_greedy_takes_the_most_likely_token(mdlm):
    one = mdlm.fill_details(["ab[MASK]cd"], rule=token_rule(0.0))[0]
    ids = torch.tensor([[*b"ab", mdlm.denoiser.config.mask_token_id, *b"cd"]])
    probabilities = mdlm.denoiser(ids).logits.detach().softmax(-1)[0, 2]
    assert one.ids[2] == int(probabilities.argmax())
    assert one.confidence[2] == pytest.approx(float(probabilities.max()), rel=1e-5)
    assert mdlm.fill("ab[MASK]cd", greedy=True, seed=1) == mdlm.fill("ab[MASK]cd", greedy=True, seed=2)


def test_top_k_one_is_greedy_and_temperature_spreads(mdlm):
    text = "ab[MASK:6]cd"
    assert mdlm.fill(text, top_k=1, seed=4) == mdlm.fill(text, greedy=True, seed=4)
    assert mdlm.fill(text, temperature=0.0, seed=4) == mdlm.fill(text, greedy=True, seed=4)


def test_stream_goes_from_masks_to_the_generated_text(mdlm):
    frames = list(mdlm.stream(length=16, steps=4, seed=2))
    assert frames[0].text == GLYPH * 16
    assert [frame.call for frame in frames] == list(range(frames[-1].calls + 1))
    assert frames[-1].text == mdlm.generate(1, length=16, steps=4, seed=2)[0]
    masks = [frame.ids.count(mdlm.denoiser.config.mask_token_id) for frame in frames]
    assert masks == sorted(masks, reverse=True)
    assert masks[-1] == 0


def test_autoregressive_generation_draws_from_its_own_conditionals(ar):
    one = ar.sample(1, prompt="ab", length=12, seed=0)[0]
    assert one.calls == 10
    assert one.order == [-1, -1, *range(10)]
    bos = ar.denoiser.config.bos_token_id
    logits = ar.denoiser(torch.tensor([[bos, *one.ids[:-1]]])).logits[0]
    expected = logits.softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
    assert one.confidence[2:] == pytest.approx(expected[2:].tolist(), rel=1e-4)


def test_autoregressive_rows_with_prompts_of_any_length(ar):
    """Given tokens of the longer prompt are read, not written, and each row is what it is alone."""
    lines = ["ab[MASK:4]", "abcdef[MASK:2]"]
    both = ar.fill(lines, seed=0)
    assert both == [ar.fill(lines[0], seed=0), ar.fill(lines[1], seed=1)]


def test_texts_end_at_eos_where_the_policy_says_so(tmp_path):
    lm = load(make_checkpoint(tmp_path / "padded", policy="padded"))
    eos = lm.tokenizer.eos_token_id
    assert lm.decode([97, 98, eos, 99]) == "ab"
    row = lm.fill_details(["a[MASK]c"], seed=0)[0]
    assert row.ids[-1] == eos


def test_the_largest_seeds_are_seeds(mdlm):
    for seed in (2**63 - 1, -(2**63)):
        assert mdlm.sample(1, length=8, steps=2, seed=seed)[0].seed == seed
    assert mdlm.generate(2, length=8, seed=2**63 - 2)[1] == mdlm.generate(1, length=8, seed=2**63 - 1)[0]


def test_a_blank_in_a_prompt_is_written_wherever_prompts_are_taken(mdlm):
    options = {"length": 24, "steps": 5, "seed": 3}
    *_, last = mdlm.stream("The [MASK:2] cat", suffix="a[MASK]d", **options)
    (one,) = mdlm.sample(1, prompt="The [MASK:2] cat", suffix="a[MASK]d", **options)
    (other,) = mdlm.sample(prompts=["The [MASK:2] cat"], suffix="a[MASK]d", **options)
    assert one.ids == other.ids == last.ids
    assert last.finished(3) == one
    given = {place: token for place, token in enumerate(one.ids) if one.order[place] < 0}
    assert given == {**dict(enumerate(b"The ")), **dict(enumerate(b" cat", 6)), 21: ord("a"), 23: ord("d")}


def test_lengths_that_do_not_fit_are_not_tried(mdlm):
    (one,) = mdlm.fill_details(["ab[MASK:44-60]"])
    assert 46 <= len(one.ids) <= LENGTH
    for length in (6, 90):
        (one,) = mdlm.sample(1, prompt="ab[MASK:1-60]", length=length, steps=2)
        assert len(one.ids) == length


WORDS = [
    {"temperature": 0.4},
    {"top_k": 3},
    {"top_p": 0.4},
    {"min_p": 0.3},
    {"greedy_tail": 0.5},
    {"greedy_above": 0.01},
]


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_every_verb_takes_the_words_of_a_token_rule_or_the_rule(mdlm, words):
    verbs = [
        lambda **how: mdlm.generate(2, length=24, seed=5, steps=8, **how),
        lambda **how: [one.text for one in mdlm.sample(2, length=24, seed=5, steps=8, **how)],
        lambda **how: list(mdlm.stream(length=24, seed=5, steps=8, **how))[-1].text,
        lambda **how: mdlm.fill("a[MASK:20]b", seed=5, steps=8, **how),
        lambda **how: mdlm.edit("some text to be changed", strength=1.0, seed=5, steps=8, **how),
        lambda **how: mdlm.rewrite("some text to be changed", "text", seed=5, steps=8, **how),
    ]
    for verb in verbs:
        assert verb(**words) == verb(rule=TokenSampler(**words)) != verb()
    assert verbs[1](**words) == verbs[0](**words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: lm.generate(1, length=0), "at least one token"),
        (lambda lm: lm.generate(0), "at least one"),
        (lambda lm: lm.generate(1, prompt="x" * 9, length=8), "prompt"),
        (lambda lm: lm.generate(1, length=4, top_p=0.0), "top_p"),
        (lambda lm: lm.generate(1, length=4, top_p=1.5), "top_p"),
        (lambda lm: lm.generate(1, length=4, top_k=0), "top_k"),
        (lambda lm: lm.generate(1, length=4, temperature=-1), "temperature"),
        (lambda lm: lm.generate(1, length=4, steps=0), "steps"),
        (lambda lm: lm.fill("no blank here"), "no blank"),
        (lambda lm: lm.fill("a [MASK:0] b"), r"\[MASK:0\]"),
        (lambda lm: lm.fill("a [MASK:x] b"), r"\[MASK:x\]"),
        (lambda lm: lm.fill("a [MASK:] b"), r"\[MASK:\]"),
        (lambda lm: lm.fill("[MASK:99]"), "shorten"),
        (lambda lm: lm.fill("a[MASK:6-2]"), r"\[MASK:2-6\]"),
        (lambda lm: lm.fill("a[MASK:2-66]"), "65 lengths.*64"),
        (lambda lm: lm.fill("abc[MASK:1000000000]"), "1000000003 tokens.*room for 48; shorten"),
        (lambda lm: lm.fill("ab[MASK:47-60]"), r"room for 46 tokens.*\[MASK:47-60\].*shorten"),
        (lambda lm: lm.fill("a" * 60 + "[MASK:2-4]"), r"room for 0 tokens.*\[MASK:2-4\]"),
        (lambda lm: lm.fill("[MASK:40-44]a[MASK:8-9]"), r"room for 47 tokens.*\[MASK:40-44\]"),
        (lambda lm: lm.fill("[MASK:1000000000-1000000009]a"), "room for 47 tokens"),
        (lambda lm: lm.generate(1, prompt="a[MASK:1000000000]", length=90), "1000000001 tokens.*room for 90"),
        (lambda lm: lm.fill([]), "no texts to fill"),
        (lambda lm: lm.fill([5]), "5 is no text"),
        (lambda lm: lm.fill_rows([]), "no rows"),
        (lambda lm: lm.fill_rows([[97], []]), "without tokens"),
        (lambda lm: lm.fill_rows([[97, 999]]), "no token 999"),
        (lambda lm: lm.fill_rows([[97, -1]]), "no token -1"),
        (lambda lm: lm.score([]), "no texts to score"),
        (lambda lm: lm.edit(5), "5 is no text"),
        (lambda lm: lm.generate(1, prompt=5), "5 is no text"),
        (lambda lm: lm.generate(1, suffix=5), "5 is no text"),
        (lambda lm: lm.generate(1, length=8.5), "length=8.5 is no whole number"),
        (lambda lm: lm.stream(length=8.5), "length=8.5 is no whole number"),
        (lambda lm: lm.generate(1.5), "n=1.5 is no whole number"),
        (lambda lm: lm.generate(1, particles=2.5, constraint=Words("a")), "particles=2.5 is no whole number"),
        (lambda lm: lm.generate(1, length=8, best_of=2, score=lambda text: None), "is None; return a finite"),
        (lambda lm: lm.generate(1, length=8, particles=2, score=lambda text: "good"), "is good; return a finite"),
        (lambda lm: lm.generate(1, length=8, streamer=5), "streamer=5 has no put"),
        (lambda lm: lm.generate(2, length=8, batch_size=-1), "batch_size=-1.*at least 1"),
        (lambda lm: lm.generate(2, length=8, batch_size=0), "batch_size=0.*at least 1"),
        (lambda lm: lm.generate(2, length=8, batch_size=1.5), "batch_size=1.5 is no whole"),
        (lambda lm: lm.fill("a[MASK]", batch_size=0), "batch_size=0"),
        (lambda lm: lm.fill_rows([[97, 257]], batch_size=-1), "batch_size=-1"),
        (lambda lm: lm.stream(length=8, best_of=3, score=len), "stream shows one text and 3"),
        (lambda lm: lm.generate(1, length=8, streamer=Diary(), best_of=3, score=len), "streamer shows one text and 3"),
        (lambda lm: lm.generate(1, length=8, seed=2**63), "seed=9223372036854775808.*smaller"),
        (lambda lm: lm.generate(2, length=8, seed=2**63 - 1), "room for 2 of 64 bits"),
        (lambda lm: lm.generate(1, length=8, seed=-(2**63) - 1), "64 bits"),
        (lambda lm: lm.generate(1, length=8, seed=0.5), "seed=0.5 is no whole"),
        (lambda lm: lm.stream(length=8, seed=2**70), "64 bits"),
        (lambda lm: lm.fill(["a[MASK]"] * 3, seed=2**63 - 2), "room for 3 of 64 bits"),
        (lambda lm: lm.edit("abc", seed=2**63), "64 bits"),
        (lambda lm: lm.generate(1, length=8, temperature=0.5, rule=TokenSampler(top_k=2)), "rule= alone"),
        (lambda lm: lm.edit("abc", rule=TokenSampler(), min_p=0.5), "rule= alone"),
        (lambda lm: lm.fill("[MASK:2-6]"), "blanks alone"),
        (lambda lm: lm.generate(1, prompt="abc", suffix="defgh", length=7), "suffix have 8 tokens and the canvas 7"),
        (lambda lm: lm.generate(1, prompts=[]), "no list of texts"),
        (lambda lm: lm.generate(1, prompts="abc"), "no list of texts"),
        (lambda lm: lm.generate(1, prompt="a", prompts=["b"]), "one of them"),
        (lambda lm: lm.generate(1, length=100, stride=0), "stride=0"),
        (lambda lm: lm.generate(1, length=100, stride=LENGTH + 1), f"stride={LENGTH + 1}.*1 to {LENGTH}"),
        (lambda lm: lm.generate(1, length=100, constraint=Words("a")), f"100 tokens.*sees {LENGTH}"),
        (lambda lm: lm.generate(1, length=8, guidance=1.5), "give a prompt"),
        (lambda lm: lm.generate(1, prompt="a", length=8, guidance=-1.0), "guidance must be .* got -1"),
        (lambda lm: lm.generate(1, prompt="a", length=8, guidance=float("nan")), "guidance must be .* got nan"),
        (lambda lm: lm.generate(1, length=8, best_of=0), "best_of=0"),
        (lambda lm: lm.generate(1, length=8, best_of=2), "needs a score"),
        (lambda lm: lm.generate(1, length=8, score=len), "several texts"),
        (lambda lm: lm.generate(1, length=8, score=len, best_of=2, particles=2), "one of them"),
        (lambda lm: lm.generate(1, length=8, score=len, particles=2, constraint=Words("a")), "one of them"),
        (lambda lm: lm.generate(1, length=8, score=lambda text: float("nan"), best_of=2), "is nan"),
        (lambda lm: lm.generate(1, length=100, score=len, particles=2), f"sees {LENGTH}"),
        (lambda lm: lm.generate(2, length=8, streamer=object()), "one text and 2"),
        (lambda lm: lm.edit("abc", strength=0.0), "strength=0"),
        (lambda lm: lm.edit("abc", strength=1.5), "strength=1.5"),
        (lambda lm: lm.edit("abc", strength=0.5, spans=[(0, 1)]), "one of them"),
        (lambda lm: lm.edit("abc", spans=[(2, 4)]), "2 to 4 .*3 characters"),
        (lambda lm: lm.edit("abc", spans=[(2, 2)]), "2 to 2"),
        (lambda lm: lm.edit(""), "no tokens"),
        (lambda lm: lm.edit("a" * 50), "shorten"),
        (lambda lm: lm.rewrite("abc", keep=["x"]), "'x' is not in the text"),
        (lambda lm: lm.rewrite("abc", keep=[""]), "not in the text"),
        (lambda lm: lm.rewrite("abc", keep=["ab", "bc"]), "keep less"),
        (lambda lm: lm.edit("abc", lenght=3), "no option 'lenght'. Choose one of: .*spans, steps, strength"),
        (lambda lm: lm.rewrite("abc", "b", temprature=3), "no option 'temprature'. Did you mean 'temperature'"),
        (lambda lm: lm.sample(lenght=3), "no option 'lenght'. Did you mean 'length'"),
        (lambda lm: lm.fill_details(["a[MASK]"], step=3), "no option 'step'. Did you mean 'steps'"),
        (lambda lm: lm.fill_rows([[97, 257]], wish=3), "no option 'wish'. Choose one of"),
        (lambda lm: lm.stream(n=3), "no option 'n'. Choose one of: .*length, .*prompt"),
        (lambda lm: lm.generate(None), "n=None is no whole number"),
        (lambda lm: lm.generate(1, length=8, seed=None), "seed=None is no whole number"),
        (lambda lm: lm.generate(1, length=8, particles=None), "particles=None is no whole number"),
        (lambda lm: lm.generate(1, length=8, best_of=None), "best_of=None is no whole number"),
        (lambda lm: lm.generate(1, length=8, temperature=None), "temperature=None is no number"),
        (lambda lm: lm.generate(1, length=8, top_p="0.5"), "top_p='0.5' is no number"),
        (lambda lm: lm.generate(1, length=8, top_p=""), "top_p='' is no number"),
        (lambda lm: lm.generate(1, length=8, top_k="5"), "top_k='5' is no whole number"),
        (lambda lm: lm.generate(1, length=8, greedy_above="1"), "greedy_above='1' is no number"),
        (lambda lm: lm.generate(1, length=8, guidance=None), "guidance=None is no number"),
        (lambda lm: lm.generate(1, length=8, rule=3), "rule=3 is no rule"),
        (lambda lm: lm.generate(1, length=8, score=3, best_of=2), "score=3 is no function"),
        (lambda lm: lm.generate(1, length=8, order=3), "no order named '3'"),
        (lambda lm: lm.generate(1, length=8, prompts=3), "no list of texts"),
        (lambda lm: lm.edit("abc", strength="0.5"), "strength=0.5 is no share"),
        (lambda lm: lm.edit("abc", spans=3), "spans=3 are no places"),
        (lambda lm: lm.edit("abc", spans=[3]), "are no places"),
        (lambda lm: lm.edit("abc", spans=["ab"]), "are no places"),
        (lambda lm: lm.edit("abc", spans=[(0.5, 2)]), "are no places"),
        (lambda lm: lm.rewrite("abc", 3), "keep=3 are no words"),
        (lambda lm: lm.rewrite("abc", [3]), r"keep=\[3\] are no words"),
        (lambda lm: lm.rewrite("abc", None), "keep=None are no words"),
        (lambda lm: lm.generate(1, length=8, prompts=iter([])), "no list of texts"),
        (lambda lm: lm.fill_rows([["a", 257]]), "no token 'a'"),
        (lambda lm: lm.fill_rows([[1.5, 257]]), "no token 1.5"),
        (lambda lm: lm.edit("abc", spans=[("a", "b")]), "are no places"),
        (lambda lm: lm.fill(5), "5 is no text to fill"),
        (lambda lm: lm.fill(b"a[MASK]"), "b'a.MASK.' is no text to fill"),
        (lambda lm: lm.fill(["a[MASK]", 5]), "5 is no text"),
        (lambda lm: lm.fill("a[MASK]", greedy=True, temperature=0.5), "greedy is temperature 0.*temperature=0.5"),
        (lambda lm: lm.fill_rows(5), "no rows"),
        (lambda lm: lm.fill_rows([5]), "no rows"),
        (lambda lm: lm.fill_rows([[1, "a"]]), "no token 'a'"),
        (lambda lm: lm.score(None), "None is no text to score"),
        (lambda lm: lm.score([5]), "5 is no text"),
        (lambda lm: lm.score("abc", given=5), "5 is no text to condition on"),
        (lambda lm: lm.score("abc", seed="x"), "seed='x' is no whole number"),
        (lambda lm: lm.score("abc", batch_size=0), "batch_size=0"),
        (lambda lm: lm.score("abc", precision=0), "precision=0 is no error"),
        (lambda lm: lm.score("abc", precision=float("nan")), "precision=nan is no error"),
        (lambda lm: lm.score("abc", precision="x"), "precision='x' is no error"),
        (lambda lm: lm.generate(1, length=8, constraint=Banned("a", 0)), "positions must be a list"),
        (lambda lm: lm.generate(1, length=8, best_of=2, score=lambda text: 2**2000), "return a finite number"),
        (lambda lm: lm.generate(10**9, length=8), "n=1000000000 .*at most 1000000"),
        (lambda lm: lm.generate(1, length=10**30), "length=10+ .*at most 1000000"),
        (lambda lm: lm.generate(1, length=8, best_of=10**9, score=len), "best_of=1000000000 .*at most 1000000"),
        (lambda lm: lm.stream(length=10**9), "length=1000000000 .*at most 1000000"),
    ],
)
def test_bad_input_is_one_sentence(mdlm, call, words):
    with pytest.raises(UnmaskError, match=words) as caught:
        call(mdlm)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "how",
    [
        {"lenght": 3},
        {"seed": None},
        {"temperature": None},
        {"score": 3, "best_of": 2},
        {"order": "no"},
        {"constraint": 3},
        {"constraint": []},
        {"guidance": -1},
        {"particles": 3},
        {"particles": 3, "score": len, "temperature": 0},
        {"particles": 3, "score": len, "constraint": Words("a")},
        {"stride": 0},
        {"stride": 10**6},
    ],
    ids=str,
)
def test_bad_options_are_told_before_the_network_is_asked(mdlm, monkeypatch, how):
    monkeypatch.setattr(mdlm.denoiser, "hidden", lambda *_, **__: pytest.fail("the network was asked"))
    verbs = [
        lambda: mdlm.edit("some text", **how),
        lambda: mdlm.sample(prompt="a[MASK:2-4]b", **how),
        lambda: mdlm.stream("a[MASK:2-4]b", **how),
        lambda: mdlm.fill_details(["a[MASK:2-4]b"], **how),
    ]
    for verb in verbs:
        with pytest.raises(UnmaskError):
            verb()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: lm.fill(["a[MASK:2-4]b", "none"]), "has no blank"),
        (lambda lm: lm.fill(["a[MASK:2-4]b", "a[MASK:x]b"]), "is not .MASK"),
        (lambda lm: lm.fill(["a[MASK:2-4]b", "[MASK][MASK:2-4]"]), "blanks alone"),
        (lambda lm: lm.generate(prompt="a[MASK:2-4]b", suffix="[MASK:2-4]"), "blanks alone"),
        (lambda lm: lm.fill(["a[MASK:2-4]b"], batch_size=0), "batch_size=0"),
        (lambda lm: lm.fill(["a[MASK:2-4]b"] * 2, seed=2**63 - 1), "room for 2"),
        (lambda lm: lm.fill_rows([[97, 257]] * 2, seed=2**63 - 1), "room for 2"),
        (lambda lm: lm.fill_rows([[97, 257]], batch_size=0), "batch_size=0"),
        (lambda lm: lm.generate(prompts=["a[MASK:2-4]b", 3]), "3 is no text"),
        (lambda lm: lm.generate(prompt="a[MASK:2-4]b", suffix="a[MASK:x]"), "is not .MASK"),
        (lambda lm: lm.generate(prompt="a[MASK:2-4]b", batch_size=0), "batch_size=0"),
        (lambda lm: lm.generate(2, prompt="a[MASK:2-4]b", seed=2**63 - 1), "room for 2"),
        (lambda lm: lm.generate(1, prompts=["a[MASK:2-4]b"] * 3, seed=2**63 - 2), "room for 3"),
        (lambda lm: lm.generate(1, prompt="a[MASK:2-4]b", streamer=3), "streamer=3 has no put"),
        (lambda lm: lm.generate(1, prompts=["a[MASK:2-4]b"] * 3, streamer=3), "one text and 3"),
        (lambda lm: lm.stream("a[MASK:2-4]b", best_of=2, score=len), "one text and 2"),
        (lambda lm: lm.generate(1, prompt="a[MASK:2-4]b", length=10**4, constraint=Words("a")), "sees it"),
        (lambda lm: lm.stream("a[MASK:2-4]b", length=10**4, particles=2, score=len), "sees it"),
    ],
)
def test_what_is_wrong_beside_an_open_blank_is_told_before_the_network_is_asked(mdlm, monkeypatch, call, words):
    monkeypatch.setattr(mdlm.denoiser, "hidden", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(UnmaskError, match=words):
        call(mdlm)


def test_kept_words_are_something_to_weigh_particles_by(mdlm):
    assert "kept" in mdlm.rewrite("it is kept now", keep="kept", particles=2, steps=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: lm.fill("a [MASK] b"), "autoregressive"),
        (lambda lm: lm.fill("a[MASK:2-3]"), "autoregressive.*how long"),
        (lambda lm: lm.generate(1, length=LENGTH + 1), f"{LENGTH + 1} tokens .* {LENGTH} .*autoregressive"),
        (lambda lm: lm.generate(1, prompt="a", suffix="b", length=8), "autoregressive.*suffix"),
        (lambda lm: lm.generate(1, prompt="a", length=8, guidance=1.0), "autoregressive.*masked"),
        (lambda lm: lm.generate(1, length=8, particles=2, score=len), "autoregressive"),
        (lambda lm: lm.stream("a [MASK] b", length=12), "autoregressive.*after a blank"),
        (lambda lm: lm.generate(1, prompt="a [MASK] b", length=12), "autoregressive.*after a blank"),
        (lambda lm: lm.generate(1, length=8, steps=2), "autoregressive.*left to right.*steps"),
        (lambda lm: lm.fill("a[MASK:3]", steps=2), "autoregressive.*left to right.*steps"),
        (lambda lm: lm.stream(length=8, steps=2), "autoregressive.*left to right.*steps"),
        (lambda lm: lm.generate(1, length=8, stride=4), "autoregressive.*window.*stride=4"),
        (lambda lm: lm.edit("abc"), "autoregressive"),
        (lambda lm: lm.rewrite("abc", keep=["b"]), "autoregressive"),
    ],
)
def test_what_an_autoregressive_model_cannot_do_is_one_sentence(ar, call, words):
    with pytest.raises(UnmaskError, match=words) as caught:
        call(ar)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_mask_token_is_named(mdlm_folder):
    lm = load(mdlm_folder, device="cpu")
    lm.tokenizer.mask_token = None
    for ask in (lambda: lm.generate(1, length=8), lambda: lm.fill("a[MASK]b"), lambda: lm.score("abc")):
        with pytest.raises(UnmaskError, match="no mask token"):
            ask()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"dtype": "float16"}, "dtype='float16' is none.*auto, float32, bf16"),
        ({"path": 5}, "5 is no name of a checkpoint"),
        ({"path": b"smoke"}, "b'smoke' is no name of a checkpoint"),
        ({"path": ""}, "no checkpoint at ''"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(words, sentence):
    with pytest.raises(UnmaskError, match=sentence):
        load(**{"path": "smoke", "device": "cpu"} | words)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    "how", [{"length": 12}, {"length": 2 * LENGTH, "steps": 3}, {"length": 12, "order": "threshold"}], ids=str
)
def test_progress_goes_on_with_every_call_and_adds_up_to_the_texts(mdlm, batch_size, how):
    heard, batches = [], []
    done = mdlm.sample(3, **how, batch_size=batch_size, progress=heard.append, batches=batches.append)
    assert sum(heard) == pytest.approx(3)
    assert min(heard) >= 0
    assert sum(share > 0 for share in heard) >= max(one.calls for one in done)
    assert batches == ([3] if batch_size is None else [2, 1])


def test_progress_of_blanks_and_edits_adds_up_to_the_texts(mdlm):
    heard = []
    mdlm.fill_details(["a[MASK:3]", "[MASK]b"], progress=heard.append)
    assert sum(heard) == pytest.approx(2)
    assert len(heard) > 2
    mdlm.edit_details("some text", progress=heard.append)
    assert sum(heard) == pytest.approx(3)


def test_blanks_are_parsed():
    assert parse_blanks("[MASK]a[MASK:12][MASK]") == [1, "a", 12, 1]
    assert parse_blanks("[mask] x") == ["[mask] x"]
    assert parse_blanks("[MASK:2-6]a[MASK:3-3]") == [range(2, 7), "a", 3]


def test_a_blank_takes_the_space_before_it_where_words_do():
    """Byte-level BPE writes ' time' as one token, so a blank behind a space would have to be a word without one."""
    tokenizer = build("tokenizer", {"name": "bpe", "vocab_size": 300}).build(
        lambda: iter([Document("one", "a time and a time and a time again " * 9)])
    )
    config = SimpleNamespace(mask_token_id=tokenizer.mask_token_id, max_length=32, vocab_size=len(tokenizer))
    text_processor = TextProcessor(tokenizer, config, CheckpointConfig(length=32))
    mask = tokenizer.mask_token_id
    a, again = encode(tokenizer, ["a", " again"])
    assert text_processor.blank_ids(text_processor.parts("a [MASK] again")) == [*a, mask, *again]
    assert text_processor.blank_ids(text_processor.parts("a [MASK] [MASK:2]")) == [*a, mask, mask, mask]
    assert text_processor.blank_ids(text_processor.parts("a[MASK]")) == [*a, mask]
    assert text_processor.parts("") == []
    assert text_processor.blank_ids(text_processor.parts("[MASK] again "))[-1] == encode(tokenizer, [" "])[0][0], (
        "no blank follows"
    )


def test_a_blank_leaves_spaces_alone_where_they_are_tokens(mdlm):
    assert mdlm.text_processor.blank_ids(mdlm.text_processor.parts("a [MASK]")) == [97, 32, mdlm.text_processor.mask]


def test_load_names_what_is_wrong(tmp_path):
    with pytest.raises(UnmaskError, match="no checkpoint at"):
        load(tmp_path / "nowhere")
    with pytest.raises(UnmaskError, match=r"unmask\.json"):
        load(tmp_path)
    folder = make_checkpoint(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UnmaskError, match="cannot be opened"):
        load(folder)


def test_a_million_may_be_asked_for_and_no_more():
    check_most(n=1_000_000)
    with pytest.raises(UnmaskError, match=r"n=1000001 .*at most 1000000"):
        check_most(n=1_000_001)
