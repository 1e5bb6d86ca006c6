"""The smoke model against the law of its source, which is known: a network that has learnt what there was to learn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2

from unmask.data.puzzles import MarkovSource
from unmask.pipeline import MaskedDiffusionLM, load

UNSEEN = 64
"""Texts behind the last that it was trained on; document i depends on the seed and on i alone."""
SURE = 1 - 1e-6


@pytest.fixture(scope="module")
def smoke() -> MaskedDiffusionLM:
    return load("smoke", device="cpu")


@pytest.fixture(scope="module")
def chain(smoke) -> MarkovSource:
    return MarkovSource(**smoke.config.protocol["data"]["source"])


@pytest.fixture(scope="module")
def unseen(chain) -> list[str]:
    longer = chain.model_copy(update={"count": chain.count + UNSEEN})
    return [one.text for one in longer.documents()][chain.count :]


def surprises(chain: MarkovSource, texts: list[str]) -> np.ndarray:
    """Bits per letter of each text under the chain."""
    return np.array([chain.nll_bits(text) / len(text) for text in texts])


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def pair_statistic(chain: MarkovSource, texts: list[str]) -> tuple[float, float]:
    """Pearson's statistic of the letters after each letter, and what it stays below under the chain, nearly surely.

    Letters that should come fewer than five times are counted together.
    """
    size = len(chain.alphabet)
    counts = np.zeros((size, size))
    for text in texts:
        for one, other in pairwise(text):
            counts[chain.alphabet.index(one), chain.alphabet.index(other)] += 1
    expected = counts.sum(axis=1, keepdims=True) * chain.transitions
    statistic, freedom = 0.0, 0
    for seen, wanted in zip(counts, expected, strict=True):
        often = wanted >= 5
        cells = [*zip(seen[often], wanted[often], strict=True), (seen[~often].sum(), wanted[~often].sum())]
        statistic += sum((a - b) ** 2 / b for a, b in cells if b > 0)
        freedom += len(cells) - 1
    return statistic, float(chi2.ppf(SURE, freedom))


def test_its_bound_is_the_entropy_of_the_chain_and_a_little_more(smoke, chain, unseen):
    """Text by text beside the chain's own -log p, so that the luck of the texts does not count."""
    bound = smoke.score(unseen, precision=None)
    above = np.array([one.bits_per_token for one in bound]) - surprises(chain, unseen)
    error = float(np.hypot(standard_error(above), bound.error("bits_per_token")))
    assert -4 * error < above.mean() < 0.03 + 4 * error
    assert abs(bound.bits_per_char - chain.bits_per_character()) < 0.03 + 4 * standard_error(surprises(chain, unseen))


def test_its_card_names_the_same_entropy(smoke, chain):
    card = (smoke.path / "README.md").read_text(encoding="utf-8")
    assert f"| the source itself |  | {chain.bits_per_character():.3f} |" in card


def test_what_it_writes_has_the_chain_s_letter_pairs(smoke, chain, unseen):
    texts = smoke.generate(UNSEEN, seed=0)
    own = surprises(chain, texts)
    assert abs(own.mean() - chain.bits_per_character()) < 0.03 + 4 * standard_error(own)
    for written in (unseen, texts):
        statistic, limit = pair_statistic(chain, written)
        assert statistic < limit


def test_too_few_calls_break_the_pairs(smoke, chain):
    """Eight letters at a time do not see one another: the same statistic finds it, so it would find a bad sampler."""
    statistic, limit = pair_statistic(chain, smoke.generate(UNSEEN, steps=8, seed=0))
    assert statistic > 2 * limit


@pytest.mark.parametrize("order", ["confidence", "margin", "entropy", "left_to_right"])
def test_every_order_one_at_a_time_writes_the_same_pairs(smoke, chain, order):
    statistic, limit = pair_statistic(chain, smoke.generate(32, order=order, seed=0))
    assert statistic < limit


def test_remasking_little_in_many_calls_writes_the_same_pairs(smoke, chain):
    statistic, limit = pair_statistic(chain, smoke.generate(32, steps=96, sampler={"name": "remdm", "eta": 0.01}))
    assert statistic < limit
    statistic, limit = pair_statistic(chain, smoke.generate(32, steps=8, sampler={"name": "remdm", "eta": 0.3}))
    assert statistic > 2 * limit


def test_it_fills_by_the_chain_s_law(smoke, chain):
    """A blank between two letters: the chance of each letter is p(b|a) p(c|b) over their sum, as confidences say."""
    law = chain.transitions[1] * chain.transitions[:, 2]
    law /= law.sum()
    seen = [smoke.fill_details(["aaab[MASK]cdef"], seed=seed)[0] for seed in range(40)]
    told = {one.ids[4]: one.confidence[4] for one in seen}
    assert max(abs(told[letter] - law[letter]) for letter in told) < 0.12
    assert sum(told.values()) > 0.8
