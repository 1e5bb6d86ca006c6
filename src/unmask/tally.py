"""The draws of a bound: what is asked of a network, in which order, and what the answers add up to.

Everything random depends on a row's index alone. Batches are made in a thread of their own and answers are taken up one
call later, so that neither the network nor a GPU waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.data.prefetch import prefetch
from unmask.data.rows import Rows
from unmask.graphs import pin
from unmask.objectives.base import Corruption, LossTerms, Noise
from unmask.random import Purpose, uniform
from unmask.times import low_discrepancy, van_der_corput

OFFSETS = 16
BATCH = 32
TOKENS_AT_ONCE = 1 << 16
"""What a GPU likes to see in one call."""

Progress = Callable[[float], None]
Floats = npt.NDArray[np.float64]
Corrupt = Callable[[Batch, Noise], Corruption]
Ask = Callable[[Batch, Corruption], LossTerms]


@dataclass(frozen=True)
class Draws:
    """How often a bound is drawn: `offsets` independent sets of `passes` draws a row, `batch_size` at once.

    Without a batch size it is what suits the device; no result depends on it.
    """

    seed: int = 0
    offsets: int = OFFSETS
    passes: int = 1
    batch_size: int | None = None

    def at_once(self, length: int, device: torch.device) -> int:
        """Rows of so many tokens that are asked about in one call."""
        if self.batch_size is not None:
            return self.batch_size
        return max(BATCH, TOKENS_AT_ONCE // length) if device.type == "cuda" else BATCH


@dataclass(frozen=True)
class Tally:
    """What draws add up to: `nats` [offsets, documents] a pass, and `tokens` [documents] that are counted."""

    nats: Floats
    tokens: Floats


@dataclass(frozen=True)
class _Question:
    """One call of the network: `document` and `place` [B, L] say where each position's nats belong.

    All calls have the same shape; of the last one only `size` rows are meant.
    """

    batch: Batch
    corruption: Corruption
    document: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    size: int

    def on(self, device: torch.device) -> tuple[Batch, Corruption]:
        """What the network is given."""
        if device.type != "cuda":
            return self.batch.to(device), self.corruption.each(lambda tensor: tensor.to(device))
        batch, corruption = self.batch.each(pin), self.corruption.each(pin)
        return batch.to(device), corruption.each(lambda tensor: tensor.to(device, non_blocking=True))


class _Answer:
    """Nats and counted positions [B, L] on their way to the CPU. `read` waits for them, and for nothing after them."""

    def __init__(self, terms: LossTerms) -> None:
        self._values = [_leaving(value) for value in (terms.nelbo, terms.counted)]
        self._there = torch.cuda.Event() if terms.nelbo.is_cuda else None
        if self._there is not None:
            self._there.record()

    def read(self, size: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Those of the first `size` rows."""
        if self._there is not None:
            self._there.synchronize()
        nats, counted = (value[:size].numpy() for value in self._values)
        return nats.astype(np.float64), counted


def tally(
    ask: Ask,
    corrupt: Corrupt,
    rows: Rows,
    draws: Draws,
    device: torch.device,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
) -> Tally:
    """Draw what `share` = (which, of how many) asks for: every k-th batch; the tallies of all shares add up.

    `corrupt` is the noise's work, on the CPU; `ask` the network's, on the device. All shares ask equally often (the
    last question of some counts nothing), as sharded networks need.
    """
    found = Tally(np.zeros((draws.offsets, rows.documents)), np.zeros(rows.documents))

    def take(question: _Question, answer: _Answer) -> None:
        _add(found, question, *answer.read(question.size), draws)
        if progress is not None:
            progress(question.size)

    waiting: tuple[_Question, _Answer] | None = None
    with closing(prefetch(_questions(corrupt, rows, draws, device, share))) as coming:
        for question in coming:
            answer = _Answer(ask(*question.on(device)))
            if waiting is not None:
                take(*waiting)
            waiting = question, answer
    if waiting is not None:
        take(*waiting)
    return found


def _questions(
    corrupt: Corrupt, rows: Rows, draws: Draws, device: torch.device, share: tuple[int, int]
) -> Iterator[_Question]:
    strata = van_der_corput(len(rows) * draws.passes)
    total = len(rows) * draws.passes * draws.offsets
    at_once = min(total, draws.at_once(rows.length, device))
    which, shares = share
    batches = -(-total // at_once)
    for number in range(which, -(-batches // shares) * shares, shares):
        item = torch.arange(number * at_once, (number + 1) * at_once)
        size = int((item < total).sum())
        draw, offset = item.clamp_max(total - 1) // draws.offsets, item % draws.offsets
        table = rows[(draw // draws.passes).numpy()]
        batch = Batch.of(*map(torch.from_numpy, (table.input_ids, table.attention_mask, table.frozen)))
        place = offset.numpy()[:, None] * rows.documents + table.document
        noise = _noise(draws.seed, offset, draw, strata, batch.input_ids.shape[1])
        yield _Question(batch, corrupt(batch, noise), table.document, place, size)


def _noise(seed: int, offset: Tensor, draw: Tensor, strata: Tensor, length: int) -> Noise:
    """The noise of draws number `draw` [B], each of the set that belongs to one of the `offset`s [B]."""
    t = low_discrepancy(uniform(seed, Purpose.OFFSET, step=offset), strata[draw], len(strata))
    return Noise.draw(seed, offset[:, None], draw, t, length)


def _leaving(value: Tensor) -> Tensor:
    """The value on the CPU, or on its way there."""
    if not value.is_cuda:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)


def _add(found: Tally, question: _Question, nats: Floats, counted: npt.NDArray[np.bool_], draws: Draws) -> None:
    place, document = question.place[: question.size][counted], question.document[: question.size][counted]
    np.add.at(found.nats.reshape(-1), place, nats[counted] / draws.passes)
    np.add.at(found.tokens, document, 1.0 / (draws.offsets * draws.passes))
