"""The source whose law is known: its chain, its entropy, its documents."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from unmask import registry
from unmask.data.puzzles import MarkovSource
from unmask.errors import UnmaskError

CHAIN = MarkovSource(alphabet="abc", sharpness=1.5, count=400, length=50, seed=3)


def test_the_stationary_law_stays_what_it_is():
    assert CHAIN.transitions.sum(axis=1) == pytest.approx(1.0)
    assert CHAIN.stationary @ CHAIN.transitions == pytest.approx(CHAIN.stationary)
    assert CHAIN.stationary.sum() == pytest.approx(1.0)


def test_entropy_is_that_of_all_texts_enumerated():
    chance = {"".join(text): 2 ** -CHAIN.nll_bits("".join(text)) for text in itertools.product("abc", repeat=5)}
    assert sum(chance.values()) == pytest.approx(1.0)
    assert -sum(p * np.log2(p) for p in chance.values()) == pytest.approx(CHAIN.bits(5))


def test_documents_have_the_law_of_the_chain_everywhere():
    texts = [document.text for document in CHAIN.documents()]
    assert {len(text) for text in texts} == {50}
    bits = [CHAIN.nll_bits(text) / 50 for text in texts]
    assert abs(np.mean(bits) - CHAIN.bits(50) / 50) < 4 * np.std(bits) / len(bits) ** 0.5
    for place in (0, 49):
        share = np.mean([text[place] == "a" for text in texts])
        assert abs(share - CHAIN.stationary[0]) < 4 * (0.25 / len(texts)) ** 0.5


def test_a_document_depends_on_the_seed_and_its_number_alone():
    texts = [document.text for document in CHAIN.documents()]
    fewer = [document.text for document in CHAIN.model_copy(update={"count": 5}).documents()]
    assert fewer == texts[:5]
    assert len(set(texts)) == len(texts)
    assert next(MarkovSource(seed=1).documents()).text != next(MarkovSource(seed=2).documents()).text


def test_sharpness_lowers_the_entropy():
    assert MarkovSource(sharpness=0.0).bits(1) == pytest.approx(3.0)
    rates = [MarkovSource(sharpness=sharpness).bits(100) for sharpness in (0.5, 1.0, 3.0)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("alphabet", ["a", "aa", ""])
def test_an_alphabet_has_several_letters_once_each(alphabet):
    with pytest.raises(UnmaskError, match="at least two letters"):
        registry.build("source", {"name": "markov", "alphabet": alphabet})
