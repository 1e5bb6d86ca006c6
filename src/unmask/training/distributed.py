"""Devices and processes: Accelerate's setup, collectives on the CPU, parameter layouts, and generator states.

All checks of the rank are here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.models.inference import select_dtype

if TYPE_CHECKING:
    from unmask.config import TrainingConfig

T = TypeVar("T")
NamedParameters = Mapping[str, nn.Parameter]
NamedTensors = Iterator[tuple[str, Tensor]]

TIMEOUT = timedelta(days=2)
"""How long processes wait for the one that prepares a large corpus."""


def is_main() -> bool:
    """Whether this is the main process, by the launcher's environment."""
    return os.environ.get("RANK", "0") == "0"


class Distributed:
    """The processes of a run, as one of them sees them. Collectives use gloo and CPU tensors."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.rank = accelerator.process_index
        self.world_size = accelerator.num_processes
        self.is_main = accelerator.is_main_process
        self._local_rank = accelerator.local_process_index
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if self.world_size > 1 else None
        self._pending: tuple[Tensor, Any] | None = None

    def highest(self, number: int) -> int:
        """The highest number that any process gave in the previous call, so that no process waits for another.

        A single process gets the number of this call. All processes must call it equally often.
        """
        if self._group is None:
            return number
        previous = self._pending
        highest = torch.tensor([number])
        self._pending = highest, dist.all_reduce(highest, dist.ReduceOp.MAX, group=self._group, async_op=True)
        if previous is None:
            return 0
        previous[1].wait()
        return int(previous[0].item())

    def report_failure(self) -> bool:
        """Record a failure in the launcher's store, without waiting for other processes. True for the first one."""
        return dist.distributed_c10d._get_default_store().add("unmask/ends", 1) == 1

    @property
    def has_failed(self) -> bool:
        """Whether a process has failed, which the others notice by a broken connection."""
        return self._group is not None and dist.distributed_c10d._get_default_store().add("unmask/ends", 0) > 0

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums over all processes, as new tensors on the CPU. Waits for the device."""
        totals = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        if self._group is not None:
            for total in totals.values():
                dist.all_reduce(total, group=self._group)
        return totals

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def on_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process and return its result in all of them."""
        return self._run_on(self.is_main, function)[0]

    def on_local_main(self, function: Callable[[], T]) -> T:
        """Call a function in one process per machine and return its result in the others of that machine."""
        return self._run_on(self._local_rank == 0, function)[self.rank - self._local_rank]

    def _run_on(self, chosen: bool, function: Callable[[], T]) -> list[Any]:
        """The results by rank. An error is raised where it occurs, and the other processes exit."""
        result, error = None, None
        if chosen:
            try:
                result = function()
            except (UnmaskError, OSError) as raised:
                error = raised
        gathered = self.gather((result, error is not None))
        if error is not None:
            raise error
        if any(failed for _, failed in gathered):
            raise SystemExit(2)
        return [result for result, _ in gathered]


