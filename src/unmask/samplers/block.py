"""Semi-autoregressive sampling: blocks from left to right, and within a block the positions in an order of choice."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Literal

import torch
from pydantic import Field
from torch.nn.utils.rnn import pad_sequence

from unmask.errors import UnmaskError
from unmask.samplers.base import Canvas, State
from unmask.samplers.ordered import OrderedSampler, start_ordered, tokens_per_call


class BlockSampler(OrderedSampler):
    """Blocks of `size` masked positions from left to right, each finished before the next one begins.

    The network sees the whole canvas, with masks in the blocks that follow. Within a block the calls write the
    positions with the highest scores (`order`). The default, by confidence, is low-confidence remasking as in LLaDA
    (arXiv 2502.09992): predict all positions, keep the most confident ones, mask the others again. `steps` is the
    number of calls for all blocks together, divided evenly among them. A single block is `OrderedSampler`; blocks of
    one position write from left to right.
    """

    name: Literal["block"] = "block"  # type: ignore[assignment]
    order: Literal["confidence", "margin", "entropy"] = "confidence"
    size: int = Field(default=32, ge=1)

    def begin(self, canvas: Canvas) -> State:
        masked = canvas.masked
        plans = [self.calls_by_block(n) for n in masked.sum(dim=1).tolist()]
        counts = [[count for block in plan for count in block] for plan in plans]
        # the first call of every block, then that of every position
        starts = [torch.tensor([0, *accumulate(map(len, plan))]) for plan in plans]
        starts_BN = pad_sequence(starts, batch_first=True).to(canvas.ids.device)
        block_BL = (masked.cumsum(dim=1) - 1).clamp_min(0) // self.size
        return start_ordered(canvas, counts, scores=None, first_call=starts_BN.gather(1, block_BL))

    def calls_by_block(self, masks: int) -> list[list[int]]:
        """For each block of a sequence with `masks` masks, the number of positions that each of its calls writes."""
        blocks = -(-masks // self.size)
        steps = masks if self.steps is None else min(self.steps, masks)
        if steps < blocks:
            raise UnmaskError(
                f"steps must be at least {blocks}, one call for each block of {self.size} of {masks} tokens, got "
                f"{self.steps}; increase steps or the size of the blocks."
            )
        sizes = [min(self.size, masks - self.size * block) for block in range(blocks)]
        if self.steps is None:
            return [tokens_per_call(size, None, self.pace) for size in sizes]
        ends = [steps * (block + 1) // blocks for block in range(blocks)]
        calls = [end - start for start, end in pairwise([0, *ends])]
        return [tokens_per_call(size, count, self.pace) for size, count in zip(sizes, calls, strict=True)]
