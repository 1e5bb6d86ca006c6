"""Merges the network calls of many batches and threads into few larger ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.generation_config import CPU_TOKENS_PER_CALL
from unmask.models.inference import InferenceEngine
from unmask.samplers.base import hidden_rows
from unmask.serving.metrics import Metrics

MAX_ROWS = 64
"""Rows that are written at the same time, and rows of one network call."""
WIDTH_STEP = {"cpu": 1, "cuda": 64}
"""Calls whose lengths round up to the same multiple of this are padded and made together. On a CPU that saves no time,
and the attention kernel for padded rows rounds differently."""


@dataclass(eq=False)
class Call:
    """A network call; `result` is its hidden states or an error once it has been made."""

    denoiser: Any
    ids: Tensor
    positions: Tensor | None
    alpha: Tensor | None
    attention_mask: Tensor | None
    result: Tensor | BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def group(self) -> tuple[Any, ...]:
        """Calls of the same group are made together."""
        step = WIDTH_STEP.get(self.ids.device.type, 1)
        padded = step == 1 and self.attention_mask is not None
        width = -(-self.ids.shape[1] // step)
        return id(self.denoiser), width, padded, self.alpha is None, self.positions is None


class SharedDenoiser:
    """A denoiser whose calls wait for those of other requests. Used instead of `lm.denoiser`."""

    def __init__(self, denoiser: Any, wait: Callable[[Call], Tensor]) -> None:
        self.denoiser, self._wait = denoiser, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def hidden(self, input_ids: Tensor, alpha: Any = None, attention_mask: Any = None, **inputs: Any) -> Tensor:
        """Hidden states [B, L, D]. A call with a key-value cache or an encoded source is made at once."""
        if inputs:
            inputs |= {} if alpha is None else {"alpha": alpha}
            return self.denoiser.hidden(input_ids, attention_mask=attention_mask, **inputs)
        return self._wait(Call(self.denoiser, input_ids, None, alpha, attention_mask))

    def hidden_at(
        self, input_ids: Tensor, positions: Tensor, alpha: Any = None, attention_mask: Any = None, **inputs: Any
    ) -> Tensor:
        """Hidden states [B, K, D] at `positions` [B, K]."""
        if inputs:
            return hidden_rows(self.denoiser, input_ids, positions, alpha, attention_mask, **inputs)
        return self._wait(Call(self.denoiser, input_ids, positions, alpha, attention_mask))


def make_calls(calls: list[Call], metrics: Metrics) -> None:
    """Make all calls, as few as possible, and set their results."""
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        groups.setdefault(call.group, []).append(call)
    for group in groups.values():
        part: list[Call] = []
        for call in group:
            if part and sum(len(one.ids) for one in part) + len(call.ids) > MAX_ROWS:
                _make_together(part, metrics, len(part) < len(calls))
                part = []
            part.append(call)
        _make_together(part, metrics, len(part) < len(calls))


def _make_together(calls: list[Call], metrics: Metrics, others: bool) -> None:
    """One network call; `others` tells that its result must outlive the next one."""
    rows = sum(len(call.ids) for call in calls)
    metrics.network_calls.inc()
    metrics.batch_size.observe(rows)
    try:
        denoiser, hidden = calls[0].denoiser, _merged(calls, rows)
    except Exception as error:
        for call in calls:
            call.result = error
        return
    start = 0
    for call in calls:
        width = call.ids.shape[1] if call.positions is None else call.positions.shape[1]
        call.result = hidden[start : start + len(call.ids), :width]
        if others and isinstance(denoiser, InferenceEngine):
            call.result = call.result.clone()
        start += len(call.ids)


def _merged(calls: list[Call], rows: int) -> Tensor:
    """The hidden states of all calls, padded to one length."""
    first = calls[0]
    extra = _round_up(rows) - rows if isinstance(first.denoiser, InferenceEngine) else 0
    if len(calls) == 1 and not extra:
        return _run(first.denoiser, first.ids, first.positions, first.alpha, first.attention_mask)
    width = max(call.ids.shape[1] for call in calls)

    def join(tensors: list[Tensor], columns: int | None = None, value: Any = 0) -> Tensor:
        """Tensors [b, ...] below each other, filled up to `columns`, and copies of the first row."""
        if columns is not None and any(one.shape[1] < columns for one in tensors):
            pad = torch.nn.functional.pad
            tensors = [pad(one, (0, columns - one.shape[1]), value=value) for one in tensors]
        return torch.cat([*tensors, tensors[0][:1].expand(extra, *tensors[0].shape[1:])])

    ids = join([call.ids for call in calls], width)
    attention_mask = None
    if any(call.attention_mask is not None or call.ids.shape[1] < width for call in calls):
        full = [torch.ones_like(call.ids) if call.attention_mask is None else call.attention_mask for call in calls]
        attention_mask = join([mask.bool() for mask in full], width, False)
    alpha = None
    if first.alpha is not None:
        alphas = [(call.ids, torch.as_tensor(call.alpha).float()) for call in calls]
        alpha = join([one.to(ids.device).flatten().expand(len(ids)) for ids, one in alphas])
    positions = None
    if first.positions is not None:
        most = max(call.positions.shape[1] for call in calls)  # type: ignore[union-attr]
        positions = join([call.positions for call in calls], most)  # type: ignore[misc]
    return _run(first.denoiser, ids, positions, alpha, attention_mask)


def _run(
    denoiser: Any, ids: Tensor, positions: Tensor | None, alpha: Tensor | None, attention_mask: Tensor | None
) -> Tensor:
    size = max(1, CPU_TOKENS_PER_CALL // ids.shape[1])
    if ids.device.type == "cpu" and len(ids) > size:
        optional = (positions, alpha, attention_mask)
        starts = range(0, len(ids), size)
        parts = [[one if one is None else one[start : start + size] for one in optional] for start in starts]
        return torch.cat([_run(denoiser, ids[at : at + size], *part) for at, part in zip(starts, parts, strict=True)])
    if alpha is None and positions is None:  # an autoregressive network takes no alpha
        return denoiser.hidden(ids, attention_mask=attention_mask)
    return hidden_rows(denoiser, ids, positions, alpha, attention_mask)


def _round_up(rows: int) -> int:
    """The number of rows of a captured graph, so that few are captured."""
    return 1 << (rows - 1).bit_length() if rows < 8 else -(-rows // 8) * 8
