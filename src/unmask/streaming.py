"""Walks through the streamer interface of `transformers`: `put` for tokens that stay, `put_draft` for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from unmask.samplers.base import State
from unmask.scribe import Scribe


def relay(states: Iterator[State], scribe: Scribe, streamer: Any, rewrites: bool = False) -> Iterator[State]:
    """The states of one sequence, told to a streamer on their way.

    The prompt is put first, as `transformers` does. Then, call by call, tokens that stand behind written ones only, up
    to the end of the text; a streamer of diffusion drafts is shown the canvas behind them as well. Where written tokens
    may be masked again (`rewrites`), none stays before the last call.
    """
    told = 0
    for state in states:
        ids = state.ids[0][state.canvas.attention_mask[0]].tolist()
        end, masked = scribe.text_end(ids), scribe.mask in ids
        known = min(end, ids.index(scribe.mask)) if masked else end
        stays = state.call in (0, state.total) or not rewrites
        if state.call == 0 or (stays and known > told):
            streamer.put(torch.tensor(ids[told:known], dtype=torch.int64))
            told = known
        if masked and hasattr(streamer, "put_draft"):
            streamer.put_draft(torch.tensor(ids[told:end], dtype=torch.int64))
        yield state
    streamer.end()
