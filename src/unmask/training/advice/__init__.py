"""The doctor of a run: reads its data and its log, and says in plain words what looks wrong and what to do about it."""

from __future__ import annotations

from unmask.training.advice.advisor import Advisor
from unmask.training.advice.data import advice_on_data
from unmask.training.advice.history import Yardstick

__all__ = ["Advisor", "Yardstick", "advice_on_data"]
