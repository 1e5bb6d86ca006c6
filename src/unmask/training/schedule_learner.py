"""What reshapes a learned schedule while a network trains: a running histogram of squared losses by mask rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.objectives.base import LossTerms
from unmask.schedules import KNOTS, Learned, Schedule

SMOOTHING = 1.5
"""Stretches between knots over which the influence of a loss falls by a factor of e."""

Reduce = Callable[[Tensor], Tensor]


def keeper_of(schedule: Schedule, device: torch.device) -> ScheduleKeeper:
    """Who holds the schedule of a run: a learner if it learns."""
    if isinstance(schedule, Learned) and schedule.every is not None:
        return ScheduleLearner(schedule, schedule.every, device)
    return ScheduleKeeper(schedule)


class ScheduleKeeper:
    """Holds a schedule that stays as it is. `tensors` is all that a checkpoint must hold of its state, by name."""

    learns = False
    """Whether the schedule of a step depends on the steps before it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.tensors: dict[str, Tensor] = {}

    def add(self, terms: LossTerms) -> None:
        """Take in one micro-batch of this process. Nothing here waits for the device."""

    def end_step(self, step: int, reduce: Reduce) -> Schedule:
        """The schedule of the steps after `step` (1, 2, ...); `reduce` adds a tensor up over all processes."""
        return self.schedule

    def recall(self) -> Schedule:
        """The schedule as it was when a checkpoint was written, once that has put the tensors back."""
        return self.schedule


class ScheduleLearner(ScheduleKeeper):
    """Sums of squared losses and counts of sequences over the 64 stretches of v = sqrt(1 - alpha), and what they teach.

    A loss is the summed cross-entropy of the masked tokens of one sequence. The sums are those of all processes.
    """

    schedule: Learned
    learns = True

    def __init__(self, schedule: Learned, every: int, device: torch.device) -> None:
        super().__init__(schedule)
        self.every = every
        self.tensors = {
            "squares": torch.zeros(KNOTS, device=device),
            "counts": torch.zeros(KNOTS, device=device),
            "knots": torch.tensor(schedule.times, dtype=torch.float64),
        }
        self._step = torch.zeros(2, KNOTS, device=device)

    @torch.no_grad()
    def add(self, terms: LossTerms) -> None:
        if terms.masked is None or terms.mask_rate is None:
            return
        square = (terms.cross_entropy * terms.masked).sum(dim=1).square()
        seen = square.isfinite()
        here = _stretch(terms.mask_rate) & seen[:, None]
        self._step += torch.stack([square.where(seen, 0.0), seen])[:, :, None].mul(here).sum(dim=1)

    @torch.no_grad()
    def end_step(self, step: int, reduce: Reduce) -> Learned:
        squares, counts = reduce(self._step)
        self.tensors["squares"] += squares
        self.tensors["counts"] += counts
        self._step.zero_()
        due = step >= self.schedule.warmup and step % self.every == 0
        return self.refresh() if due else self.schedule

    def recall(self) -> Learned:
        times = tuple(self.tensors["knots"].tolist())
        if times != self.schedule.times:
            self.schedule = self.schedule.model_copy(update={"knots": times})
        return self.schedule

    @torch.no_grad()
    def refresh(self) -> Learned:
        """Set the knots by the histogram, and let part of it fade. Waits for the device."""
        squares, counts = (self.tensors[name].cpu().double() for name in ("squares", "counts"))
        if squares.sum() > 0:
            self.schedule = self.schedule.with_density(best_density(squares, counts).tolist())
            self.tensors["knots"].copy_(torch.tensor(self.schedule.times, dtype=torch.float64))
        self.tensors["squares"] *= self.schedule.decay
        self.tensors["counts"] *= self.schedule.decay
        return self.schedule


def best_density(squares: Tensor, counts: Tensor) -> Tensor:
    """[64] the density over v of least variance, in any unit, from sums of squared losses and counts [64].

    A density p over u is p(u) 2v over v = sqrt(u), so sqrt(E[(loss/u)^2 | u]) becomes sqrt(E[loss^2 | u] / u). Within a
    stretch v is uniform and E[loss^2 | u]/u all but constant: it is the mean square over the mean of u, in the first
    stretch too, where single terms loss^2/u have infinite variance. Neighbours lend to each other by their counts.
    """
    end = torch.arange(1, KNOTS + 1, dtype=squares.dtype)
    mean_rate = (end**3 - (end - 1) ** 3) / (3 * KNOTS**2)
    kernel = torch.exp(-(end[:, None] - end).abs() / SMOOTHING)
    return (kernel @ (squares / mean_rate) / (kernel @ counts)).sqrt()


def _stretch(mask_rate: Tensor) -> Tensor:
    """[B, 64] one-hot: between which two knots the square root of a mask rate [B] lies."""
    place = (KNOTS * mask_rate.sqrt()).long().clamp_max(KNOTS - 1)
    return place[:, None] == torch.arange(KNOTS, device=mask_rate.device)
