"""Constraints through the front door: every finished text matches, and what cannot match never asks the network."""

from __future__ import annotations

import re

import pytest

from tests.conftest import make_checkpoint
from unmask import infilling
from unmask.constraints import Allowed, Banned, Characters, Constraint, Fixed, NoWords, Regex, Words
from unmask.errors import UnmaskError
from unmask.infilling import TemplateLayout, combinations
from unmask.pipeline import load

LENGTH = 20
CASES = [
    (Regex("[a-z]+( [a-z]+)*"), lambda text: re.fullmatch("[a-z]+( [a-z]+)*", text)),
    (Regex(r"(.|\n)*(é|☃)[0-9]+"), lambda text: re.fullmatch(r"(.|\n)*(é|☃)[0-9]+", text)),
    (Words("cat", "é"), lambda text: re.search(r"\bcat\b", text) and re.search(r"\bé\b", text)),
    (Words("cat", "é", whole=False), lambda text: "cat" in text and "é" in text),
    (NoWords("a", "é", "\n", whole=False), lambda text: not set(text) & set("aé\n")),
    (Characters(11, 13), lambda text: 11 <= len(text) <= 13),
    (Allowed(["x", "y", "f"]), lambda text: set(text) <= set("xyf")),
    (Allowed(["x", "y"], range(2, 20)), lambda text: set(text[2:]) <= set("xy")),
    (Banned([token for token in range(257) if token not in {*b"fzq"}]), lambda text: set(text) <= set("fzq")),
    ([Regex("[a-f]+z[a-f]+"), Words("fa", whole=False), Fixed({9: "z"})], lambda text: text[9] == "z" and "fa" in text),
]


@pytest.mark.parametrize("steps", [3, None])
@pytest.mark.parametrize(("constraint", "holds"), CASES, ids=[str(case[0])[:40] for case in CASES])
def test_every_text_matches(mdlm, constraint, holds, steps):
    for prompt in ("", "f"):
        done = mdlm.sample(3, prompt=prompt, length=LENGTH, steps=steps, constraint=constraint, batch_size=2)
        for one in done:
            assert holds(one.text), one.text
            assert one.text.startswith(prompt)
            assert len(one.ids) == LENGTH
            assert mdlm.text_processor.mask_token_id not in one.ids
            assert one.calls == max(one.order) + 1


def test_fixed_tokens_stand_where_they_should(mdlm):
    one = mdlm.sample(1, length=LENGTH, steps=4, constraint=Fixed({3: "z", 19: 7}))[0]
    assert (one.ids[3], one.ids[19]) == (ord("z"), 7)


def test_a_sequence_does_not_depend_on_its_neighbours(mdlm):
    for particles in (1, 3):
        options = {"length": 12, "steps": 5, "constraint": Words("cat"), "particles": particles}
        together = mdlm.sample(3, seed=10, **options)
        for i, one in enumerate(together):
            alone = mdlm.sample(1, seed=10 + i, **options)[0]
            assert (alone.ids, alone.order, alone.calls) == (one.ids, one.order, one.calls)


@pytest.mark.parametrize("particles", [1, 4])
def test_ragged_lines_are_filled_under_a_constraint(mdlm, particles):
    lines = ["ab[MASK:3]", "a much [MASK:6] longer [MASK]", "[MASK:2]"]
    options = {"constraint": [Regex("[a-z ]+"), Words("q")], "particles": particles}
    filled = mdlm.fill(lines, seed=5, **options)
    for i, (line, text) in enumerate(zip(lines, filled, strict=True)):
        assert re.fullmatch(re.sub(r"\[MASK(:\d)?\]", "[a-z ]+", line), text)
        assert re.search(r"\bq\b", text)
        assert text == mdlm.fill(line, seed=5 + i, **options)


def test_the_text_ends_at_eos_where_the_policy_says_so(tmp_path):
    lm = load(make_checkpoint(tmp_path / "padded", policy="padded"), device="cpu")
    done = lm.sample(6, length=LENGTH, steps=4, constraint=Characters(2, 5))
    assert all(2 <= len(one.text) <= 5 for one in done)
    assert {len(one.ids) for one in done} == {LENGTH}
    assert lm.fill("a[MASK:2]", constraint=Regex("a[0-9]+"))[1:].isdigit()


@pytest.mark.parametrize("particles", [1, 3])
def test_a_stream_ends_with_the_generated_text(mdlm, particles):
    options = {"length": 12, "steps": 6, "seed": 2, "constraint": Regex("[a-z]+"), "particles": particles}
    frames = list(mdlm.stream("ab", **options))
    assert frames[-1].text == mdlm.generate(1, prompt="ab", **options)[0]
    assert [frame.call for frame in frames] == list(range(frames[-1].calls + 1))
    assert re.fullmatch("[a-z]{12}", frames[-1].text)


