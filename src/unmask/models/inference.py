"""A network made ready for many calls: matrices in bf16 where that is fast, compiled blocks, recorded passes."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Any, Literal, TypeVar, get_args

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.cross_entropy import Projection

T = TypeVar("T")

WARM_UP_CALLS = 2
"""Calls before the recording, in which kernels are chosen and libraries make their workspaces."""


_alone = Lock()
"""Held while a graph is recorded or memory is pinned: CUDA may give up a recording during which another thread pins."""


def pin_memory(tensor: Tensor) -> Tensor:
    """A copy that a GPU can fetch by itself."""
    with _alone:
        return tensor.pin_memory()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Let garbage lie: a graph or a kernel that is finalised would end the recording of another one.

    pytorch/pytorch#161037.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class CudaGraph:
    """`work` as a graph. What it returns lies in the same memory at every call, and must be copied to be kept.

    It is called `warm_up` times before, so that it must do the same whenever its inputs are the same; whoever has
    called it already says 0. Recordings that are never played at once may share memory: `beside` names another one.
    """

    def __init__(self, work: Callable[[], T], warm_up: int = WARM_UP_CALLS, beside: CudaGraph | None = None) -> None:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                work()
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        pool = None if beside is None else beside._graph.pool()
        # Other threads, such as those that make the next training batches, may go on meanwhile.
        with (
            _alone,
            no_garbage_collection(),
            torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"),
        ):
            self._result: Any = work()

    def __call__(self) -> Any:
        self._graph.replay()
        return self._result


def can_capture(denoiser: Any) -> bool:
    """Whether a network computes on a GPU, by itself: one sliced over processes fetches its weights as it goes."""
    return all(weight.is_cuda and not hasattr(weight, "device_mesh") for weight in denoiser.parameters())


def select_device(name: str | torch.device | None, dtype: torch.dtype = torch.float32) -> torch.device:
    """The device of this name, tried out with numbers of a type; without a name the GPU where there is one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=dtype, device=device).add_(1).item()
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on about itself
        raise UnmaskError(f"The device '{name}' cannot be used here ({reason}); name another, or none.") from error
    return device


ACTIVATION_MEMORY_BUDGET = 0.8
"""Share of the activations that torch's partitioner would keep by itself that it is allowed to keep."""
RECOMPILE_LIMIT = 64
"""Kinds of calls (lengths, batches, with pads or without, some rows or all) that get kernels of their own; torch stops
at 8, and what comes after that runs as if nothing were compiled."""


def has_triton() -> bool:
    """Whether torch can make kernels for a GPU here."""
    return importlib.util.find_spec("triton") is not None


def compile_blocks(network: Any) -> None:
    """From now on the blocks run compiled. What surrounds them, wrappers and hooks included, stays as it is.

    Blocks are alike, so that the kernels of the first serve all. A network without `blocks` is left alone.
    """
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, RECOMPILE_LIMIT)
    for block in getattr(network, "blocks", ()):
        block.forward = _frugal(torch.compile(block.forward))
    network.fused = True


def _frugal(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep for the backward pass what matrices and attention have made, and make again what is cheap."""

    @wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Tensor:
        with functorch_config.patch(activation_memory_budget=ACTIVATION_MEMORY_BUDGET):
            return compiled(*args, **kwargs)

    return run


Dtype = Literal["auto", "float32", "bf16"]

MIN_OPERATIONS_TO_COMPILE = 1e16
"""Operations from which a job gains more by compiled blocks than the seconds it takes to compile them."""
CALLS_BEFORE_CAPTURE = 1
MAX_GRAPHS = 64
"""Recordings that are kept, twice as many as the walk of 64 sequences has shapes, since they end one after another; the
one that was not played for the longest time makes room for another."""

Key = tuple[torch.Size | None, ...]
Inputs = tuple[Tensor | None, ...]


def cast_trunk_to_bf16(network: Any) -> Any:
    """Embedding and blocks in bf16; the final norm and the head stay as they are, so that draws are not coarsened."""
    network.vocab_embed.to(torch.bfloat16)
    network.blocks.to(torch.bfloat16)
    return network


def use_fused_kernels(network: Any) -> Any:
    """Let tokens be drawn, and losses be reduced, by compiled kernels; the blocks stay as they are."""
    network.fused = True
    return network


def select_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """What a trunk multiplies in on a device: by default bf16 on the GPUs that have it."""
    if dtype not in get_args(Dtype):
        raise UnmaskError(f"dtype={dtype!r} is none to compute in; give one of {', '.join(get_args(Dtype))}.")
    automatic = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if dtype == "bf16" or (dtype == "auto" and automatic) else torch.float32


def worth_compiling(network: Any, tokens: int) -> bool:
    """Whether a job that shows a network so many tokens gains by kernels that are made for it."""
    weights = sum(parameter.numel() for parameter in network.blocks.parameters())
    return network.device.type == "cuda" and has_triton() and 2.0 * weights * tokens > MIN_OPERATIONS_TO_COMPILE


class InferenceEngine:
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

    def prepare(self, tokens: int) -> InferenceEngine:
        """Be ready to see so many tokens in all calls together: compile, if that is worth its while."""
        if not self.fused and worth_compiling(self.network, tokens):
            self.compile()
        return self

    def compile(self) -> InferenceEngine:
        """Compile the blocks at their next call; what was recorded before is forgotten."""
        compile_blocks(self.network)
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
        return self._seen[key] > CALLS_BEFORE_CAPTURE

    def _record(self, method: Callable[..., Tensor], inputs: Inputs) -> _Pass:
        """A pass in the memory of those that are kept; the first of them has been idle the longest."""
        if len(self._passes) >= MAX_GRAPHS:
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

    def __init__(self, method: Callable[..., Tensor], inputs: Inputs, beside: CudaGraph | None) -> None:
        self._inputs = [tensor if tensor is None else tensor.clone() for tensor in inputs]
        self.recording = CudaGraph(lambda: method(*self._inputs), beside=beside)

    def __call__(self, inputs: Inputs) -> Tensor:
        for kept, given in zip(self._inputs, inputs, strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        return self.recording()
