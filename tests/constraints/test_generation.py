"""Constraints in generate, fill, edit and stream: every text matches, and impossible ones never reach the network."""

from __future__ import annotations

import re

import pytest

from tests.conftest import make_checkpoint
from unmask.constraints import Allowed, Banned, Characters, Constraint, Fixed, NoWords, Regex, Words
from unmask.errors import UnmaskError
from unmask.pipeline import load

LENGTH = 20
CASES = [
    (Regex("[a-z]+( [a-z]+)*"), lambda text: re.fullmatch("[a-z]+( [a-z]+)*", text)),
    (Regex(r"(.|\n)*(é|☃)[0-9]+"), lambda text: re.fullmatch(r"(.|\n)*(é|☃)[0-9]+", text)),
    (Words("cat", "é"), lambda text: re.search(r"\bcat\b", text) and re.search(r"\bé\b", text)),
    (NoWords("a", "é", "\n", whole=False), lambda text: not set(text) & set("aé\n")),
    (Characters(11, 13), lambda text: 11 <= len(text) <= 13),
    (Allowed(["x", "y"], range(2, 20)), lambda text: set(text[2:]) <= set("xy")),
    (Banned([token for token in range(257) if token not in {*b"fzq"}]), lambda text: set(text) <= set("fzq")),
    ([Regex("[a-f]+z[a-f]+"), Words("fa", whole=False), Fixed({9: "z"})], lambda text: text[9] == "z" and "fa" in text),
]


@pytest.mark.parametrize("steps", [3, None])
@pytest.mark.parametrize(("constraint", "holds"), CASES, ids=[str(case[0])[:40] for case in CASES])
def test_every_text_matches(mdlm, constraint, holds, steps):
    for prompt in ("", "f"):
        for one in mdlm.sample(3, prompt=prompt, length=LENGTH, steps=steps, constraint=constraint, batch_size=2):
            assert holds(one.text), one.text
            assert one.text.startswith(prompt)
            assert len(one.ids) == LENGTH
            assert mdlm.text_processor.mask_token_id not in one.ids
            assert one.calls == max(one.order) + 1


@pytest.mark.parametrize("particles", [1, 3])
def test_sequences_do_not_depend_on_each_other(mdlm, particles):
    options = {"length": 12, "steps": 5, "constraint": Words("cat"), "particles": particles}
    for i, one in enumerate(mdlm.sample(3, seed=10, **options)):
        alone = mdlm.sample(1, seed=10 + i, **options)[0]
        assert (alone.ids, alone.order, alone.calls) == (one.ids, one.order, one.calls)
    lines = ["ab[MASK:3]", "a much [MASK:6] longer [MASK]", "[MASK:2]"]
    options = {"constraint": [Regex("[a-z ]+"), Words("q")], "particles": particles}
    for i, (line, text) in enumerate(zip(lines, mdlm.fill(lines, seed=5, **options), strict=True)):
        assert re.fullmatch(re.sub(r"\[MASK(:\d)?\]", "[a-z ]+", line), text)
        assert re.search(r"\bq\b", text)
        assert text == mdlm.fill(line, seed=5 + i, **options)


def without_network(lm, monkeypatch):
    """The same model; calling its network fails."""

    def called(*args, **kwargs):
        raise AssertionError("the network was called")

    monkeypatch.setattr(lm.denoiser, "_run", called)
    return lm


IMPOSSIBLE: list[tuple[str, Constraint | list[Constraint], str]] = [
    ("", Regex("abc"), "No canvas of 8 tokens"),
    ("", Words("far too long a word"), "No canvas of 8 tokens.*nearest possible length is 19"),
    ("A", Regex("[a-z]*"), "given tokens contradict"),
    ("xcat", [Words("cat"), Regex("xcat[a-z]+")], "contradict each other"),
    ("", [], "constraint must be"),
    ("", "[a-z]*", "constraint must be"),
]


@pytest.mark.parametrize(("prompt", "constraint", "message"), IMPOSSIBLE)
def test_impossible_constraints_are_refused_before_any_call(mdlm, monkeypatch, prompt, constraint, message):
    without_network(mdlm, monkeypatch)
    for ask in (
        lambda: mdlm.generate(2, prompt=prompt, length=8, constraint=constraint),
        lambda: mdlm.fill(f"{prompt}[MASK:{8 - len(prompt)}]", constraint=constraint, particles=2),
        lambda: list(mdlm.stream(prompt, length=8, constraint=constraint)),
    ):
        with pytest.raises(UnmaskError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_an_impossible_edit_is_refused_before_its_tokens_are_scored(mdlm, monkeypatch):
    without_network(mdlm, monkeypatch)
    with pytest.raises(UnmaskError, match="No canvas of 7 tokens can satisfy"):
        mdlm.edit("abc def", strength=0.5, constraint=Regex("[0-9]{9}"))
    with pytest.raises(AssertionError, match="was called"):
        mdlm.edit("abc def", strength=0.5, constraint=Regex("[0-9]{7}"))


@pytest.fixture(scope="module", params=["padded", "supervised_eos"])
def ending(request, tmp_path_factory):
    """A model with texts that end with EOS."""
    folder = tmp_path_factory.mktemp("ending") / request.param
    return load(make_checkpoint(folder, policy=request.param), device="cpu")


CONTRADICT = "given tokens contradict"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda lm: lm.generate(prompt="a", suffix=" sat.", length=9, constraint=NoWords("sat")), CONTRADICT),
        (lambda lm: lm.generate(prompt="One", suffix=" end.", length=12, constraint=Regex("One")), CONTRADICT),
        (lambda lm: lm.generate(prompt="One", suffix=" end.", length=12, constraint=Characters(3, 8)), CONTRADICT),
        (lambda lm: list(lm.stream("a", suffix=" sat.", length=9, constraint=NoWords("sat"))), CONTRADICT),
        (lambda lm: lm.fill("The[MASK:2] sat.", constraint=Regex("The")), CONTRADICT),
        (lambda lm: lm.edit("a cat sat.", spans=[(2, 5)], constraint=NoWords("sat")), CONTRADICT),
        (lambda lm: lm.rewrite("One day Tim went.", ["Tim"], constraint=NoWords("Tim")), "contradict each other"),
        (lambda lm: lm.fill("a[MASK:1-6]b", constraint=Regex("a")), CONTRADICT),
        (lambda lm: lm.fill("a[MASK:1-6]b", constraint=Characters(9, 9)), "blanks"),
        (lambda lm: lm.generate(prompt="a[MASK:1-6]b", length=9, constraint=Regex("a[0-9]*")), "blanks"),
        (lambda lm: lm.generate(suffix="a[MASK:1-6]b", length=9, constraint=Regex("[0-9]*b")), "blanks"),
        (lambda lm: lm.generate(length=9, constraint=Regex("a{99}")), "up to 48 tokens, the length of this model"),
        (lambda lm: lm.fill("a[MASK:1-6]b", constraint=Regex("[a-z]{99}")), "up to 48 tokens"),
    ],
)
def test_a_text_cannot_end_before_given_text_to_satisfy_a_constraint(ending, monkeypatch, ask, message):
    with pytest.raises(UnmaskError, match=message):
        ask(without_network(ending, monkeypatch))


