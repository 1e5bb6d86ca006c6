"""Probabilities of given answers at a blank of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.inference import device_of
from unmask.objectives.base import Noise
from unmask.objectives.subs import MaskCount
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule, low_discrepancy
from unmask.text_processor import TextProcessor, check_text, parse_blanks

OFFSETS, PASSES = 16, 4
"""Independent draws of the bound of an answer, and stratified network passes of each."""


@dataclass(frozen=True)
class Choice:
    """An answer with its probability among all given answers and the Monte-Carlo error of that.

    `nats` is -log p(answer | the rest of the text), or a bound on it unless `exact`.
    """

    text: str
    probability: float
    error: float
    nats: float
    exact: bool


def split_slot(text: Any, choices: Any) -> tuple[str, str]:
    """The text before and after the only blank, which must be [MASK]."""
    parts = parse_blanks(check_text(text))
    blanks = [place for place, part in enumerate(parts) if not isinstance(part, str)]
    if len(blanks) != 1 or parts[blanks[0]] != 1:
        raise UnmaskError(f"The text must have one [MASK] where the answers stand, got {text!r}.")
    valid = isinstance(choices, Sequence) and not isinstance(choices, str) and len(set(map(str, choices))) > 1
    if not valid or len(set(map(str, choices))) < len(choices):
        raise UnmaskError(f"choices must be a list of at least two different answers, got {choices!r}.")
    for choice in choices:
        if not check_text(choice).strip():
            raise UnmaskError(f"An answer must not be blank, got {choice!r}.")
    before, after = parts[: blanks[0]], parts[blanks[0] + 1 :]
    return str(before[0]) if before else "", str(after[0]) if after else ""


def answer_rows(processor: TextProcessor, text: str, choices: Sequence[str]) -> list[tuple[list[int], range]]:
    """The row of the text with each answer, and the positions of the answer in it."""
    before, after = split_slot(text, choices)
    answers = list(choices)
    if processor.has_leading_spaces and before.endswith(" "):
        before, answers = before[:-1], [f" {answer.lstrip(' ')}" for answer in answers]
    head, tail, *ids = processor.encode([before, after, *answers])
    rows = []
    for one, choice in zip(ids, choices, strict=True):
        if not one:
            raise UnmaskError(f"The answer {choice!r} has no tokens; give another.")
        rows.append((processor.text_row([*head, *one, *tail]), range(len(head), len(head) + len(one))))
    return rows


@torch.no_grad()
def answer_nats(
    denoiser: Any, schedule: Schedule, processor: TextProcessor, rows: list[tuple[list[int], range]], seed: int
) -> Tensor:
    """[offsets, choices] -log p of each answer, the same in all offsets for answers of one token.

    Those are read from one network call. The bounds of longer answers have common random numbers: token i of every
    answer is masked by the same numbers.
    """
    out = torch.zeros(OFFSETS, len(rows), dtype=torch.float64)
    device = device_of(denoiser)
    if single := [i for i, (_, open_) in enumerate(rows) if len(open_) == 1]:
        row, (place,) = rows[single[0]]
        ids = torch.tensor([[*row[:place], processor.mask_token_id, *row[place + 1 :]]], device=device)
        hidden = denoiser.hidden(ids, alpha=torch.full((1,), 1.0 - 1.0 / len(row), device=device))[:, place]
        log_p = denoiser.head(hidden)[0].double().log_softmax(-1)
        out[:, single] = -log_p[[rows[i][0][place] for i in single]].cpu()
    draw = torch.arange(OFFSETS * PASSES, device=device)
    t = low_discrepancy(uniform(seed, Purpose.OFFSET, draw % OFFSETS), draw // OFFSETS, PASSES)
    for i, (row, open_) in enumerate(rows):
        if len(open_) == 1:
            continue
        position = torch.arange(len(row), device=device)
        u = uniform(seed, Purpose.MASK, draw[:, None], position=position[None] - open_.start)
        frozen = (position < open_.start) | (position >= open_.stop)
        ids = torch.tensor(row, device=device).expand(len(draw), -1)
        batch = Batch.of(ids, frozen=frozen.expand(len(draw), -1))
        nats = MaskCount().loss(denoiser, batch, schedule, Noise(t, u)).nelbo.sum(dim=1)
        out[:, i] = nats.double().view(PASSES, OFFSETS).mean(dim=0).cpu()
    return out


def compare(choices: Sequence[str], nats_RC: Tensor, exact: Sequence[bool]) -> list[Choice]:
    """The probabilities of the answers from draws [R, C] of their nats, with jackknife errors over the draws."""
    mean, count = nats_RC.mean(dim=0), len(nats_RC)
    probability = (-mean).softmax(-1)
    left_out = (-(count * mean - nats_RC) / max(count - 1, 1)).softmax(-1)
    error = ((left_out - left_out.mean(dim=0)).square().sum(dim=0) * (count - 1) / count).sqrt()
    if all(exact):
        error = torch.zeros_like(error)
    return [
        Choice(*values)
        for values in zip(choices, probability.tolist(), error.tolist(), mean.tolist(), exact, strict=True)
    ]
