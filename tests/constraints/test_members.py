"""Constraints as automata: what they accept, for tokenizers that cut letters into bytes and words into pieces."""

from __future__ import annotations

import builtins
import itertools
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from unmask import registry
from unmask.constraints import (
    Allowed,
    Automaton,
    Banned,
    Characters,
    Constraint,
    Fixed,
    NoWords,
    Regex,
    Vocabulary,
    Words,
    compile_constraints,
)
from unmask.constraints.automaton import minimise
from unmask.constraints.members import can_accept, masks_before_text
from unmask.data.sources import Document
from unmask.data.tokenizers import with_special_tokens
from unmask.errors import UnmaskError
from unmask.text_processor import decode_canvas

TEXT = "né né ☃☃ the cat and the dog ☃ and a thé " * 30
LETTERS = "aé☃"


def byte_level(size: int) -> Vocabulary:
    component = registry.build("tokenizer", {"name": "bpe", "vocab_size": size})
    tokenizer = component.build(lambda: iter([Document("", TEXT)]))
    return Vocabulary(tokenizer, len(tokenizer), tokenizer.mask_token_id)


@pytest.fixture(scope="module")
def bpe() -> Vocabulary:
    """Bytes, the two halves of é, two thirds of a snowman, and some words."""
    return byte_level(280)


@pytest.fixture(scope="module")
def single() -> Vocabulary:
    tokenizer = registry.build("tokenizer", "byte").build(lambda: iter(()))
    return Vocabulary(tokenizer, len(tokenizer), tokenizer.mask_token_id)


def wordpiece() -> Vocabulary:
    names = ["[UNK]", "[MASK]", "[EOS]", "cat", "dog", "##s", "##é", "a", "."]
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    tokenizer = with_special_tokens(backend, mask_token="[MASK]", eos_token="[EOS]", unk_token="[UNK]")
    return Vocabulary(tokenizer, len(names), 1)


def accepts(automaton: Automaton, ids: list[int] | bytes) -> bool:
    return can_accept(automaton, list(ids), -1)


def texts(most: int) -> list[str]:
    return ["".join(letters) for size in range(most + 1) for letters in itertools.product(LETTERS, repeat=size)]


@pytest.mark.parametrize(
    "pattern",
    ["a*", "a|é☃", "é+a?", "[^é]{2,3}", ".{2}", "(a.)*", "[a-z]+☃", "(?i)É|A", "(.|\n)*☃", "", "a{0}", "é(a|☃)*é"],
)
def test_regular_expressions_accept_what_python_matches(single, pattern):
    automaton = Regex(pattern).automaton(single)
    for text in texts(4):
        assert accepts(automaton, text.encode()) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        (Characters(2, 3), lambda text: 2 <= len(text) <= 3),
        (Characters(0, 0), lambda text: text == ""),
        (Words("aéa", whole=False), lambda text: "aéa" in text),
        (Words("aa", "é", whole=False), lambda text: "aa" in text and "é" in text),
        (NoWords("é☃", "aa", whole=False), lambda text: "é☃" not in text and "aa" not in text),
        (Words("aaéaa", whole=False), lambda text: "aaéaa" in text),
    ],
)
def test_lengths_and_words_are_of_the_text(single, constraint, holds):
    automaton = constraint.automaton(single)
    for text in [*texts(4), "aaaéaa", "aaéaéaa", "aaéaaéaa"]:
        assert accepts(automaton, text.encode()) == holds(text), text


def stands_alone(word: str, text: str) -> bool:
    """Whether a word is somewhere in a text without a letter or a digit beside its own."""
    places = [i for i in range(len(text)) if text.startswith(word, i)]
    sides = [(text[:i][-1:], text[i + len(word) :][:1]) for i in places]
    return any(
        not (word[0].isalnum() and before.isalnum()) and not (word[-1].isalnum() and after.isalnum())
        for before, after in sides
    )