def test_greedy_and_truncated_texts_match_too(mdlm):
    for options in ({"greedy": True}, {"top_k": 1}, {"top_p": 0.01}, {"temperature": 0.1}):
        assert mdlm.fill("ab[MASK:6]cd", constraint=Regex("[a-z]+"), **options).isalpha()
    twice = [mdlm.fill("ab[MASK:6]cd", constraint=Regex("[a-z]+"), greedy=True, seed=seed) for seed in (1, 2)]
    assert twice[0] == twice[1]


IMPOSSIBLE: list[tuple[str, Constraint | list[Constraint], str]] = [
    ("", Regex("abc"), "No canvas of 8 tokens"),
    ("", Characters(9, 12), "No canvas of 8 tokens"),
    ("", Words("far too long a word"), "No canvas of 8 tokens.*nearest length that can is 19"),
    ("A", Regex("[a-z]*"), "given tokens contradict"),
    ("", [Words("cat"), NoWords("a", whole=False)], "cannot hold together"),
    ("xcat", [Words("cat"), Regex("xcat[a-z]+")], "cannot hold together"),
    ("a", [Words("cat"), Fixed({2: "z"}), Characters(3, 3)], "No canvas|cannot hold together"),
    ("", Fixed({8: "a"}), "position 8"),
    ("", Banned(range(257)), "leaves no token that could stand at position 0"),
    ("", Banned(list(range(257)), [0]), "leaves no token that could stand at position 0"),
    ("", Allowed([]), "leaves no token that could stand at position 0"),
    ("", [], "no constraint"),
    ("", "[a-z]*", "no constraint"),
]


def never_asked(lm, monkeypatch):
    """The same model, whose network may not be asked."""

    def called(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(lm.denoiser, "_run", called)
    return lm


@pytest.mark.parametrize(("prompt", "constraint", "words"), IMPOSSIBLE)
def test_what_cannot_match_is_an_error_before_any_call(mdlm, monkeypatch, prompt, constraint, words):
    never_asked(mdlm, monkeypatch)
    for ask in (
        lambda: mdlm.generate(2, prompt=prompt, length=8, constraint=constraint),
        lambda: mdlm.fill(f"{prompt}[MASK:{8 - len(prompt)}]", constraint=constraint, particles=2),
        lambda: list(mdlm.stream(prompt, length=8, constraint=constraint)),
    ):
        with pytest.raises(UnmaskError, match=words) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_an_edit_that_no_text_could_be_is_an_error_before_its_tokens_are_judged(mdlm, monkeypatch):
    never_asked(mdlm, monkeypatch)
    with pytest.raises(UnmaskError, match="No canvas of 7 tokens can satisfy"):
        mdlm.edit("abc def", strength=0.5, constraint=Regex("[0-9]{9}"))
    with pytest.raises(AssertionError, match="was asked"):
        mdlm.edit("abc def", strength=0.5, constraint=Regex("[0-9]{7}"))


@pytest.fixture(scope="module", params=["padded", "supervised_eos"])
def ending(request, tmp_path_factory):
    """A model whose texts end with EOS."""
    folder = tmp_path_factory.mktemp("ending") / request.param
    return load(make_checkpoint(folder, policy=request.param), device="cpu")


CONTRADICT = "given tokens contradict"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda lm: lm.generate(prompt="a", suffix=" sat.", length=9, constraint=NoWords("sat")), CONTRADICT),
        (lambda lm: lm.generate(prompt="One", suffix=" end.", length=12, constraint=Regex("One")), CONTRADICT),
        (lambda lm: lm.generate(prompt="One", suffix=" end.", length=12, constraint=Characters(3, 8)), CONTRADICT),
        (lambda lm: list(lm.stream("a", suffix=" sat.", length=9, constraint=NoWords("sat"))), CONTRADICT),
        (lambda lm: lm.fill("The[MASK:2] sat.", constraint=Regex("The")), CONTRADICT),
        (lambda lm: lm.edit("a cat sat.", spans=[(2, 5)], constraint=NoWords("sat")), CONTRADICT),
        (
            lambda lm: lm.rewrite("One day Tim went.", ["Tim"], constraint=NoWords("Tim")),
            r"NoWords\(.*\) and kept words that stay words cannot hold together",
        ),
        (lambda lm: lm.fill("a[MASK:1-6]b", constraint=Regex("a")), f"No length of the blanks satisfies.*{CONTRADICT}"),
        (lambda lm: lm.fill("a[MASK:1-6]b", constraint=Characters(9, 9)), "No length of the blanks satisfies"),
        (
            lambda lm: lm.generate(prompt="a[MASK:1-6]b", length=9, constraint=Regex("a[0-9]*")),
            "No length of the blanks",
        ),
        (
            lambda lm: lm.generate(suffix="a[MASK:1-6]b", length=9, constraint=Regex("[0-9]*b")),
            "No length of the blanks",
        ),
        (lambda lm: lm.generate(length=9, constraint=Regex("a{99}")), "up to 48 tokens, all that this model sees"),
        (
            lambda lm: lm.fill("a[MASK:1-6]b", constraint=Regex("[a-z]{99}")),
            "up to 48 tokens, all that this model sees",
        ),
    ],
)
def test_no_text_ends_before_what_is_given_to_please_a_constraint(ending, monkeypatch, ask, words):
    with pytest.raises(UnmaskError, match=words):
        ask(never_asked(ending, monkeypatch))


