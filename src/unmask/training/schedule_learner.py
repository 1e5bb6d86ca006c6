"""Learning a schedule during training, from a running histogram of squared losses by mask rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.objectives.base import LossTerms
from unmask.schedules import KNOTS, Learned

SMOOTHING = 1.5
"""Bins over which the influence of a loss falls by a factor of e."""


class ScheduleLearner:
    """Sums of squared losses and counts of sequences in 64 bins of v = sqrt(1 - alpha), and the schedule they imply.

    The loss of a sequence is the summed cross-entropy of its masked tokens. `tensors`, the sums over all processes and
    the knots, are the state to save in a checkpoint.
    """

    def __init__(self, schedule: Learned, every: int, device: torch.device) -> None:
        self.schedule = schedule
        self.every = every
        self.tensors = {
            "squares": torch.zeros(KNOTS, device=device),
            "counts": torch.zeros(KNOTS, device=device),
            "knots": torch.tensor(schedule.times, dtype=torch.float64),
        }
        self._step = torch.zeros(2, KNOTS, device=device)

    @torch.no_grad()
    def add(self, terms: LossTerms) -> None:
        """Add one micro-batch of this process. Does not wait for the device."""
        if terms.masked is None or terms.mask_rate is None:
            return
        square = (terms.cross_entropy * terms.masked).sum(dim=1).square()
        finite = square.isfinite()
        bin_B = (KNOTS * terms.mask_rate.sqrt()).long().clamp_max(KNOTS - 1)
        in_bin = (bin_B[:, None] == torch.arange(KNOTS, device=bin_B.device)) & finite[:, None]
        self._step += torch.stack([square.where(finite, 0.0), finite])[:, :, None].mul(in_bin).sum(dim=1)

    @torch.no_grad()
    def end_step(self, step: int, reduce: Callable[[Tensor], Tensor]) -> Learned:
        """The schedule for the steps after `step` (1, 2, ...); `reduce` sums a tensor over all processes.

        Every `every` steps after the warm-up, the histogram sets the knots and decays.
        """
        squares, counts = reduce(self._step)
        self.tensors["squares"] += squares
        self.tensors["counts"] += counts
        self._step.zero_()
        if step >= self.schedule.warmup and step % self.every == 0:  # waits for the device
            squares, counts = (self.tensors[name].cpu().double() for name in ("squares", "counts"))
            if squares.sum() > 0:
                self.schedule = self.schedule.with_density(best_density(squares, counts).tolist())
                self.tensors["knots"].copy_(torch.tensor(self.schedule.times, dtype=torch.float64))
            self.tensors["squares"] *= self.schedule.decay
            self.tensors["counts"] *= self.schedule.decay
        return self.schedule

    def restore(self) -> Learned:
        """The schedule of a checkpoint, after its state was copied into `tensors`."""
        times = tuple(self.tensors["knots"].tolist())
        if times != self.schedule.times:
            self.schedule = self.schedule.model_copy(update={"knots": times})
        return self.schedule


def best_density(squares: Tensor, counts: Tensor) -> Tensor:
    """[64] the unnormalised density over v of least variance, from sums of squared losses and counts [64].

    A density p over u = 1 - alpha is p(u) 2v over v = sqrt(u), so sqrt(E[(loss/u)^2 | u]) becomes
    sqrt(E[loss^2 | u] / u). Within a bin v is uniform and E[loss^2 | u] / u nearly constant: it is estimated by the
    mean square over the mean of u, also in the first bin, where single terms loss^2/u have infinite variance. Bins are
    smoothed with their neighbours in proportion to their counts.
    """
    end = torch.arange(1, KNOTS + 1, dtype=squares.dtype)
    mean_rate = (end**3 - (end - 1) ** 3) / (3 * KNOTS**2)
    kernel = torch.exp(-(end[:, None] - end).abs() / SMOOTHING)
    return (kernel @ (squares / mean_rate) / (kernel @ counts)).sqrt()
