"""Tokens as bytes: tokens that end inside a character, word pieces, and EOS."""

from __future__ import annotations

import itertools
import re

import pytest
from tokenizers import decoders

from tests.constraints.enumeration import accepts, has_whole_word
from unmask.constraints import Characters, NoWords, Regex, Vocabulary, Words, compile_constraints
from unmask.errors import UnmaskError
from unmask.text_processor import decode_canvas


def tokenisations(text: bytes, tokens: dict[bytes, int]):
    """Every sequence of tokens that reads as a text."""
    if not text:
        yield []
    for size in range(1, len(text) + 1):
        if text[:size] in tokens:
            for rest in tokenisations(text[size:], tokens):
                yield [tokens[text[:size]], *rest]


def test_every_tokenisation_of_a_text_is_judged_alike(bpe):
    tokens = {piece: token for token, piece in enumerate(bpe.token_bytes[1]) if piece is not None}
    assert any(piece.endswith((b"n\xc3", b"\xe2\x98")) for piece in tokens)
    automaton = compile_constraints([Regex(".*(né|☃).*"), Characters(1, 7)], bpe, [])
    for text, good in (("né", True), (" né ☃☃", True), ("the né", True), ("the☃☃ né", False), ("the cat", False)):
        ways = list(tokenisations(text.encode(), tokens))
        assert len(ways) > 2
        assert {accepts(automaton, way) for way in ways} == {good}


def test_word_pieces_are_read_with_their_spaces(wordpiece):
    checks = {
        Regex("cats dog( [.]|s).*"): lambda text: re.fullmatch("cats dog( [.]|s).*", text),
        Regex("cat.*\ncat.*"): lambda text: re.fullmatch("cat.*\ncat.*", text),
        Words("ts d", whole=False): lambda text: "ts d" in text,
        Words("cat", "a"): lambda text: has_whole_word("cat", text) and has_whole_word("a", text),
        NoWords("cat"): lambda text: not has_whole_word("cat", text),
        Characters(8, 9): lambda text: 8 <= len(text) <= 9,
    }
    for constraint, holds in checks.items():
        automaton, found = constraint.automaton(wordpiece), 0
        for ids in itertools.product(range(2, 9), repeat=4):
            text = decode_canvas(wordpiece.tokenizer, list(ids), wordpiece.mask)
            assert accepts(automaton, list(ids)) == bool(holds(text)), (ids, text)
            found += bool(holds(text))
        assert found


def test_eos_is_a_new_line_or_the_end_of_the_text(single):
    eos = single.eos
    ends = Vocabulary(single.tokenizer, single.size, single.mask, ends_with_eos=True)
    row = [*b"ab", eos, *b"cd"]
    assert accepts(Regex("ab\ncd").automaton(single), row)
    assert not accepts(Regex("ab").automaton(single), row)
    assert accepts(Regex("ab").automaton(ends), row)
    assert not accepts(Regex("abcd|ab\ncd").automaton(ends), row)
    assert accepts(Regex("ab").automaton(ends), b"ab")
    assert not accepts(Words("cd").automaton(ends), row)


def test_the_longest_token_is_counted_in_characters(bpe):
    words = set(range(bpe.size)) - set(bpe.tokenizer.all_special_ids)
    longest = max(words, key=lambda token: len(bpe.tokenizer.decode(token)))
    size = len(bpe.tokenizer.decode(longest))
    assert bpe.longest == size > 3
    for high, good in ((2 * size - 1, False), (2 * size, True)):
        automaton = compile_constraints([Characters(0, high)], bpe, [[bpe.mask] * 2])
        assert accepts(automaton, [longest] * 2) == good


def test_a_character_of_several_bytes_counts_once():
    vocabulary = Vocabulary(None, 2, 1)
    vocabulary.__dict__["token_bytes"] = ([b"ab", "é☃é".encode()],) * 2
    assert vocabulary.longest == 3


def test_a_tokenizer_with_tokens_that_do_not_join_is_refused(wordpiece):
    wordpiece.tokenizer.backend_tokenizer.decoder = decoders.CTC()
    with pytest.raises(UnmaskError, match="read differently"):
        Regex("a").automaton(wordpiece)
