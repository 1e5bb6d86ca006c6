"""Automata: products, minimisation, UTF-8 and limits on their size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.constraints.enumeration import accepts, texts
from unmask.constraints import (
    Allowed,
    Automaton,
    Banned,
    Characters,
    Fixed,
    NoWords,
    Regex,
    Words,
    automaton,
    compile_constraints,
)
from unmask.constraints.automaton import minimise
from unmask.errors import UnmaskError


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Words("aé"), Fixed({0: "a"})),
        (NoWords("aa", whole=False), Words("é", whole=False)),
        (Characters(1, 2), Banned("a")),
    ],
)
def test_a_product_accepts_what_both_accept(single, one, other):
    both, each = compile_constraints([one, other], single, []), [one.automaton(single), other.automaton(single)]
    for text in texts(3):
        assert accepts(both, text.encode()) == all(accepts(one, text.encode()) for one in each)


def test_minimisation_keeps_the_accepted_texts():
    generator, allowed = np.random.default_rng(0), np.ones((0, 2), dtype=bool)
    for share in [0.5, 1.0] * 40:
        transitions, accepting = generator.integers(-1, 4, (4, 2)), generator.random(4) < share
        twice = np.concatenate([transitions, np.where(transitions >= 0, transitions + 4, -1)])
        table = np.where((twice >= 0) & (generator.random(twice.shape) < 0.5), (twice + 4) % 8, twice)
        large = Automaton(np.arange(2), table, np.tile(accepting, 2), allowed)
        small = minimise(large)
        assert small.states <= 4
        for ids in itertools.chain.from_iterable(itertools.product(range(2), repeat=size) for size in range(6)):
            assert accepts(small, list(ids)) == accepts(large, list(ids))


def test_automata_stay_small(single):
    assert Regex("(a|b|c|d)*").automaton(single).transitions.shape == (1, 1)
    assert Regex("a{1,9}|b{1,9}").automaton(single).states <= 19
    assert Words("cat", whole=False).automaton(single).classes < 20
    assert Words("cat").automaton(single).states < 30
    assert Words("cat").automaton(single).classes < 40
    assert Words("cat", "dog", "bird").automaton(single).states < 200


def test_invalid_utf8_is_never_accepted(single):
    any_text = Characters(0, 9).automaton(single)
    for broken in (b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3a"):
        assert not accepts(any_text, broken), broken
    for code in [*range(0, 0x800, 13), 0x7FF, 0x800, 0xFFF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x10FFFF]:
        assert accepts(any_text, chr(code).encode() * 9)
        assert not accepts(any_text, chr(code).encode() * 10)


def test_the_mask_is_never_accepted(single):
    for constraint in (Regex("(.|\n)*"), Allowed(range(256)), Banned([3]), Fixed({0: 3}), Words([3]), NoWords([4])):
        assert constraint.automaton(single).token_class[single.mask] == -1


def test_the_size_of_an_automaton_is_limited(single, monkeypatch):
    monkeypatch.setattr(automaton, "MAX_TRANSITIONS", 1000)
    with pytest.raises(UnmaskError, match="too many"):
        Characters(0, 500).automaton(single)
