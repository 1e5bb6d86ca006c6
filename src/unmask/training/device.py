"""Where a run computes, in which precision, and in how many processes, as Accelerate was launched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState

from unmask.config import TrainingConfig
from unmask.errors import UnmaskError
from unmask.models.compiling import has_compiler


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
    return accelerator.device.type == "cuda" and has_compiler()


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