@pytest.mark.parametrize("word", ["a", "é", "ab", "aba", "a☃a", "☃", "☃a", "a☃", "☃☃", "a a"])
def test_whole_words_have_no_letter_or_digit_beside_them(single, word):
    has, lacks = Words(word).automaton(single), NoWords(word).automaton(single)
    some = ["".join(letters) for size in range(5) for letters in itertools.product("aéb☃ ", repeat=size)]
    found = [stands_alone(word, text) for text in some]
    assert any(found)
    for text, good in zip([*some, "aba☃aba", "ababa", "aba ba"], found, strict=False):
        assert accepts(has, text.encode()) == good, text
        assert accepts(lacks, text.encode()) == (not good), text


def test_letters_and_digits_of_all_scripts_lengthen_a_word(single):
    whole, part = Words("cat").automaton(single), Words("cat", whole=False).automaton(single)
    for beside in [*"aZ0éßþñłяλשع猫の가ﬁ٣x", "\U00020000"]:
        assert beside.isalnum()
        for text in (f"cat{beside}", f"{beside}cat", f"a {beside}cat{beside} b"):
            assert not accepts(whole, text.encode()), text
            assert accepts(part, text.encode()), text
            assert accepts(whole, f"{text} cat".encode()), text


def test_signs_of_all_kinds_end_a_word(single):
    has, lacks = Words("cat").automaton(single), NoWords("cat").automaton(single)
    for beside in [*" .,;!?'\"()[]-_/\n×÷«»¿£“”‘’–—…•€→☃\ue000", "\U0001f600"]:
        assert not beside.isalnum()
        for text in (f"cat{beside}", f"{beside}cat", f"a{beside}cat{beside}b"):
            assert accepts(has, text.encode()), text
            assert not accepts(lacks, text.encode()), text


def test_several_words_may_overlap(single):
    automaton = intersect(single, Words("ab a", "a b"))
    assert accepts(automaton, b"ab a b")
    assert not accepts(automaton, b"ab a bb")


