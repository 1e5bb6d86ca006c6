"""Fast inference: devices and dtypes, compiled blocks, CUDA graphs, and the engine that combines them."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Any, Literal, get_args

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
from torch import Tensor, nn

from unmask.errors import UnmaskError, first_line
from unmask.models.cross_entropy import Projection

Dtype = Literal["auto", "float32", "bf16"]

ACTIVATION_MEMORY_BUDGET = 0.8
"""The share of the activations kept by default that torch's partitioner may keep for the backward pass."""
RECOMPILE_LIMIT = 64
"""Variants of a call (length, batch, padding, some rows or all) that are compiled, 8 by default in torch. Further
variants run uncompiled."""
MIN_OPERATIONS_TO_COMPILE = 1e16
"""Operations from which compiled blocks save more time than compiling them takes."""
WARM_UP_CALLS = 2
"""Calls before a capture, in which libraries choose kernels and allocate workspaces."""
CALLS_BEFORE_CAPTURE = 1
MAX_GRAPHS = 64
"""Graphs that an engine keeps, twice the number of shapes in one sampling run of 64 sequences. The least recently used
one is dropped first."""


# ---- devices and dtypes ---------------------------------------------------------------------------------------------


def select_device(name: str | torch.device | None, dtype: torch.dtype = torch.float32) -> torch.device:
    """The device with this name, checked with a small computation; without a name, the GPU if there is one."""
    if name is None or name == "":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=dtype, device=device).add_(1).item()
    except (RuntimeError, AssertionError, TypeError, ValueError, ImportError) as error:
        reason = first_line(error).partition(". ")[0]  # the first sentence of a long message
        raise UnmaskError(
            f"The device '{name}' cannot be used here ({reason}); give another, or leave it out."
        ) from error
    return device


def device_of(denoiser: Any) -> torch.device:
    """The device of a denoiser; the CPU for one without parameters."""
    return getattr(denoiser, "device", torch.device("cpu"))


def select_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The dtype of the blocks on a device: by default bf16 on GPUs that support it."""
    if dtype not in get_args(Dtype):
        raise UnmaskError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}.")
    automatic = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if dtype == "bf16" or (dtype == "auto" and automatic) else torch.float32


def cast_trunk_to_bf16(network: Any) -> Any:
    """Cast embedding and blocks to bf16. The final norm and the head keep their dtype, so draws stay precise."""
    if hasattr(network, "cast_trunk"):
        network.cast_trunk(torch.bfloat16)
        return network
    cast_to_bf16(network.vocab_embed)
    cast_to_bf16(network.blocks, network._keep_in_fp32_modules_strict)
    return network


def cast_to_bf16(module: nn.Module, kept: Collection[str] | None = None) -> None:
    """Cast the parameters of a module to bf16, except those of its submodules with the names `kept`."""
    for name, parameter in module.named_parameters():
        if not set(name.split(".")) & set(kept or ()):
            parameter.data = parameter.data.to(torch.bfloat16)


# ---- compiled blocks ------------------------------------------------------------------------------------------------


def has_triton() -> bool:
    """Whether torch can compile kernels for a GPU."""
    return importlib.util.find_spec("triton") is not None


def worth_compiling(network: Any, tokens: int) -> bool:
    """Whether compiling pays off for a job of `tokens` tokens."""
    weights = sum(parameter.numel() for parameter in network.blocks.parameters())
    return network.device.type == "cuda" and has_triton() and 2.0 * weights * tokens > MIN_OPERATIONS_TO_COMPILE


def compile_blocks(network: Any) -> None:
    """Compile the blocks of a network in place, and let draws and losses use compiled kernels.

    All blocks share the kernels of the first one. Wrappers and hooks around the blocks stay as they are.
    """
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, RECOMPILE_LIMIT)
    for block in getattr(network, "all_blocks", getattr(network, "blocks", ())):
        block.forward = _with_memory_budget(torch.compile(block.forward))
    network.fused = True


def _with_memory_budget(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep the results of matrix products and attention for the backward pass, and recompute cheap operations."""

    @wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Tensor:
        with functorch_config.patch(activation_memory_budget=ACTIVATION_MEMORY_BUDGET):
            return compiled(*args, **kwargs)

    return run


# ---- CUDA graphs ----------------------------------------------------------------------------------------------------

_capture_lock = Lock()
"""Held during a capture or while memory is pinned: pinning in another thread can invalidate a capture."""