def test_a_text_may_end_early_to_satisfy_a_constraint(ending):
    assert ending.generate(prompt="One", length=12, steps=2, constraint=Regex("One")) == ["One"]
    assert ending.fill("The[MASK:2]", steps=1, constraint=Regex("The")) == "The"
    done = ending.sample(6, length=LENGTH, steps=4, constraint=Characters(2, 5))
    assert all(2 <= len(one.text) <= 5 for one in done)
    assert {len(one.ids) for one in done} == {LENGTH}


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("a[MASK:1-6]b", "a.{6}b"),
        ("a[MASK:1-6]b[MASK:1-6]", "a..b.{5}"),
        ("a[MASK:1-6]b[MASK:1-5]c[MASK:1-4]d", "a.{5}b.{4}c.{3}d"),
    ],
)
def test_blanks_get_the_length_that_a_constraint_needs(ending, text, pattern):
    assert re.fullmatch(pattern, ending.fill(text, steps=2, constraint=Regex(pattern)))
    (one,) = ending.generate(prompt=text, length=30, steps=2, constraint=Regex(f"{pattern}z"))
    assert re.fullmatch(f"{pattern}z", one)
    *_, last = ending.stream("a", suffix=f"{text}z", length=30, steps=2, constraint=Regex(f"a[q]*{pattern}z"))
    assert re.fullmatch(f"a[q]*{pattern}z", last.text)


def test_blanks_of_prompt_and_suffix_fit_together(ending):
    options = {"length": 15, "steps": 2, "constraint": Regex("ax{5}bzcx{5}d")}
    (one,) = ending.generate(prompt="a[MASK:1-8]b", suffix="c[MASK:1-8]d", **options)
    assert re.fullmatch("ax{5}bzcx{5}d", one)
    texts = ending.fill(["a[MASK:3-6]b", "ab[MASK:1-9]c"], steps=2, constraint=[Characters(5, 5), Regex("[a-z]*")])
    assert [len(text) for text in texts] == [5, 5]
    for seed in range(3):
        (one,) = ending.generate(prompt="a[MASK:2-9]b", suffix="c[MASK:2-9]d", length=8, steps=2, seed=seed)
        assert (one[0], one[-1]) == ("a", "d")


def test_the_end_behind_a_suffix_is_not_constrained(ending):
    eos, options = ending.tokenizer.eos_token_id, {"suffix": "d", "length": 9, "steps": 3}
    for prompt, particles in [("a", 1), ("a", 3), ("a[MASK:1-2]b", 1)]:
        for constraint in (Allowed([*b"abcd"]), [Banned(eos), Regex("[abcd]*")]):
            (one,) = ending.sample(prompt=prompt, **options, constraint=constraint, particles=particles)
            assert len(one.ids) == 9
            assert set(one.ids) <= {*b"abcd"}
    *_, last = ending.stream("a", **options, constraint=Allowed([*b"abcd"]))
    assert set(last.ids) <= {*b"abcd"}
    for constraint in (Words([eos]), Fixed({9: eos})):
        with pytest.raises(UnmaskError, match=r"canvas (of|has) 9 tokens"):
            ending.generate(prompt="a", **options, constraint=constraint)


@pytest.mark.parametrize("texts", [["ab[MASK:3]"], ["ab[MASK:3]", "a[MASK:1]", "c[MASK:2-4]d"]])
def test_the_end_behind_blanks_is_not_constrained(ending, texts):
    for constraint in (Allowed([*b"abcd"]), [Banned(ending.tokenizer.eos_token_id), Regex("[abcd]*")]):
        for particles in (1, 3):
            assert all(
                set(one) <= set("abcd") for one in ending.fill(texts, constraint=constraint, particles=particles)
            )
        assert set(ending.edit("abcd", spans=[(1, 2)], constraint=constraint)) <= set("abcd")
        assert set(ending.edit("abcd", strength=0.5, constraint=constraint)) <= set("abcd")
        assert "bc" in ending.rewrite("abcd", keep=["bc"], constraint=constraint)