def test_text_that_is_not_utf8_is_never_accepted(single):
    automaton = Characters(0, 9).automaton(single)
    for broken in (b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3a"):
        assert not accepts(automaton, broken), broken
        with pytest.raises(UnicodeDecodeError):
            broken.decode()
    for code in [*range(0, 0x800, 13), 0x7FF, 0x800, 0xFFF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x10FFFF]:
        assert accepts(automaton, chr(code).encode() * 9)
        assert not accepts(automaton, chr(code).encode() * 10)


def test_tokens_that_are_parts_of_letters_are_read_as_bytes(bpe):
    """Every way to cut a text into tokens is accepted or refused alike, tokens that end within a letter included."""
    pieces = {piece: token for token, piece in enumerate(bpe.token_bytes[1]) if piece is not None}
    assert any(piece.endswith((b"n\xc3", b"\xe2\x98")) for piece in pieces)
    automaton = intersect(bpe, Regex(".*(né|☃).*"), Characters(1, 7))
    for text, good in (("né", True), (" né ☃☃", True), ("the né", True), ("the☃☃ né", False), ("the cat", False)):
        ways = list(cuts(text.encode(), pieces))
        assert len(ways) > 2
        assert {accepts(automaton, way) for way in ways} == {good}


def cuts(text: bytes, pieces: dict[bytes, int]):
    """Every sequence of tokens that makes up a text."""
    if not text:
        yield []
    for size in range(1, len(text) + 1):
        if text[:size] in pieces:
            for rest in cuts(text[size:], pieces):
                yield [pieces[text[:size]], *rest]


def intersect(vocabulary: Vocabulary, *constraints: Constraint) -> Automaton:
    return compile_constraints(constraints, vocabulary, [])


def test_random_canvases_are_judged_by_their_decoded_text(bpe):
    checks = {
        Regex("[a-z ]*"): lambda text: re.fullmatch("[a-z ]*", text),
        Words("the", "do", whole=False): lambda text: "the" in text and "do" in text,
        NoWords("e c", whole=False): lambda text: "e c" not in text,
        Words("the"): lambda text: stands_alone("the", text),
        NoWords("n", "c"): lambda text: not stands_alone("n", text) and not stands_alone("c", text),
        Characters(9, 14): lambda text: 9 <= len(text) <= 14,
    }
    automata_ = {constraint: constraint.automaton(bpe) for constraint in checks}
    generator = np.random.default_rng(1)
    word = [i for i, piece in enumerate(bpe.token_bytes[1]) if piece and not piece.strip(b"aednthco g")]
    seen = dict.fromkeys(checks, 0)
    for _ in range(400):
        ids = generator.choice(word, 5).tolist()
        text = bpe.tokenizer.decode(ids)
        for constraint, holds in checks.items():
            assert accepts(automata_[constraint], ids) == bool(holds(text))
            seen[constraint] += bool(holds(text))
    assert all(seen.values()), seen


def test_words_of_pieces_are_read_with_their_blanks():
    vocabulary = wordpiece()
    checks = {
        Regex("cats dog( [.]|s).*"): lambda text: re.fullmatch("cats dog( [.]|s).*", text),
        Regex("cat.*\ncat.*"): lambda text: re.fullmatch("cat.*\ncat.*", text),
        Words("ts d", whole=False): lambda text: "ts d" in text,
        Words("cat", "a"): lambda text: stands_alone("cat", text) and stands_alone("a", text),
        NoWords("cat"): lambda text: not stands_alone("cat", text),
        Characters(8, 9): lambda text: 8 <= len(text) <= 9,
    }
    for constraint, holds in checks.items():
        automaton, found = constraint.automaton(vocabulary), 0
        for ids in itertools.product(range(2, 9), repeat=4):
            text = decode_canvas(vocabulary.tokenizer, list(ids), vocabulary.mask)
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


def test_single_tokens_by_position(single):
    fixed, allowed, banned = Fixed({1: "x", 3: 5}), Allowed(["a", 7], [0, 2]), Banned(["q"])
    for ids in ([0, 120, 0, 5], [0, 120, 0, 6], [120, 0, 0, 5]):
        assert accepts(fixed.automaton(single), ids) == (ids[1] == 120 and ids[3] == 5)
    for ids in itertools.product([97, 7, 9], repeat=3):
        assert accepts(allowed.automaton(single), list(ids)) == ({ids[0], ids[2]} <= {97, 7})
    assert accepts(banned.automaton(single), b"abc")
    assert not accepts(banned.automaton(single), b"abq")
    assert accepts(Allowed(["a"]).automaton(single), b"aaa")
    assert not accepts(Allowed(["a"]).automaton(single), b"aab")


def test_a_lone_string_is_one_token(bpe):
    (the,) = bpe.tokens([" the"])
    assert accepts(Allowed(" the").automaton(bpe), [the, the])
    assert not accepts(Allowed(" the").automaton(bpe), [*b"the"])
    assert not accepts(Banned(" the").automaton(bpe), [the])
    assert accepts(Banned(" the").automaton(bpe), [*b"the"])
    for one in (the, {the}, np.array([the])):
        assert accepts(Allowed(one).automaton(bpe), [the])


def test_runs_of_ids_need_no_tokenizer():
    vocabulary = Vocabulary(None, 4, 1)
    has, lacks = Words([2, 2, 3]).automaton(vocabulary), NoWords([2, 2, 3], [0]).automaton(vocabulary)
    for ids in itertools.product([0, 2, 3], repeat=5):
        found = any(ids[i : i + 3] == (2, 2, 3) for i in range(3))
        assert accepts(has, list(ids)) == found
        assert accepts(lacks, list(ids)) == (not found and 0 not in ids)


def test_the_mask_is_never_accepted(single):
    for constraint in (Regex("(.|\n)*"), Allowed(range(256)), Banned([3]), Fixed({0: 3}), Words([3]), NoWords([4])):
        assert constraint.automaton(single).token_class[single.mask] == -1


def test_the_product_accepts_what_both_accept(single):
    one, other = Words("aé"), Fixed({0: "a"})
    both, each = intersect(single, one, other), [one.automaton(single), other.automaton(single)]
    for text in texts(3):
        assert accepts(both, text.encode()) == all(accepts(automaton, text.encode()) for automaton in each)


def test_tokens_that_differ_at_one_position_only_stay_apart():
    both = intersect(Vocabulary(None, 4, 1), Words([2]), Banned([3], [1]))
    for ids in itertools.product([0, 2, 3], repeat=3):
        assert accepts(both, list(ids)) == (2 in ids and ids[1] != 3)


def test_the_fewest_states_accept_the_same():
    generator, gate = np.random.default_rng(0), np.ones((0, 2), dtype=bool)
    for share in [0.5, 1.0] * 40:
        move, ends = generator.integers(-1, 4, (4, 2)), generator.random(4) < share
        twice = np.concatenate([move, np.where(move >= 0, move + 4, -1)])
        table = np.where((twice >= 0) & (generator.random(twice.shape) < 0.5), (twice + 4) % 8, twice)
        many = Automaton(np.arange(2), table, np.tile(ends, 2), gate)
        few = minimise(many)
        assert few.states <= 4
        for ids in itertools.chain.from_iterable(itertools.product(range(2), repeat=size) for size in range(6)):
            assert accepts(few, list(ids)) == accepts(many, list(ids))


def test_automata_stay_small(single):
    assert Regex("(a|b|c|d)*").automaton(single).transitions.shape == (1, 1)
    assert Regex("a{1,9}|b{1,9}").automaton(single).states <= 19
    assert Words("cat", whole=False).automaton(single).classes < 20
    assert Words("cat").automaton(single).states < 30
    assert Words("cat").automaton(single).classes < 40
    assert Words("cat", "dog", "bird").automaton(single).states < 200


@pytest.mark.parametrize(
    ("constraints", "row", "words"),
    [
        ([Regex("abc")], [257] * 5, r"No canvas of 5 tokens can satisfy Regex.*the nearest length that can is 3"),
        ([Regex("(?=b)a")], [257] * 5, "no other of up to 1024 tokens, all that this model sees, could"),
        ([Characters(6, 9)], [257] * 5, "at most 1 characters; ask for 6 tokens"),
        ([Regex("[a-z]*")], [*b"aB", 257], r"given tokens contradict Regex"),
        ([Words("ab"), NoWords("b", whole=False)], [257] * 5, "Words.* and NoWords.* cannot hold together"),
        ([Fixed({7: "a"})], [257] * 5, "position 7 .* 5 tokens"),
        ([Banned(range(257))], [257] * 5, "Banned.* leaves no token that could stand at position 0"),
        ([Banned(range(257), [2, 4])], [257] * 5, "leaves no token that could stand at position 2"),
        ([Allowed([])], [257] * 5, "Allowed.* leaves no token that could stand at position 0"),
        ([Allowed([], [4])], [257] * 5, "leaves no token that could stand at position 4"),
        ([Banned(range(9, 257)), Banned(range(9))], [257] * 5, "cannot hold together"),
        ([Banned(range(9, 257), [1]), Banned(range(9), [1])], [257] * 5, "cannot hold together"),
        ([Words("a"), Banned(range(257), [1])], [257] * 5, "leaves no token that could stand at position 1"),
    ],
)
def test_what_cannot_be_is_named(single, constraints, row, words):
    with pytest.raises(UnmaskError, match=words) as caught:
        compile_constraints(constraints, single, [row])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "constraint", [Words([0, 1]), NoWords([1, 2]), Fixed({1: 2}), Allowed([0, 2], [0, 2]), Banned([0]), Words([2, 2])]
)
def test_a_row_is_accepted_where_some_writing_of_it_without_an_end_before_given_text_is(constraint):
    """By all rows of four tokens, of which 2 ends a text and 3 is the mask, and all ways to write them."""
    automaton = constraint.automaton(Vocabulary(None, 4, 3))
    for row in itertools.product(range(4), repeat=4):
        middle = [token == 3 and any(one in (0, 1) for one in row[i:]) for i, token in enumerate(row)]
        assert masks_before_text(row, 3, 2).tolist() == middle
        written = [(0, 1) if inner else (0, 1, 2) for inner in middle]
        options = [(token,) if token != 3 else some for token, some in zip(row, written, strict=True)]
        assert can_accept(automaton, row, 3, 2) == any(can_accept(automaton, z, 3) for z in itertools.product(*options))


