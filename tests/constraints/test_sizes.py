"""How large a constraint may be: what costs nothing, and what is refused before it is made."""

from __future__ import annotations

import time

import pytest

from tests.constraints.test_members import accepts, byte_level, texts
from unmask import registry
from unmask.constraints import Characters, Fixed, Regex, Vocabulary, compile_constraints
from unmask.constraints import automaton as automata
from unmask.constraints import regex as patterns
from unmask.errors import UnmaskError


@pytest.fixture(scope="module")
def single() -> Vocabulary:
    tokenizer = registry.build("tokenizer", "byte").build(lambda: iter(()))
    return Vocabulary(tokenizer, len(tokenizer), tokenizer.mask_token_id)


@pytest.fixture(scope="module")
def bpe() -> Vocabulary:
    return byte_level(280)


@pytest.mark.parametrize("high", [4, 5, 10**6, 10**12])
def test_a_length_that_a_canvas_cannot_exceed_costs_nothing(single, high):
    automaton = compile_constraints([Characters(2, high)], single, [[single.mask] * 3, [single.mask] * 4])
    assert automaton.states < 40
    for text in texts(4):
        if len(text.encode()) <= 4:
            assert accepts(automaton, text.encode()) == (len(text) >= 2)


def test_a_length_just_below_what_a_canvas_holds_is_kept(bpe):
    words = set(range(bpe.size)) - set(bpe.tokenizer.all_special_ids)
    longest = max(words, key=lambda token: len(bpe.tokenizer.decode(token)))
    size = len(bpe.tokenizer.decode(longest))
    assert bpe.longest == size > 3
    for high, good in ((2 * size - 1, False), (2 * size, True)):
        assert accepts(compile_constraints([Characters(0, high)], bpe, [[bpe.mask] * 2]), [longest] * 2) == good


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Characters(10**8, 10**8), "at most 1 characters; ask for at most 1024 characters in 1024 tokens"),
        (Characters(0, 10**8), None),
        (Characters(10**12, 10**12), "at most 1 characters"),
        (Regex("(.{0,1000}a){5}.*"), "too many states .* repeat"),
        (Regex(".*a.{30}"), "too many states"),
        (Regex("|".join(f"w{i}x" for i in range(2000))), r"w0x.*\.\.\. needs too many states"),
        (Fixed({10**10: 3}), "too many"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_made(single, constraint, words):
    begun = time.process_time()
    if words is None:
        compile_constraints([constraint], single, [[single.mask] * 8])
    else:
        with pytest.raises(UnmaskError, match=words) as caught:
            compile_constraints([constraint], single, [[single.mask] * 8])
        assert len(str(caught.value)) < 400
    assert time.process_time() - begun < 10


def test_an_expression_whose_reverse_is_large_is_read_forwards(single):
    automaton = Regex(".{20}a.*").automaton(single)
    assert accepts(automaton, b"." * 20 + b"a..")
    assert not accepts(automaton, b"." * 20 + b"b..")


def test_interegular_is_left_as_it_was(single):
    from interegular import fsm

    before = fsm.crawl
    Regex("a+").automaton(single)
    with pytest.raises(UnmaskError, match="too many states"):
        Regex(".*a.{30}").automaton(single)
    assert fsm.crawl is before


def test_an_expression_names_a_bounded_number_of_letters(single, monkeypatch):
    monkeypatch.setattr(patterns, "MAX_CHARACTERS", 20)
    with pytest.raises(UnmaskError, match=r"names 27 letters, too many .* excludes"):
        Regex("[a-z]").automaton(single)


def test_a_constraint_too_large_is_refused(single, monkeypatch):
    monkeypatch.setattr(automata, "MAX_TRANSITIONS", 1000)
    with pytest.raises(UnmaskError, match="too many"):
        Characters(0, 500).automaton(single)
