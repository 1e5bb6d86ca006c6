"""The smoke model against its source, a Markov chain with known probabilities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2

from unmask.data.puzzles import MarkovSource
from unmask.pipeline import MaskedDiffusionLM, load

UNSEEN = 64
"""Documents after the last one of the training data; document i depends on the seed and on i alone."""


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


def bits_per_letter(chain: MarkovSource, texts: list[str]) -> np.ndarray:
    return np.array([chain.nll_bits(text) / len(text) for text in texts])


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def pair_ratio(chain: MarkovSource, texts: list[str]) -> float:
    """Pearson's statistic of letter pairs over its quantile at 1 - 1e-6 under the chain.

    Letters that are expected fewer than five times are counted together.
    """
    size = len(chain.alphabet)
    counts = np.zeros((size, size))
    for text in texts:
        for one, other in pairwise(text):
            counts[chain.alphabet.index(one), chain.alphabet.index(other)] += 1
    statistic, freedom = 0.0, 0
    for seen, expected in zip(counts, counts.sum(axis=1, keepdims=True) * chain.transitions, strict=True):
        often = expected >= 5
        cells = [*zip(seen[often], expected[often], strict=True), (seen[~often].sum(), expected[~often].sum())]
        statistic += sum((a - b) ** 2 / b for a, b in cells if b > 0)
        freedom += len(cells) - 1
    return statistic / float(chi2.ppf(1 - 1e-6, freedom))


def test_its_bound_is_just_above_the_entropy_of_the_chain(smoke, chain, unseen):
    bound = smoke.score(unseen, precision=None)
    exact = bits_per_letter(chain, unseen)
    above = np.array([one.bits_per_token for one in bound]) - exact
    error = float(np.hypot(standard_error(above), bound.error("bits_per_token")))
    assert -4 * error < above.mean() < 0.03 + 4 * error
    assert abs(bound.bits_per_char - chain.bits_per_character()) < 0.03 + 4 * standard_error(exact)
    readme = (smoke.path / "README.md").read_text(encoding="utf-8")
    assert f"| entropy of the source |  | {chain.bits_per_character():.3f} |" in readme


def test_its_texts_have_the_letter_pairs_of_the_chain(smoke, chain, unseen):
    texts = smoke.generate(UNSEEN, seed=0)
    bits = bits_per_letter(chain, texts)
    assert abs(bits.mean() - chain.bits_per_character()) < 0.03 + 4 * standard_error(bits)
    assert pair_ratio(chain, unseen) < 1
    assert pair_ratio(chain, texts) < 1


@pytest.mark.parametrize(
    "options",
    [
        *({"order": order} for order in ("confidence", "margin", "entropy", "left_to_right")),
        {"steps": 96, "sampler": {"name": "remdm", "eta": 0.01}},
    ],
    ids=str,
)
def test_every_order_samples_the_same_letter_pairs(smoke, chain, options):
    assert pair_ratio(chain, smoke.generate(32, seed=0, **options)) < 1


@pytest.mark.parametrize("options", [{}, {"sampler": {"name": "remdm", "eta": 0.3}}], ids=str)
def test_too_few_steps_break_the_letter_pairs(smoke, chain, options):
    """Tokens written in one call are independent, and the statistic detects it."""
    assert pair_ratio(chain, smoke.generate(32, steps=8, seed=0, **options)) > 2


def test_its_confidences_in_a_blank_are_the_conditionals_of_the_chain(smoke, chain):
    """Between two letters a and c, the probability of b is proportional to p(b|a) p(c|b)."""
    law = chain.transitions[1] * chain.transitions[:, 2]
    law /= law.sum()
    generations = [smoke.fill_details(["aaab[MASK]cdef"], seed=seed)[0] for seed in range(40)]
    found = {one.ids[4]: one.confidence[4] for one in generations}
    assert max(abs(found[letter] - law[letter]) for letter in found) < 0.12
    assert sum(found.values()) > 0.8