@pytest.mark.parametrize(
    ("constraint", "limit", "words"),
    [
        (Regex("a{9}"), 8, "no other of up to 8 tokens, all that this model sees, could, so ask for something else"),
        (Regex("a{9}"), 9, "the nearest length that can is 9, so ask for that"),
        (Regex("a?"), 9, "the nearest length that can is 1, so ask for that"),
        (Regex("a{1100}"), 2000, "no other of up to 1024 tokens could, so ask for something else"),
        (Characters(9, 9), 9, "ask for 9 tokens or for fewer characters"),
        (Characters(9, 9), 8, "ask for at most 8 characters in 8 tokens, all that this model sees"),
        (Fixed({8: "a"}), 9, "lengthen the canvas"),
        (Fixed({8: "a"}), 8, "name one below 8, all that this model sees"),
    ],
)
def test_no_advice_goes_beyond_what_the_model_sees(single, constraint, limit, words):
    with pytest.raises(UnmaskError, match=words):
        compile_constraints([constraint], single, [[single.mask] * 5], limit)


def test_an_error_shows_the_beginning_of_a_long_constraint(single):
    with pytest.raises(UnmaskError, match=r"Banned\(tokens=\[0, 1, 2, .*\.\.\. leaves no token") as caught:
        compile_constraints([Banned(list(range(257)))], single, [[257]])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda v: Regex("[a").automaton(v), "'\\[a' cannot be used: unterminated character set at position 0"),
        (lambda v: Regex("ab(c").automaton(v), "missing \\).* at position 2"),
        (lambda v: Regex("a{3,2}").automaton(v), "min repeat greater than max repeat"),
        (lambda v: Regex("a{9999999999999}").automaton(v), "repetition number is too large"),
        (lambda v: Regex(r"(a)\1").automaton(v), "the back-reference .* at position 3 is not supported"),
        (lambda v: Regex("^a$").automaton(v), "the anchor '\\^' at position 0 is not supported.*without anchors"),
        (lambda v: Regex(r"[$^]\$a\b").automaton(v), "the word boundary .* at position 7"),
        (lambda v: Regex("(?<=a)b").automaton(v), "the look-behind .* at position 0"),
        (lambda v: Regex("a(?i:b)(?m:c)").automaton(v), "the flag .* at position 7"),
        (lambda v: Regex("a++").automaton(v), "possessive|multiple repeat"),
        (lambda v: Regex("[]a]").automaton(v), "set that begins with its end"),
        (lambda v: Regex("a{b}").automaton(v), "the brace '{' at position 1"),
        (lambda v: Words(5), "Words needs words"),
        (lambda v: Characters("a", 5), "a to 5 characters"),
        (lambda v: Regex(5), "5 is no regular expression"),
        (lambda v: Fixed({"a": 5}).automaton(v), "give numbers, counted from 0"),
        (lambda v: Fixed([5]), "give {position: token}"),
        (lambda v: Allowed([2.5]).automaton(v), "2.5 is no token"),
        (lambda v: Characters(5, 4), "5 to 4"),
        (lambda v: Words(), "at least one"),
        (lambda v: NoWords(""), "not empty"),
        (lambda v: Allowed(["ab"]).automaton(v), "'ab' is 2 tokens"),
        (lambda v: Allowed("ab").automaton(v), "'ab' is 2 tokens"),
        (lambda v: Banned(None).automaton(v), "None is no token"),
        (lambda v: Banned([300]).automaton(v), "token 300"),
        (lambda v: Fixed({0: 257}).automaton(v), "token 257"),
        (lambda v: Fixed({-1: 3}).automaton(v), "counted from 0"),
        (lambda v: Regex("a").automaton(Vocabulary(None, 4, 1)), "tokenizer"),
    ],
)
def test_bad_constraints_are_one_sentence(single, make, words):
    with pytest.raises(UnmaskError, match=words) as caught:
        make(single)
    assert "\n" not in str(caught.value)


def test_the_missing_package_is_named(single, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("interegular"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnmaskError, match=r"pip install 'unmask\[regex\]'"):
        Regex("a").automaton(single)


def test_a_tokenizer_whose_tokens_do_not_join_is_refused():
    vocabulary = wordpiece()
    vocabulary.tokenizer.backend_tokenizer.decoder = decoders.CTC()
    with pytest.raises(UnmaskError, match="read differently"):
        Regex("a").automaton(vocabulary)
