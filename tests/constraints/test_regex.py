"""Regular expressions: what they accept, what is not supported, and limits on their size."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
import time

import pytest

from tests.constraints.enumeration import accepts, texts
from unmask.constraints import Regex, Vocabulary, regex
from unmask.errors import UnmaskError


@pytest.mark.parametrize(
    "pattern",
    ["a*", "a|é☃", "é+a?", "[^é]{2,3}", ".{2}", "(a.)*", "[a-z]+☃", "(?i)É|A", "(.|\n)*☃", "", "a{0}", "é(a|☃)*é"],
)
def test_a_text_is_accepted_if_python_matches_it(single, pattern):
    automaton = Regex(pattern).automaton(single)
    for text in texts(4):
        assert accepts(automaton, text.encode()) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[a", r"'\[a' cannot be used: unterminated character set at position 0"),
        ("ab(c", r"missing \).* at position 2"),
        ("a{3,2}", "min repeat greater than max repeat"),
        ("a{9999999999999}", "repetition number is too large"),
        (r"(a)\1", "the back-reference .* at position 3 is not supported"),
        ("^a$", r"the anchor '\^' at position 0 is not supported.*without anchors"),
        (r"[$^]\$a\b", "the word boundary .* at position 7"),
        ("(?<=a)b", "the look-around .* at position 0"),
        ("(?=ab)[ab]*", "the look-around .* at position 0"),
        ("a(?!b)[ab]*", "the look-around .* at position 1"),
        ("a(?i:b)(?m:c)", "the flag .* at position 7"),
        ("a++", "possessive|multiple repeat"),
        ("[]a]", "set that begins with its end"),
        ("a{b}", "the brace '{' at position 1"),
        ("(.{0,1000}a){5}.*", "too many states; use fewer repetitions"),
        (".*a.{30}", "too many states"),
        ("|".join(f"w{i}x" for i in range(2000)), r"w0x.*\.\.\. needs too many states"),
        ("a?" * 8000, "too many states"),
        ("a" * 20_000, "has 20000 characters, the maximum is 16384; shorten it"),
    ],
)
def test_unsupported_and_large_expressions_are_refused_quickly(single, pattern, message):
    begin = time.process_time()
    with pytest.raises(UnmaskError, match=message) as caught:
        Regex(pattern).automaton(single)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.process_time() - begin < 10


def test_automata_do_not_depend_on_the_hash_seed():
    program = """
from unmask.constraints.regex import regex_dfa
for pattern in ("(one|two|three|four)( [a-z]+){1,3}[.!?]", ".{20}a.*", "[^a-q]+|Tim.*"):
    dfa = regex_dfa(pattern)
    print(list(dfa.classes.items()), dfa.transitions.tolist(), dfa.accepting.tolist())
"""
    outputs = {
        subprocess.check_output([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in "123"
    }
    assert len(outputs) == 1


def test_an_expression_with_a_large_reverse_is_built_forwards(single):
    automaton = Regex(".{20}a.*").automaton(single)
    assert accepts(automaton, b"." * 20 + b"a..")
    assert not accepts(automaton, b"." * 20 + b"b..")


def test_the_number_of_named_characters_is_limited(single, monkeypatch):
    monkeypatch.setattr(regex, "MAX_CHARACTERS", 20)
    with pytest.raises(UnmaskError, match=r"names 27 characters, which is too many; exclude"):
        Regex("[a-z]").automaton(single)


def test_the_missing_package_is_named(single, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("interegular"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnmaskError, match=r"pip install 'unmask\[regex\]'"):
        Regex("a").automaton(single)


def test_text_needs_a_tokenizer():
    with pytest.raises(UnmaskError, match="no tokenizer"):
        Regex("a").automaton(Vocabulary(None, 4, 1))
