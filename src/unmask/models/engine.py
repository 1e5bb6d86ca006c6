"""A network made ready for many calls: matrices in bf16 where that is fast, compiled blocks, recorded passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.graphs import Recording
from unmask.linear_cross_entropy import Projection
from unmask.models.compiling import compile_network, has_compiler

Dtype = Literal["auto", "float32", "bf16"]

WORTH_COMPILING = 1e16
"""Operations from which a job gains more by compiled blocks than the seconds it takes to compile them."""
CALLS_BEFORE_RECORDING = 1
MOST_RECORDINGS = 64
"""Recordings that are kept, twice as many as the walk of 64 sequences has shapes, since they end one after another; the
one that was not played for the longest time makes room for another."""

Key = tuple[torch.Size | None, ...]
Inputs = tuple[Tensor | None, ...]


def halve_trunk(network: Any) -> Any:
    """Embedding and blocks in bf16; the final norm and the head stay as they are, so that draws are not coarsened."""
    network.vocab_embed.to(torch.bfloat16)
    network.blocks.to(torch.bfloat16)
    return network


def fuse_draws(network: Any) -> Any:
    """Let tokens be drawn, and losses be reduced, by compiled kernels; the blocks stay as they are."""
    network.fused = True
    return network


def fast_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """What a trunk multiplies in on a device: by default bf16 on the GPUs that have it."""
    if dtype not in get_args(Dtype):
        raise UnmaskError(f"dtype={dtype!r} is none to compute in; give one of {', '.join(get_args(Dtype))}.")
    automatic = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if dtype == "bf16" or (dtype == "auto" and automatic) else torch.float32


def is_worth_compiling(network: Any, tokens: int) -> bool:
    """Whether a job that shows a network so many tokens gains by kernels that are made for it."""
    weights = sum(parameter.numel() for parameter in network.blocks.parameters())
    return network.device.type == "cuda" and has_compiler() and 2.0 * weights * tokens > WORTH_COMPILING


class Engine:
    """A denoiser for inference on a GPU that is called again and again with the same shapes.

    From the second call of a shape on, `hidden` replays a recorded graph: one launch in place of hundreds. The rows it
    gives may be overwritten by the next call, of whatever shape: recordings share their memory.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        self.config = network.config
        self._passes: dict[Key, _Pass] = {}
        self._seen: dict[Key, int] = {}

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return self.network.device

    @property
    def fused(self) -> bool:
        """Whether the network's work is compiled."""
        return self.network.fused

    def prepare(self, tokens: int) -> Engine:
        """Be ready to see so many tokens in all calls together: compile, if that is worth its while."""
        if not self.fused and is_worth_compiling(self.network, tokens):
            self.compile()
        return self

    def compile(self) -> Engine:
        """Compile the blocks at their next call; what was recorded before is forgotten."""
        compile_network(self.network)
        self._passes.clear()
        self._seen.clear()
        return self

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """As the network's own; gradients do not flow."""
        return self._play(self.network.hidden, (input_ids, self._told(alpha), attention_mask))

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """As the network's own; gradients do not flow."""
        return self._play(self.network.hidden_at, (input_ids, positions, self._told(alpha), attention_mask))

    def _told(self, alpha: Tensor | None) -> Tensor | None:
        return alpha if self.config.conditioned else None

    def _play(self, method: Callable[..., Tensor], inputs: Inputs) -> Tensor:
        key = tuple(None if tensor is None else tensor.shape for tensor in inputs)
        if key not in self._passes and not self._is_due(key):
            return method(*inputs)
        played = self._passes.pop(key, None) or self._record(method, inputs)
        self._passes[key] = played
        return played(inputs)

    def _is_due(self, key: Key) -> bool:
        """Whether this shape has been seen often enough to be worth a recording."""
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] > CALLS_BEFORE_RECORDING

    def _record(self, method: Callable[..., Tensor], inputs: Inputs) -> _Pass:
        """A pass in the memory of those that are kept; the first of them has been idle the longest."""
        if len(self._passes) >= MOST_RECORDINGS:
            idle = next(iter(self._passes))
            del self._passes[idle], self._seen[idle]
        return _Pass(method, inputs, beside=next((kept.recording for kept in self._passes.values()), None))

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """As the network's own."""
        return self.network.head(rows, mask_logit)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """As the network's own."""
        return self.network.plan(rows, log_top)

    def projection(self) -> Projection:
        """As the network's own."""
        return self.network.projection()


class _Pass:
    """One pass of a network, recorded for inputs of fixed shapes."""

    def __init__(self, method: Callable[..., Tensor], inputs: Inputs, beside: Recording | None) -> None:
        self._inputs = [tensor if tensor is None else tensor.clone() for tensor in inputs]
        self.recording = Recording(lambda: method(*self._inputs), beside=beside)

    def __call__(self, inputs: Inputs) -> Tensor:
        for kept, given in zip(self._inputs, inputs, strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        return self.recording()