def pin_memory(tensor: Tensor) -> Tensor:
    """A pinned copy, made while no graph is being captured."""
    with _capture_lock:
        return tensor.pin_memory()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector: finalising a graph or kernel invalidates a capture (pytorch/pytorch#161037)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def can_capture(denoiser: Any) -> bool:
    """Whether all weights of a network are on a GPU and unsharded, as a captured graph needs."""
    return all(weight.is_cuda and not hasattr(weight, "device_mesh") for weight in denoiser.parameters())


class CudaGraph:
    """A captured call of `function`. Each replay writes its result to the same memory; copy it to keep it.

    `function` runs `warm_up` times before the capture, so it must be repeatable; 0 if it ran already. Graphs that never
    replay at the same time may share the memory pool of another graph, `pool_of`.
    """

    def __init__(
        self, function: Callable[[], Any], warm_up: int = WARM_UP_CALLS, pool_of: CudaGraph | None = None
    ) -> None:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                function()
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        pool = None if pool_of is None else pool_of._graph.pool()
        # "thread_local": other threads, such as those that prepare training batches, may use CUDA meanwhile
        capture = torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local")
        with _capture_lock, no_garbage_collection(), capture:
            self._result = function()

    def __call__(self) -> Any:
        self._graph.replay()
        return self._result


# ---- inference engine -----------------------------------------------------------------------------------------------

Inputs = tuple[Tensor | None, ...]
Shapes = tuple[torch.Size | None, ...]


class InferenceEngine:
    """A denoiser for inference on a GPU that replays CUDA graphs for repeated shapes.

    From the second call with a shape on, `hidden` replays a graph: one launch instead of hundreds. The next call of any
    shape may overwrite the returned rows, since graphs share their memory. Gradients do not flow.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        self.config = network.config
        self._calls: dict[Shapes, _CapturedCall] = {}
        self._seen: dict[Shapes, int] = {}

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def fused(self) -> bool:
        """Whether the network is compiled."""
        return self.network.fused

    def prepare(self, tokens: int) -> InferenceEngine:
        """Compile if that pays off for a job of `tokens` tokens."""
        if not self.fused and worth_compiling(self.network, tokens):
            self.compile()
        return self

    def compile(self) -> InferenceEngine:
        """Compile the blocks at their next call and drop all graphs."""
        compile_blocks(self.network)
        self._calls.clear()
        self._seen.clear()
        return self

    @property
    def encode_source(self) -> Callable[..., Tensor | None] | None:
        """See `EncoderDecoder.encode_source`; None for other networks."""
        return getattr(self.network, "encode_source", None)

    def hidden(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """See `DiT.hidden`; `source` is the encoded source of an `EncoderDecoder`."""
        alpha = alpha if self.config.conditioned else None
        encoded = () if source is None else (source,)
        return self._call(self.network.hidden, (input_ids, alpha, attention_mask, *encoded))

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """See `DiT.hidden_at`; `source` is as for `hidden`."""
        alpha = alpha if self.config.conditioned else None
        encoded = () if source is None else (source,)
        return self._call(self.network.hidden_at, (input_ids, positions, alpha, attention_mask, *encoded))

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """See `DiT.head`."""
        return self.network.head(rows, mask_logit)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """See `DiT.plan`."""
        return self.network.plan(rows, log_top)

    def projection(self) -> Projection:
        """See `DiT.projection`."""
        return self.network.projection()

    def _call(self, method: Callable[..., Tensor], inputs: Inputs) -> Tensor:
        shapes = tuple(None if tensor is None else tensor.shape for tensor in inputs)
        if shapes not in self._calls:
            self._seen[shapes] = self._seen.get(shapes, 0) + 1
            if self._seen[shapes] <= CALLS_BEFORE_CAPTURE:
                return method(*inputs)
        # taken out and put back at the end: the first entry is the least recently used
        call = self._calls.pop(shapes, None) or self._capture(method, inputs)
        self._calls[shapes] = call
        return call(inputs)

    def _capture(self, method: Callable[..., Tensor], inputs: Inputs) -> _CapturedCall:
        if len(self._calls) >= MAX_GRAPHS:
            least_recent = next(iter(self._calls))
            del self._calls[least_recent], self._seen[least_recent]
        return _CapturedCall(method, inputs, pool_of=next((call.graph for call in self._calls.values()), None))


class _CapturedCall:
    """A graph of a method call with inputs of fixed shapes."""

    def __init__(self, method: Callable[..., Tensor], inputs: Inputs, pool_of: CudaGraph | None) -> None:
        self._inputs = [tensor if tensor is None else tensor.clone() for tensor in inputs]
        self.graph = CudaGraph(lambda: method(*self._inputs), pool_of=pool_of)

    def __call__(self, inputs: Inputs) -> Tensor:
        for stored, given in zip(self._inputs, inputs, strict=True):
            if stored is not None and given is not None:
                stored.copy_(given)
        return self.graph()
