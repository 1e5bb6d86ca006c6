"""Sampling: masked diffusion in T steps and one token at a time, the autoregressive twin, and the plain way."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from unmask.benchmarks.plain import plain_walk
from unmask.benchmarks.report import FORWARD_SHARE
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.timing import synchronize
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, Sampler, run_sampler, sample
from unmask.training.metrics import head_flops, trunk_flops

UNTIMED = 3
"""Steps of a walk before those that tell its time."""
LEFT = 32
"""Tokens after the last timed one: near its end the twin no longer records."""


@dataclass(frozen=True)
class Sampling:
    """`contender` (mdlm, ar, plain) fills a canvas of the setup's batch and length.

    `steps=None` writes one token at a time, as the twin always does.
    """

    setup: Setup
    contender: str
    steps: int | None = None

    @property
    def name(self) -> str:
        """How it is called in a table."""
        if self.contender == "ar":
            return "ar"
        return f"{self.contender} " + ("one by one" if self.steps is None else f"T={self.steps}")

    @property
    def tokens(self) -> int:
        """Tokens of a walk."""
        return self.setup.batch * self.setup.length


class Walker(ABC):
    """A network and a way to fill a canvas with it, in `total` steps, each at most one network call."""

    total: int

    def __init__(self, work: Sampling) -> None:
        self.work = work
        self.setup = work.setup

    @abstractmethod
    def fill(self) -> None:
        """A whole walk."""

    @abstractmethod
    def walk(self, given: int = 0) -> Generator[Any, None, None]:
        """A walk over a canvas whose first tokens are given: what is there before the first step and after each."""

    @property
    def calls(self) -> float:
        """Network calls of a walk."""
        return self.total

    @property
    def flops(self) -> float:
        """Operations of a walk: every call reads all tokens, and every token goes through the head once."""
        config, tokens = self.setup.config, self.work.tokens
        trunk = self.calls * tokens * trunk_flops(config, self.setup.length)
        return FORWARD_SHARE * (trunk + tokens * head_flops(config))

    def seconds_by_excerpt(self, steps: int) -> float:
        """The seconds of a whole walk, told by some of its steps: they cost the same wherever they stand."""
        return self.total * self.seconds_of_step(0, steps)

    def seconds_of_step(self, given: int, steps: int) -> float:
        """The mean of some steps after the first ones, which read given tokens and record what the others replay."""
        device = self.setup.device
        with closing(self.walk(given)) as states:
            for _ in range(1 + UNTIMED):
                next(states)
            synchronize(device)
            start = time.perf_counter()
            for _ in range(steps):
                next(states)
            synchronize(device)
        return (time.perf_counter() - start) / steps


class Diffusion(Walker):
    """Masked diffusion in uniform order."""

    def __init__(self, work: Sampling) -> None:
        super().__init__(work)
        self.sampler = self.make_sampler()
        self.network = self.setup.ready(self.sampler.causal)
        self.total = self.sampler.begin(self._canvas(0)).total

    def make_sampler(self) -> Sampler:
        """How canvases are filled."""
        return AncestralSampler(steps=self.work.steps, schedule=self.setup.schedule)

    def fill(self) -> None:
        sample(self.sampler, self.network, self._canvas(0))

    def walk(self, given: int = 0) -> Generator[Any, None, None]:
        yield from run_sampler(self.sampler, self.network, self._canvas(given))

    def _canvas(self, given: int) -> Canvas:
        setup = self.setup
        ids = torch.full((setup.batch, setup.length), setup.mask_token_id)
        ids[:, :given] = torch.from_numpy(setup.ids(setup.batch))[:, :given]
        return Canvas.of(ids.to(setup.device), setup.mask_token_id)


class Autoregressive(Diffusion):
    """The twin with its cache: a call reads one token, and costs more the more stand before it."""

    def make_sampler(self) -> Sampler:
        return AutoregressiveSampler()

    @property
    def flops(self) -> float:
        config, tokens = self.setup.config, self.work.tokens
        return FORWARD_SHARE * tokens * (trunk_flops(config, self.setup.length / 2) + head_flops(config))

    def seconds_by_excerpt(self, steps: int) -> float:
        """By steps at both ends, since the cost of one grows in proportion to what stands before it."""
        last = self.setup.length - steps - UNTIMED - LEFT
        return self.total * (self.seconds_of_step(0, steps) + self.seconds_of_step(last, steps)) / 2


class Plain(Walker):
    """The plain ancestral sampler, which makes a step of the clock even where nothing is revealed."""

    def __init__(self, work: Sampling) -> None:
        super().__init__(work)
        self.network = self.setup.plain_network().eval()
        self.total = work.steps or 0
        self.calls_of_step = 1.0

    def fill(self) -> None:
        for _ in self.walk():
            pass

    def walk(self, given: int = 0) -> Generator[Any, None, None]:
        setup = self.setup
        states = plain_walk(self.network, setup.batch, setup.length, self.total, setup.precision)
        for step, (canvas, calls) in enumerate(states):
            self.calls_of_step = calls / max(step, 1)
            yield canvas

    @property
    def calls(self) -> float:
        """Network calls of a walk, by those of the last one, of which some may be missing."""
        return self.total * self.calls_of_step


CONTENDERS: dict[str, type[Walker]] = {"mdlm": Diffusion, "ar": Autoregressive, "plain": Plain}
