"""Walks through the streamer interface of `transformers`: `put` for tokens that stay, `put_draft` for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from unmask.samplers.base import State
from unmask.scribe import Scribe


def relay(states: Iterator[State], scribe: Scribe, streamer: Any) -> Iterator[State]:
    """The states of one sequence, told to a streamer on their way.

    The prompt is put first, as `transformers` does. Then, call by call, tokens that stand behind written ones only, up
    to the end of the text; a streamer of diffusion drafts is shown the canvas behind them as well.
    """
    told = -1
    for state in states:
        ids = state.ids[0][state.canvas.attention_mask[0]].tolist()
        known = ids.index(scribe.mask) if scribe.mask in ids else len(ids)
        known = min(known, scribe.text_end(ids))
        if told < 0 or known > told:
            streamer.put(torch.tensor(ids[max(0, told) : known], dtype=torch.int64))
            told = known
        if hasattr(streamer, "put_draft") and scribe.mask in ids:
            streamer.put_draft(torch.tensor(ids[known : scribe.text_end(ids)], dtype=torch.int64))
        yield state
    streamer.end()
