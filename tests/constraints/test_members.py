"""Constraints: what each accepts, and the errors for those that no canvas can satisfy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.constraints.enumeration import accepts, has_whole_word, texts
from unmask.constraints import (
    Allowed,
    Banned,
    Characters,
    Count,
    Fixed,
    NoWords,
    Regex,
    Vocabulary,
    Words,
    compile_constraints,
)
from unmask.constraints.members import can_accept, masks_before_text
from unmask.errors import UnmaskError


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        (Characters(2, 3), lambda text: 2 <= len(text) <= 3),
        (Characters(0, 0), lambda text: text == ""),
        (Characters(2, None), lambda text: len(text) >= 2),
        (Count("aé", 2, 3), lambda text: 2 <= sum(letter in "aé" for letter in text) <= 3),
        (Count("☃", 0, 0), lambda text: "☃" not in text),
        (Count("a", 2), lambda text: text.count("a") >= 2),
        (Words("aéa", whole=False), lambda text: "aéa" in text),
        (Words("aa", "é", whole=False), lambda text: "aa" in text and "é" in text),
        (NoWords("é☃", "aa", whole=False), lambda text: "é☃" not in text and "aa" not in text),
        (Words("aaéaa", whole=False), lambda text: "aaéaa" in text),
    ],
)
def test_lengths_and_parts_of_words_are_those_of_the_text(single, constraint, holds):
    automaton = constraint.automaton(single)
    for text in [*texts(4), "aaaéaa", "aaéaéaa", "aaéaaéaa"]:
        assert accepts(automaton, text.encode()) == holds(text), text


@pytest.mark.parametrize("word", ["a", "é", "ab", "aba", "a☃a", "☃", "☃a", "a☃", "☃☃", "a a"])
def test_whole_words_have_no_letter_or_digit_next_to_them(single, word):
    present, absent = Words(word).automaton(single), NoWords(word).automaton(single)
    some = [*texts(4, "aéb☃ "), "aba☃aba", "ababa", "aba ba"]
    assert any(has_whole_word(word, text) for text in some)
    for text in some:
        assert accepts(present, text.encode()) == has_whole_word(word, text), text
        assert accepts(absent, text.encode()) == (not has_whole_word(word, text)), text


def test_only_letters_and_digits_of_any_script_continue_a_word(single):
    present, absent = Words("cat").automaton(single), NoWords("cat").automaton(single)
    part = Words("cat", whole=False).automaton(single)
    letters = [*"aZ0éßþñłяλשع猫の가ﬁ٣x", "\U00020000"]
    signs = [*" .,;!?'\"()[]-_/\n×÷«»¿£“”‘’–—…•€→☃\ue000", "\U0001f600"]
    for character in letters + signs:
        for text in (f"cat{character}", f"{character}cat", f"a {character}cat{character} b"):
            assert accepts(present, text.encode()) == (character in signs), text
            assert accepts(absent, text.encode()) == (character in letters), text
            assert accepts(part, text.encode()), text
            assert accepts(present, f"{text} cat".encode()), text


def test_tokens_by_position(single):
    for ids in ([0, 120, 0, 5], [0, 120, 0, 6], [120, 0, 0, 5]):
        assert accepts(Fixed({1: "x", 3: 5}).automaton(single), ids) == (ids[1] == 120 and ids[3] == 5)
    for ids in itertools.product([97, 7, 9], repeat=3):
        assert accepts(Allowed(["a", 7], [0, 2]).automaton(single), list(ids)) == ({ids[0], ids[2]} <= {97, 7})
    for constraint, good, bad in ((Banned(["q"]), b"abc", b"abq"), (Allowed(["a"]), b"aaa", b"aab")):
        assert accepts(constraint.automaton(single), good)
        assert not accepts(constraint.automaton(single), bad)


def test_a_string_is_one_token(bpe):
    (the,) = bpe.tokens([" the"])
    assert accepts(Allowed(" the").automaton(bpe), [the, the])
    assert not accepts(Allowed(" the").automaton(bpe), [*b"the"])
    assert not accepts(Banned(" the").automaton(bpe), [the])
    assert accepts(Banned(" the").automaton(bpe), [*b"the"])
    for one in (the, {the}, np.array([the])):
        assert accepts(Allowed(one).automaton(bpe), [the])


def test_sequences_of_ids_need_no_tokenizer():
    vocabulary = Vocabulary(None, 4, 1)
    present, absent = Words([2, 2, 3]).automaton(vocabulary), NoWords([2, 2, 3], [0]).automaton(vocabulary)
    for ids in itertools.product([0, 2, 3], repeat=5):
        found = any(ids[i : i + 3] == (2, 2, 3) for i in range(3))
        assert accepts(present, list(ids)) == found
        assert accepts(absent, list(ids)) == (not found and 0 not in ids)


@pytest.mark.parametrize("high", [4, 5, 10**6, 10**12])
def test_a_length_that_no_canvas_exceeds_costs_nothing(single, high):
    automaton = compile_constraints([Characters(2, high)], single, [[single.mask] * 3, [single.mask] * 4])
    assert automaton.states < 40
    for text in texts(4):
        if len(text.encode()) <= 4:
            assert accepts(automaton, text.encode()) == (len(text) >= 2)


@pytest.mark.parametrize(
    "constraint", [Words([0, 1]), NoWords([1, 2]), Fixed({1: 2}), Allowed([0, 2], [0, 2]), Banned([0]), Words([2, 2])]
)
def test_a_row_is_accepted_if_some_way_to_write_its_masks_is(constraint):
    """For all rows of four tokens, where 2 ends a text, 3 is the mask, and masks before text do not become 2."""
    automaton = constraint.automaton(Vocabulary(None, 4, 3))
    for row in itertools.product(range(4), repeat=4):
        inside = [token == 3 and any(one in (0, 1) for one in row[i:]) for i, token in enumerate(row)]
        assert masks_before_text(row, 3, 2).tolist() == inside
        written = [(0, 1) if inner else (0, 1, 2) for inner in inside]
        options = [(token,) if token != 3 else some for token, some in zip(row, written, strict=True)]
        assert can_accept(automaton, row, 3, 2) == any(can_accept(automaton, z, 3) for z in itertools.product(*options))


BLANK = [257] * 5


@pytest.mark.parametrize(
    ("constraints", "row", "limit", "message"),
    [
        ([Regex("abc")], BLANK, 1024, r"No canvas of 5 tokens can satisfy Regex.*nearest possible length is 3"),
        ([Regex(r"[^\w\W]")], BLANK, 1024, "no length up to 1024 tokens, the length of this model, is possible"),
        ([Regex("a{9}")], BLANK, 8, "no length up to 8 tokens, the length of this model, is possible, so relax"),
        ([Regex("a{9}")], BLANK, 9, "nearest possible length is 9, so ask for that"),
        ([Regex("a?")], BLANK, 9, "nearest possible length is 1, so ask for that"),
        ([Regex("a{1100}")], BLANK, 2000, "no length up to 1024 tokens is possible"),
        ([Characters(6, 9)], BLANK, 1024, "at most 1 characters; ask for 6 tokens or for fewer characters"),
        ([Characters(9, 9)], BLANK, 8, "ask for at most 8 characters in 8 tokens, the length of this model"),
        ([Characters(10**12, 10**12)], BLANK, 1024, "at most 1 characters; ask for at most 1024 characters"),
        ([Regex("[a-z]*")], [*b"aB", 257], 1024, "given tokens contradict Regex"),
        ([Words("ab"), NoWords("b", whole=False)], BLANK, 1024, "Words.* and NoWords.* contradict each other"),
        ([Fixed({7: "a"})], BLANK, 1024, "names position 7, but the canvas has 5 tokens; lengthen the canvas"),
        ([Fixed({8: "a"})], BLANK, 8, "name one below 8, the length of this model"),
        ([Fixed({10**10: 3})], BLANK, 1024, "too many"),
        ([Banned(range(257))], BLANK, 1024, "Banned.* leaves no token for position 0"),
        ([Banned(range(257), [2, 4])], BLANK, 1024, "leaves no token for position 2"),
        ([Allowed([])], BLANK, 1024, "Allowed.* leaves no token for position 0"),
        ([Allowed([], [4])], BLANK, 1024, "leaves no token for position 4"),
        ([Banned(range(9, 257)), Banned(range(9))], BLANK, 1024, "contradict each other"),
        ([Banned(range(9, 257), [1]), Banned(range(9), [1])], BLANK, 1024, "contradict each other"),
        ([Words("a"), Banned(range(257), [1])], BLANK, 1024, "leaves no token for position 1"),
        ([Banned(list(range(257)))], [257], 1024, r"Banned\(tokens=\[0, 1, 2, .*\.\.\. leaves no token"),
    ],
)
def test_constraints_that_no_canvas_satisfies_are_explained(single, constraints, row, limit, message):
    with pytest.raises(UnmaskError, match=message) as caught:
        compile_constraints(constraints, single, [row], limit)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: Words(5), "Words needs at least one word"),
        (lambda v: Words(), "Words needs at least one word"),
        (lambda v: NoWords(""), "no empty ones"),
        (lambda v: Characters("a", 5), "integers 0 <= low <= high, got low=a"),
        (lambda v: Characters(5, 4), "got low=5 and high=4"),
        (lambda v: Regex(5), "pattern must be a string, got 5"),
        (lambda v: Fixed([5]), "needs a mapping {position: token}"),
        (lambda v: Fixed({"a": 5}).automaton(v), "positions must be integers of at least 0"),
        (lambda v: Fixed({-1: 3}).automaton(v), r"at least 0, got \[-1\]"),
        (lambda v: Fixed({0: 257}).automaton(v), "not the mask 257, got 257"),
        (lambda v: Allowed([2.5]).automaton(v), "got 2.5"),
        (lambda v: Allowed(["ab"]).automaton(v), "'ab' is 2 tokens"),
        (lambda v: Allowed("ab").automaton(v), "'ab' is 2 tokens"),
        (lambda v: Allowed([0], 0).automaton(v), "positions must be a list"),
        (lambda v: Banned(None).automaton(v), "got None"),
        (lambda v: Banned([300]).automaton(v), "must be below 258 .* got 300"),
    ],
)
def test_bad_options_are_refused(single, make, message):
    with pytest.raises(UnmaskError, match=message) as caught:
        make(single)
    assert "\n" not in str(caught.value)
