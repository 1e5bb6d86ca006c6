"""Semi-autoregressive sampling: blocks from left to right, and within a block the positions in an order of choice."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from unmask.errors import UnmaskError
from unmask.samplers.base import Canvas, State
from unmask.samplers.ordered import OrderedPlan, OrderedSampler, tokens_per_call


class BlockSampler(OrderedSampler):
    """Blocks of `size` masked positions from left to right, each finished before the next one begins.

    The network sees the whole canvas, with masks in the blocks that follow. Within a block the calls write the
    positions with the highest scores (`order`). The default, by confidence, is low-confidence remasking as in LLaDA
    (arXiv 2502.09992): predict all positions, keep the most confident ones, mask the others again. `steps` are the
    calls for all blocks together, shared out evenly. A single block is `OrderedSampler`, blocks of one position write
    from left to right.
    """

    name: Literal["block"] = "block"  # type: ignore[assignment]
    order: Literal["confidence", "margin", "entropy"] = "confidence"
    size: int = Field(default=32, ge=1)

    def begin(self, canvas: Canvas) -> State:
        state, masked = super().begin(canvas), canvas.masked
        plans = [self.calls_by_block(n) for n in masked.sum(dim=1).tolist()]
        counts = [[count for block in plan for count in block] for plan in plans]
        total = max(map(len, counts))
        padded = torch.tensor([row + [0] * (total - len(row)) for row in counts], device=canvas.ids.device)
        calls = torch.tensor([len(row) for row in counts], device=canvas.ids.device)
        # the first call of every block, then that of every position
        starts = [[sum(map(len, plan[:block])) for block in range(len(plan))] or [0] for plan in plans]
        width = max(map(len, starts))
        starts_BN = torch.tensor([row + [0] * (width - len(row)) for row in starts], device=canvas.ids.device)
        block_BL = ((masked.cumsum(dim=1) - 1).clamp_min(0) // self.size).clamp_max(width - 1)
        plan = OrderedPlan(padded, state.plan.scores, starts_BN.gather(1, block_BL))
        return State.start(canvas, calls, total, plan)

    def calls_by_block(self, masks: int) -> list[list[int]]:
        """For every block of a sequence with so many masks, the number of positions that each of its calls writes."""
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
        return [
            tokens_per_call(size, end - start, self.pace)
            for size, start, end in zip(sizes, [0, *ends], ends, strict=False)
        ]