def test_a_constraint_may_end_a_text_behind_what_is_given(ending):
    assert ending.generate(prompt="One", length=12, steps=2, constraint=Regex("One")) == ["One"]
    assert ending.fill("The[MASK:2]", steps=1, constraint=Regex("The")) == "The"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("a[MASK:1-6]b", "a.{6}b"),
        ("a[MASK:1-6]b[MASK:1-6]", "a..b.{5}"),
        ("a[MASK:1-9]b[MASK:1-9]c", "a.{7}b.{8}c"),
        ("a[MASK:1-6]b[MASK:1-5]c[MASK:1-4]d", "a.{5}b.{4}c.{3}d"),
    ],
)
def test_open_blanks_are_as_long_as_a_constraint_needs(ending, text, pattern):
    assert re.fullmatch(pattern, ending.fill(text, steps=2, constraint=Regex(pattern)))
    (one,) = ending.generate(prompt=text, length=30, steps=2, constraint=Regex(f"{pattern}z"))
    assert re.fullmatch(f"{pattern}z", one)
    *_, last = ending.stream("a", suffix=f"{text}z", length=30, steps=2, constraint=Regex(f"a[q]*{pattern}z"))
    assert re.fullmatch(f"a[q]*{pattern}z", last.text)


def test_open_blanks_are_no_longer_than_a_length_in_characters_allows(ending):
    texts = ending.fill(["a[MASK:3-6]b", "ab[MASK:1-9]c"], steps=2, constraint=[Characters(5, 5), Regex("[a-z]*")])
    assert [len(text) for text in texts] == [5, 5]


def test_blanks_of_a_prompt_and_of_a_suffix_are_as_long_as_a_constraint_needs_together(ending):
    options = {"length": 15, "steps": 2, "constraint": Regex("ax{5}bzcx{5}d")}
    (one,) = ending.generate(prompt="a[MASK:1-8]b", suffix="c[MASK:1-8]d", **options)
    assert re.fullmatch("ax{5}bzcx{5}d", one)


def test_what_stands_behind_a_suffix_is_none_of_a_constraint(ending):
    """The network is shown the end of the text there; `length` is what was asked for."""
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
def test_the_end_of_a_text_with_blanks_is_none_of_a_constraint(ending, texts):
    for constraint in (Allowed([*b"abcd"]), [Banned(ending.tokenizer.eos_token_id), Regex("[abcd]*")]):
        for particles in (1, 3):
            for one in ending.fill(texts, constraint=constraint, particles=particles):
                assert set(one) <= set("abcd")
        assert set(ending.edit("abcd", spans=[(1, 2)], constraint=constraint)) <= set("abcd")
        assert set(ending.edit("abcd", strength=0.5, constraint=constraint)) <= set("abcd")
        assert "bc" in ending.rewrite("abcd", keep=["bc"], constraint=constraint)


def test_the_lengths_of_a_suffix_are_enumerated_for_a_constraint_only(ending, monkeypatch):
    enumerated, processor = [], ending.text_processor
    monkeypatch.setattr(
        infilling, "combinations", lambda template, room: enumerated.append(template) or combinations(template, room)
    )
    layout = TemplateLayout(processor, ending.denoiser, ending.device, None)
    suffix = processor.parse("c[MASK:3-4]d[MASK:3-4]")
    for prompt in ("a", "a[MASK:2-9]b"):
        (row,) = layout.prompt_rows([processor.parse(prompt)], suffix, 30)
        assert row.count(processor.mask_token_id) > 6
    assert enumerated == [suffix, processor.parse("a[MASK:2-9]b"), suffix], "once for each choice"


def test_open_blanks_leave_room_for_what_stands_beside_them(ending):
    for seed in range(3):
        (one,) = ending.generate(prompt="a[MASK:2-9]b", suffix="c[MASK:2-9]d", length=8, steps=2, seed=seed)
        assert (one[0], one[-1]) == ("a", "d")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"particles": 0}, "particles must be"),
        ({"particles": 2}, "give a constraint"),
        ({"particles": 2, "constraint": Words("a"), "temperature": 0.0}, "temperature 0"),
    ],
)
def test_particles_that_make_no_sense_are_refused(mdlm, options, words):
    with pytest.raises(UnmaskError, match=words):
        mdlm.generate(1, length=8, **options)


def test_an_autoregressive_model_cannot_be_constrained(ar):
    with pytest.raises(UnmaskError, match="autoregressive"):
        ar.generate(1, length=8, constraint=Regex("[a-z]*"))
