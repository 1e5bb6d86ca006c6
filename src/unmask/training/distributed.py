"""torch's generators, which dropout alone draws from: one for each process, saved for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2b
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from torch import Tensor, nn

from unmask.config import TrainingConfig
from unmask.errors import UnmaskError
from unmask.models.inference import has_triton

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

PATIENCE = timedelta(days=2)
"""How long a host waits for another one: preparing a big corpus is done by one process of each machine."""


class Distributed:
    """All processes of a run, as one of them sees it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.process = accelerator.process_index
        self.processes = accelerator.num_processes
        self.main = accelerator.is_main_process
        self._local_process = accelerator.local_process_index
        self._hosts = dist.new_group(backend="gloo", timeout=PATIENCE) if self.processes > 1 else None
        self._ballot: tuple[Tensor, Any] | None = None

    @property
    def share(self) -> tuple[int, int]:
        """(which, of how many) this process is."""
        return self.process, self.processes

    def any(self, flag: bool) -> bool:
        """Whether any process raised its flag at the call before this one; a single process hears itself at once.

        All processes must call it equally often. The answer was on its way meanwhile, so nobody waits.
        """
        if self._hosts is None:
            return flag
        before = self._ballot
        vote = torch.tensor([int(flag)])
        self._ballot = vote, dist.all_reduce(vote, group=self._hosts, async_op=True)
        if before is None:
            return False
        before[1].wait()
        return bool(before[0].item())

    def end(self) -> bool:
        """Note that this process cannot go on, whatever the others are doing. Whether it is the first to say so."""
        return self._ends(1) == 1

    @property
    def ended(self) -> bool:
        """Whether a process could not go on, which others notice by a broken connection."""
        return self._ends(0) > 0

    def _ends(self, more: int) -> int:
        """How many processes have come to their end. The launcher counts them, so that nobody waits for anybody."""
        return 0 if self._hosts is None else dist.distributed_c10d._get_default_store().add("unmask/ends", more)

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums over all processes, in new tensors on the CPU. Waits for the device."""
        totals = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        if self._hosts is not None:
            for total in totals.values():
                dist.all_reduce(total, group=self._hosts)
        return totals

    def sum_array(self, values: Floats) -> Floats:
        """The sum over all processes of an array of numbers."""
        return self.sum({"values": torch.from_numpy(values)})["values"].numpy()

    def gather(self, value: T) -> list[T]:
        """What each process has, in their order."""
        if self._hosts is None:
            return [value]
        values: list[Any] = [None] * self.processes
        dist.all_gather_object(values, value, group=self._hosts)
        return values

    def main_does(self, work: Callable[[], T]) -> T:
        """Let the main process do something, and tell all what came of it."""
        return self._heard(work, self.main)[0]

    def machine_does(self, work: Callable[[], T]) -> T:
        """Let one process of each machine do something, and tell its neighbours what came of it."""
        return self._heard(work, self._local_process == 0)[self.process - self._local_process]

    def _heard(self, work: Callable[[], T], chosen: bool) -> list[Any]:
        """What the chosen processes made. An error of one of them ends all: where it happened, with its sentence."""
        made, error = None, None
        if chosen:
            try:
                made = work()
            except (UnmaskError, OSError) as problem:
                error = problem
        results = self.gather((made, error is not None))
        if error is not None:
            raise error
        if any(failed for _, failed in results):
            raise SystemExit(2)
        return [result for result, _ in results]


def is_main() -> bool:
    """Whether this process is the one that a person reads, by what the launcher told it."""
    return os.environ.get("RANK", "0") == "0"


Named = Mapping[str, nn.Parameter]
Whole = Iterator[tuple[str, Tensor]]


class ParameterLayout:
    """Every process holds all weights (alone, or data parallel), or its slices of them (FSDP2)."""

    flattened_by: ClassVar[str | None] = None
    """Who rolls matrices into vectors before an optimiser sees them."""

    def weights(self, parameters: Named) -> Whole:
        """The weights themselves, whole, one after the other."""
        return ((name, whole(parameter.detach())) for name, parameter in parameters.items())

    def load_weights(self, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        """Put whole weights back."""
        for name, parameter in parameters.items():
            fill(parameter.detach(), saved[name])

    def moments(self, optimizer: Any, parameters: Named) -> Whole:
        """What the optimiser keeps for each weight, whole, as ``weight.key``."""
        return (
            (f"{name}.{key}", whole(value))
            for name, parameter in parameters.items()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        )

    def load_moments(self, optimizer: Any, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        """Put them back: those shaped as their weight are laid out as it is."""
        names = {id(parameter): name for name, parameter in parameters.items()}
        order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {number: _kept(names[id(parameter)], parameter, saved) for number, parameter in enumerate(order)}
        known = {number: kept for number, kept in state.items() if kept}
        optimizer.load_state_dict({"state": known, "param_groups": optimizer.state_dict()["param_groups"]})


class DeepSpeedLayout(ParameterLayout):
    """ZeRO 1 and 2: float32 weights and moments lie flattened over the processes; DeepSpeed puts them together."""

    flattened_by = "DeepSpeed"

    def weights(self, parameters: Named) -> Whole:
        from deepspeed.utils import safe_get_full_fp32_param

        return ((name, safe_get_full_fp32_param(parameter)) for name, parameter in parameters.items())

    def load_weights(self, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        for name, parameter in parameters.items():
            parameter.detach().copy_(saved[name])
            safe_set_full_fp32_param(parameter, saved[name].to(parameter.device))

    def moments(self, optimizer: Any, parameters: Named) -> Whole:
        from deepspeed.utils import safe_get_full_optimizer_state

        flat: dict[str, Any] = next(iter(_inner_pair(optimizer)[1].state.values()), {})
        for name, parameter in parameters.items():
            for key in flat:
                counter = key == "step"
                value = flat[key] if counter else safe_get_full_optimizer_state(parameter, key)
                yield f"{name}.{key}", torch.as_tensor(value)

    def load_moments(self, optimizer: Any, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        kept = {name: _kept(name, parameter, saved) for name, parameter in parameters.items()}
        pattern = next(iter(kept.values()))
        if not pattern:
            return
        _make_room(optimizer, pattern)
        for name, parameter in parameters.items():
            for key, value in kept[name].items():
                if value.dim():
                    safe_set_full_optimizer_state(parameter, value, key)


def _make_room(optimizer: Any, pattern: Mapping[str, Tensor]) -> None:
    """Give a DeepSpeed optimiser that has not stepped yet its counters and empty moments, as its first step would."""
    zero, inner = _inner_pair(optimizer)
    for group in inner.param_groups:
        for flat in group["params"]:
            inner.state[flat] = {
                key: torch.zeros_like(flat) if value.dim() else value.to(flat.device if group.get("fused") else "cpu")
                for key, value in pattern.items()
            }
    zero._lazy_init_hp_params_optimizer_state()


def layout_of(accelerator: Accelerator) -> ParameterLayout:
    """The layout that a launch asked for."""
    return DeepSpeedLayout() if accelerator.distributed_type == DistributedType.DEEPSPEED else ParameterLayout()


@contextmanager
def opened(module: Any) -> Iterator[None]:
    """A sharded module has its own weights whole for a while (its blocks see to theirs); others always have."""
    if not hasattr(module, "unshard"):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies in this process, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


@torch.no_grad()
def fill(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value into a tensor, of which this process may hold a slice."""
    local(tensor).copy_(local(_like(tensor, value)))


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole value laid out as a tensor is; one of another shape (a counter) stays as it is."""
    if value.shape != tensor.shape:
        return value
    value = value.to(tensor.device)
    if not hasattr(tensor, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]


def _kept(name: str, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    keys = [key for key in saved if key.rpartition(".")[0] == name]
    return {key.rpartition(".")[2]: _like(parameter, saved[key]) for key in keys}


def _inner_pair(optimizer: Any) -> tuple[Any, Any]:
    """DeepSpeed's optimiser inside Accelerate's, and torch's inside that."""
    outer = optimizer
    while hasattr(optimizer.optimizer, "optimizer"):
        outer = optimizer = optimizer.optimizer
    return outer, outer.optimizer