def make_accelerator(config: TrainingConfig, clip: float) -> Accelerator:
    """Set up this process's device, and FSDP2 or DeepSpeed if the recipe or the launcher ask for them."""
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    fsdp = None
    if config.shard:
        fsdp = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
        )
    accelerator = Accelerator(
        mixed_precision="no",  # the loss autocasts itself, in the same way under every wrapper
        gradient_accumulation_steps=config.accumulation,
        cpu=not torch.accelerator.is_available(),
        fsdp_plugin=fsdp,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    if config.shard and accelerator.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate ignores FSDP on CPUs, where torch supports it.
        accelerator.state.fsdp_plugin = fsdp
        accelerator.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    if accelerator.distributed_type == DistributedType.FSDP:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        plugin: Any = accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2:
            raise UnmaskError("FSDP version 1 is not supported; set fsdp_version: 2 in the Accelerate configuration.")
        if select_dtype(config.precision, accelerator.device) == torch.bfloat16:
            # Inputs keep their dtype: rotary angles in bf16 are too coarse for distant positions.
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
    if accelerator.distributed_type == DistributedType.DEEPSPEED:  # which clips gradients itself
        plugin = accelerator.state.deepspeed_plugin
        if plugin.zero_stage > 2:
            raise UnmaskError("DeepSpeed stage 3 is not supported; use stage 1 or 2, or training.shard=true (FSDP2).")
        micro_batch = max(1, config.batch_size // (accelerator.num_processes * config.accumulation))
        plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = micro_batch
        plugin.deepspeed_config["gradient_clipping"] = clip
        plugin.deepspeed_config["zero_allow_untested_optimizer"] = True
    return accelerator


@contextmanager
def deterministic_kernels(enabled: bool) -> Iterator[None]:
    """Use deterministic kernels on a GPU; a CPU is deterministic anyway."""
    if not (enabled and torch.cuda.is_available()):
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class ParameterLayout:
    """Each process holds all weights (one process, DDP) or slices of them (FSDP2)."""

    flattened_by: ClassVar[str | None] = None
    """The library that flattens matrices before the optimizer sees them, if any."""

    def weights(self, parameters: NamedParameters) -> NamedTensors:
        """The full weights, one after the other."""
        return ((name, full_tensor(parameter.detach())) for name, parameter in parameters.items())

    def load_weights(self, parameters: NamedParameters, saved: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            copy_full(parameter.detach(), saved[name])

    def optimizer_state(self, optimizer: Any, parameters: NamedParameters) -> NamedTensors:
        """The full optimizer state, as ``parameter.key``."""
        return (
            (f"{name}.{key}", full_tensor(value))
            for name, parameter in parameters.items()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        )

    def load_optimizer_state(self, optimizer: Any, parameters: NamedParameters, saved: Mapping[str, Tensor]) -> None:
        """Restore the full optimizer state; tensors with the shape of their parameter are sharded as it is."""
        names = {id(parameter): name for name, parameter in parameters.items()}
        order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {i: _state_of(names[id(parameter)], parameter, saved) for i, parameter in enumerate(order)}
        known = {i: tensors for i, tensors in state.items() if tensors}
        optimizer.load_state_dict({"state": known, "param_groups": optimizer.state_dict()["param_groups"]})


class DeepSpeedLayout(ParameterLayout):
    """ZeRO 1 and 2: float32 weights and optimizer state are flattened and split over the processes."""

    flattened_by = "DeepSpeed"

    def weights(self, parameters: NamedParameters) -> NamedTensors:
        from deepspeed.utils import safe_get_full_fp32_param

        return ((name, safe_get_full_fp32_param(parameter)) for name, parameter in parameters.items())

    def load_weights(self, parameters: NamedParameters, saved: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        for name, parameter in parameters.items():
            parameter.detach().copy_(saved[name])
            safe_set_full_fp32_param(parameter, saved[name].to(parameter.device))

    def optimizer_state(self, optimizer: Any, parameters: NamedParameters) -> NamedTensors:
        from deepspeed.utils import safe_get_full_optimizer_state

        flat: dict[str, Any] = next(iter(_inner_optimizers(optimizer)[1].state.values()), {})
        for name, parameter in parameters.items():
            for key in flat:
                value = flat[key] if key == "step" else safe_get_full_optimizer_state(parameter, key)
                yield f"{name}.{key}", torch.as_tensor(value)

    def load_optimizer_state(self, optimizer: Any, parameters: NamedParameters, saved: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        state = {name: _state_of(name, parameter, saved) for name, parameter in parameters.items()}
        pattern = next(iter(state.values()))
        if not pattern:
            return
        zero, inner = _inner_optimizers(optimizer)
        for group in inner.param_groups:  # allocate the state, as the first step would
            for flat in group["params"]:
                device = flat.device if group.get("fused") else "cpu"
                inner.state[flat] = {
                    key: torch.zeros_like(flat) if value.dim() else value.to(device) for key, value in pattern.items()
                }
        zero._lazy_init_hp_params_optimizer_state()
        for name, parameter in parameters.items():
            for key, value in state[name].items():
                if value.dim():
                    safe_set_full_optimizer_state(parameter, value, key)


def _inner_optimizers(optimizer: Any) -> tuple[Any, Any]:
    """DeepSpeed's optimizer inside Accelerate's, and torch's inside that."""
    outer = optimizer
    while hasattr(optimizer.optimizer, "optimizer"):
        outer = optimizer = optimizer.optimizer
    return outer, outer.optimizer


def _state_of(name: str, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    keys = [key for key in saved if key.rpartition(".")[0] == name]
    return {key.rpartition(".")[2]: _lay_out(parameter, saved[key]) for key in keys}


@contextmanager
def unsharded(module: Any) -> Iterator[None]:
    """Gather the root parameters of an FSDP2 module; its blocks gather theirs when called."""
    if not hasattr(module, "unshard"):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor; all processes must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


@torch.no_grad()
def copy_full(tensor: Tensor, value: Tensor) -> None:
    """Copy a full value into a tensor that may be sharded."""
    local(tensor).copy_(local(_lay_out(tensor, value)))


def _lay_out(tensor: Tensor, value: Tensor) -> Tensor:
    """Shard a full value as `tensor` is. A value of another shape (a step counter) is returned unchanged."""
    if value.shape != tensor.shape:
        return value
    value = value.to(tensor.device)
    if not hasattr(tensor, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]


def seed_process(distributed: Distributed, seed: int, step: int = 0) -> None:
    """Seed torch's generator, which dropout uses, differently in every process but the main one."""
    if not distributed.is_main:
        digest = blake2b(f"{seed} {step} {distributed.rank}".encode(), digest_size=7).digest()
        torch.manual_seed(int.from_bytes(digest, "big"))


def gather_generator_states(distributed: Distributed, device: torch.device) -> dict[str, Tensor]:
    """The generator states of all processes, as ``random.device.rank``."""
    own = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        own[device.type] = torch.get_device_module(device).get_rng_state()
    gathered = distributed.gather(own)
    return {f"random.{kind}.{rank}": state for rank, states in enumerate(gathered) for kind, state in states.items()}


def restore_generator_states(
    distributed: Distributed, device: torch.device, saved: Mapping[str, Tensor], seed: int, step: int
) -> None:
    """Restore this process's generator states, or seed it anew if the checkpoint is of fewer processes."""
    cpu, own = f"random.cpu.{distributed.rank}", f"random.{device.type}.{distributed.rank}"
    if cpu not in saved:
        seed_process(distributed, seed, step)
        return
    torch.set_rng_state(saved[cpu])
    if device.type != "cpu" and own in saved:
        torch.get_device_module(device).set_rng_state(saved[own])
