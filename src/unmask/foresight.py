"""How well it is known beforehand which masked positions a denoiser gets right: by its planner, and by its confidence.

Orders compare the positions of one canvas with one another. So the figure is, within a canvas, the chance that a
position where the denoiser is right has the higher score than one where it is wrong (the area under the ROC curve), and
its mean over canvases; ties count half. Errors are the spread over canvases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.data.rows import Rows
from unmask.likelihood import device_of, evaluating
from unmask.objectives.base import Noise
from unmask.objectives.planner import Planner
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule
from unmask.tally import BATCH
from unmask.times import low_discrepancy, van_der_corput


@dataclass(frozen=True)
class Foresight:
    """Of `canvases`: the share of masked positions that the denoiser gets `right`; the areas under the curve of its
    planner and of its confidence; by how much the planner's is larger, canvas by canvas."""

    canvases: int
    right: float
    planner: float
    planner_stderr: float
    confidence: float
    confidence_stderr: float
    gain: float
    gain_stderr: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; None where one is not known."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return (
            f"of {self.right:.1%} right, AUC {self.planner:.4f} ± {self.planner_stderr:.4f} by the planner, "
            f"{self.confidence:.4f} ± {self.confidence_stderr:.4f} by confidence "
            f"({self.gain:+.4f} ± {self.gain_stderr:.4f})"
        )


def foresee(
    denoiser: Any, objective: Planner, schedule: Schedule, rows: Rows, seed: int = 0, at_once: int = BATCH
) -> Foresight:
    """Judge a planner on rows, each masked once; the masks depend on the seed and the row's index alone."""
    areas, right, masked = [], 0, 0
    with evaluating(denoiser):
        for batch, noise in _masked_once(rows, seed, device_of(denoiser), at_once):
            corruption = objective.corrupt(batch, schedule, noise, denoiser.config)
            said = objective.foretell(denoiser, batch, corruption)
            canvas = corruption.rows // batch.input_ids.shape[1]
            areas += _areas(canvas, said.right, said.log_odds, said.log_top)
            right, masked = right + int(said.right.sum()), masked + len(said.right)
    return _summary(torch.tensor(areas, dtype=torch.float64).view(-1, 2), right / max(1, masked))


def area(score: Tensor, right: Tensor) -> float:
    """The chance that one of the scores [N] where something is right is above one where it is not; NaN without both."""
    above = score[right][:, None] - score[~right]
    return float(((above > 0).double() + 0.5 * (above == 0)).mean())


def _masked_once(rows: Rows, seed: int, device: torch.device, at_once: int) -> Iterator[tuple[Batch, Noise]]:
    offset = uniform(seed, Purpose.OFFSET, step=torch.zeros(len(rows), dtype=torch.int64))
    t = low_discrepancy(offset, van_der_corput(len(rows)), len(rows))
    for index in torch.arange(len(rows)).split(at_once):
        table = rows[index.numpy()]
        batch = Batch.of(*map(torch.from_numpy, (table.input_ids, table.attention_mask, table.frozen)))
        noise = Noise.draw(seed, 0, index, t[index], rows.length)
        yield batch.to(device), Noise(noise.t.to(device), noise.u.to(device))


def _areas(canvas_N: Tensor, right_N: Tensor, *scores_N: Tensor) -> list[list[float]]:
    """The areas of all scores in every canvas in which there is something right and something wrong."""
    found = []
    for canvas in canvas_N.unique():
        here = canvas_N == canvas
        if 0 < int(right_N[here].sum()) < int(here.sum()):
            found.append([area(score[here], right_N[here]) for score in scores_N])
    return found


def _summary(areas_C2: Tensor, right: float) -> Foresight:
    planner, confidence = areas_C2.unbind(dim=1)
    figures = [figure for values in (planner, confidence, planner - confidence) for figure in _mean(values)]
    return Foresight(len(areas_C2), right, *figures)


def _mean(values_C: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    error = float(values_C.std()) / math.sqrt(len(values_C)) if len(values_C) > 1 else math.nan
    return float(values_C.mean()), error