def make_accelerator(config: TrainingConfig, clip: float) -> Accelerator:
    """The device of this process; bf16 on the GPUs that have it, unless the recipe says otherwise."""
    AcceleratorState._reset_state()  # an earlier run of this program may have had another precision
    accelerator = Accelerator(
        mixed_precision="no",  # the loss computes in bf16 by itself, the same way under every wrapper
        gradient_accumulation_steps=config.accumulation,
        cpu=not torch.accelerator.is_available(),
        fsdp_plugin=_sharding() if config.shard else None,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    if config.shard:
        _shard_on_cpus_too(accelerator)
    if accelerator.distributed_type == DistributedType.FSDP:
        _configure_sharding(accelerator, precision_of(config))
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        _configure_deepspeed(accelerator, config, clip)
    return accelerator


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Ask a GPU for kernels that give the same bits every time; a CPU does so anyway."""
    if not (wanted and torch.cuda.is_available()):
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def precision_of(config: TrainingConfig) -> torch.dtype:
    """What matrices are multiplied in; weights, moments and averages are float32 throughout."""
    automatic = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if config.precision == "bf16" or (config.precision == "auto" and automatic) else torch.float32


def compiles(config: TrainingConfig, accelerator: Accelerator) -> bool:
    """Whether the network is compiled: by default on a GPU for which torch has its compiler."""
    if config.compile != "auto":
        return config.compile
    return accelerator.device.type == "cuda" and has_triton()


def _sharding() -> FullyShardedDataParallelPlugin:
    """FSDP2, one unit a block of the network."""
    return FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )


def _shard_on_cpus_too(accelerator: Accelerator) -> None:
    """Accelerate lays a sharding plugin aside on CPUs, though torch shards there as well."""
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.fsdp_plugin = _sharding()
        accelerator.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def _configure_sharding(accelerator: Accelerator, precision: torch.dtype) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    plugin: Any = accelerator.state.fsdp_plugin
    if plugin.fsdp_version != 2:
        raise UnmaskError("FSDP is version 1 in this Accelerate configuration; set fsdp_version: 2 in it.")
    if precision == torch.bfloat16:
        # Inputs stay as they are: rotary angles in bf16 would blur far positions.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )


def _configure_deepspeed(accelerator: Accelerator, config: TrainingConfig, clip: float) -> None:
    """What DeepSpeed must know beforehand, since it steps and clips by itself."""
    plugin: Any = accelerator.state.deepspeed_plugin
    if plugin.zero_stage > 2:
        raise UnmaskError("DeepSpeed's stage 3 is not supported; use stage 1 or 2, or training.shard=true (FSDP2).")
    micro_batch = max(1, config.batch_size // (accelerator.num_processes * config.accumulation))
    plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = micro_batch
    plugin.deepspeed_config["gradient_clipping"] = clip
    plugin.deepspeed_config["zero_allow_untested_optimizer"] = True


def seed_process(world: Distributed, seed: int, step: int = 0) -> None:
    """Give a process numbers of its own; the main one goes on where building the network left off."""
    if not world.main:
        digest = blake2b(f"{seed} {step} {world.process}".encode(), digest_size=7).digest()
        torch.manual_seed(int.from_bytes(digest, "big"))


def states(world: Distributed, device: torch.device) -> dict[str, Tensor]:
    """The state of every process's generators, by name and process."""
    own = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        own[device.type] = _module(device).get_rng_state()
    gathered = world.gather(own)
    return {
        f"random.{kind}.{process}": state for process, kinds in enumerate(gathered) for kind, state in kinds.items()
    }


def put_back(world: Distributed, device: torch.device, saved: Mapping[str, Tensor], seed: int, step: int) -> None:
    """Go on with the numbers of a checkpoint; a process that it does not know begins with numbers of its own."""
    cpu, own = f"random.cpu.{world.process}", f"random.{device.type}.{world.process}"
    if cpu not in saved:
        seed_process(world, seed, step)
        return
    torch.set_rng_state(saved[cpu])
    if device.type != "cpu" and own in saved:
        _module(device).set_rng_state(saved[own])


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
