"""Training on Accelerate: the loop and its pieces. Whoever needs to know of devices and processes lives here."""

from __future__ import annotations

from unmask.training.loop import Interrupted, TrainingResult, train
from unmask.training.progress import Progress, progress_for
from unmask.training.world import speaks

__all__ = ["Interrupted", "Progress", "TrainingResult", "progress_for", "speaks", "train"]
