"""Text whose true law is known: a Markov chain of letters, made here, with its entropy."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from unmask.data.sources.base import Document, Source

Floats = npt.NDArray[np.float64]


class MarkovSource(Source):
    """Documents of a chain over the letters of an alphabet.

    Each begins by the stationary law, so that any stretch of one has the law of any other as long.

    A transition's weight is u^-sharpness for a uniform u: the sharper, the more a letter tells about the next.
    """

    name: Literal["markov"] = "markov"
    alphabet: str = "abcdefgh"
    sharpness: float = Field(default=2.0, ge=0, le=8)
    count: int = Field(default=1000, ge=1)
    """Documents."""
    length: int = Field(default=256, ge=1)
    """Letters of a document."""
    seed: int = 0

    @field_validator("alphabet")
    @classmethod
    def _has_several_letters(cls, alphabet: str) -> str:
        if len(alphabet) < 2 or len(set(alphabet)) < len(alphabet):
            raise ValueError("a chain needs at least two letters, each only once")
        return alphabet

    def documents(self) -> Iterator[Document]:
        """Document i depends on the seed and on i alone."""
        for number in range(self.count):
            yield Document(f"chain-{number}", "".join(self.alphabet[state] for state in self._walk(number)))

    @cached_property
    def transitions(self) -> Floats:
        """[S, S] the chance of each letter after each."""
        size = len(self.alphabet)
        weight = (1.0 - np.random.default_rng(self.seed).random((size, size))) ** -self.sharpness
        return weight / weight.sum(axis=1, keepdims=True)

    @cached_property
    def stationary(self) -> Floats:
        """[S] the share of each letter in the long run."""
        size = len(self.alphabet)
        balance = np.vstack([self.transitions.T - np.eye(size), np.ones(size)])
        return np.linalg.lstsq(balance, np.eye(size + 1)[-1], rcond=None)[0]

    def bits(self, letters: int) -> float:
        """Entropy of a text of so many letters: that of the first, and for each other that given the one before."""
        start, chance = self.stationary, self.transitions
        first = -float((start * np.log2(start)).sum())
        next_one = -float((start[:, None] * chance * np.log2(chance)).sum())
        return first + (letters - 1) * next_one

    def bits_per_character(self) -> float:
        """Entropy of a document over its letters."""
        return self.bits(self.length) / self.length

    def surprise(self, text: str) -> float:
        """-log2 p of a text under the chain."""
        states = [self.alphabet.index(letter) for letter in text]
        steps = sum(math.log2(self.transitions[a, b]) for a, b in pairwise(states))
        return -math.log2(self.stationary[states[0]]) - steps

    def _walk(self, number: int) -> list[int]:
        """The states of one document, by inverting cumulative chances."""
        draws = np.random.default_rng([self.seed, number]).random(self.length).tolist()
        states = [self._drawn(self.stationary, draws[0])]
        for u in draws[1:]:
            states.append(self._drawn(self.transitions[states[-1]], u))
        return states

    @staticmethod
    def _drawn(chance: Floats, u: float) -> int:
        """The state whose stretch of (0, 1) holds u."""
        return min(bisect(chance.cumsum().tolist(), u), len(chance) - 1)
