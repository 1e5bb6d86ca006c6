"""Muon against its definition, torch's Muon, and itself on sharded parameters.

Imports of models are inside functions because both processes of the sharded test import this file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import multiprocessing, nn

from unmask.optimizers.base import AdamW
from unmask.optimizers.muon import Muon, MuonOptimizer, is_hidden_matrix, newton_schulz, orthogonalise

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 64)])
def test_newton_schulz_keeps_singular_vectors_and_levels_singular_values(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.mT @ newton_schulz(matrix[None])[0] @ vh.mT
    values = inner.diagonal()
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
    torch.testing.assert_close(inner, torch.diag(values), rtol=0, atol=1e-4)
    assert not newton_schulz(torch.zeros(1, *shape)).any()


def test_parts_are_orthogonalised_separately_and_batching_changes_nothing():
    torch.manual_seed(1)
    fused, square, other = torch.randn(36, 12), torch.randn(12, 12), torch.randn(48, 12)
    parts = torch.cat([orthogonalise([part])[0] for part in fused.chunk(3)])
    torch.testing.assert_close(orthogonalise([fused], parts=3)[0], parts)
    together = orthogonalise([square, other, fused.chunk(3)[1]])
    torch.testing.assert_close(together[0], orthogonalise([square])[0])
    torch.testing.assert_close(together[1], orthogonalise([other])[0])
    torch.testing.assert_close(together[2], parts[12:24])


@pytest.mark.parametrize("shape", [(32, 32), (96, 32), (32, 128)])
def test_steps_equal_those_of_torchs_muon(shape):
    """torch computes in bf16 on a CPU too, and we in float32, so they agree to the precision of bf16."""
    torch.manual_seed(3)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.5}
    pair = MuonOptimizer([ours], **options), torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in pair:
            optimizer.step()
    moved = theirs.detach() - start
    assert float((ours.detach() - theirs.detach()).norm() / moved.norm()) < 0.02


def network(**options: object) -> nn.Module:
    from unmask.models import DiTSpec

    torch.manual_seed(0)
    spec = DiTSpec(**{"size": "nano", "hidden_size": 16, "layers": 2, "heads": 2, "dropout": 0.0, **options})
    return spec.build(11, 10, 8)


def test_muon_optimizes_the_matrices_of_the_blocks_and_adamw_the_rest():
    net = network(conditioned=True)
    parameters = dict(net.named_parameters())
    hidden = [name for name, parameter in parameters.items() if is_hidden_matrix(name, parameter)]
    matrices = ["attn_qkv.weight", "attn_out.weight", "mlp.0.weight", "mlp.2.weight"]
    assert hidden == [f"blocks.{block}.{name}" for block in range(2) for name in matrices]
    optimizer = Muon(weight_decay=0.1).build(parameters, CPU)
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(map(id, given)) == sorted(map(id, parameters.values()))
    fused = next(group for group in optimizer.param_groups if group.get("parts") == 3)
    assert [id(p) for p in fused["params"]] == [id(block.attn_qkv.weight) for block in net.blocks]


def test_chained_steps_equal_separate_ones():
    chained, separate = dict(network().named_parameters()), dict(network().named_parameters())
    chain = Muon(learning_rate=0.1).build(chained, CPU)
    hidden = {name: parameter for name, parameter in separate.items() if is_hidden_matrix(name, parameter)}
    rest = {name: parameter for name, parameter in separate.items() if name not in hidden}
    groups = [{"params": [p], "parts": 3 if "qkv" in name else 1} for name, p in hidden.items()]
    halves = MuonOptimizer(groups, lr=0.01, momentum=0.95), AdamW(learning_rate=0.01).build(rest, CPU)
    for group in chain.param_groups:
        group["lr"] = 0.01
    for step in range(3):
        for parameters, optimizers in ((chained, (chain,)), (separate, halves)):
            generator = torch.Generator().manual_seed(step)
            for parameter in parameters.values():
                parameter.grad = parameter.detach() + torch.randn(parameter.shape, generator=generator)
            for optimizer in optimizers:
                optimizer.step()
    for name, parameter in separate.items():
        torch.testing.assert_close(chained[name], parameter, rtol=0, atol=1e-6)


def test_adamw_replaces_muon_with_a_reason():
    from unmask.models.build import LoraConfig, add_lora

    parameters = dict(network().named_parameters())
    config = Muon(learning_rate=0.01, cooldown=0.5, ema=0.5)
    assert config.resolve(parameters) == (config, None)
    other, notice = config.resolve(parameters, flattened_by="DeepSpeed")
    assert other == AdamW(learning_rate=0.001, warmup=50, cooldown=0.5, ema=0.5)
    assert "because DeepSpeed flattens matrices into vectors; using AdamW with a rate of 0.001" in str(notice)
    adapted = add_lora(network(), LoraConfig(rank=2))
    trained = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert "no matrix inside a block is trained" in str(config.resolve(trained)[1])
    assert AdamW().resolve(parameters, flattened_by="DeepSpeed") == (AdamW(), None)


def steps_of(parameter: nn.Parameter, distribute=lambda tensor: tensor) -> None:
    optimizer = MuonOptimizer([{"params": [parameter], "parts": 3}], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        parameter.grad = distribute(torch.randn(12, 4))
        optimizer.step()


def run_sharded(rank: int, folder: str) -> None:
    """One of two processes, each with half of the rows."""
    from torch.distributed import barrier, destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    shard = nn.Parameter(distribute_tensor(torch.randn(12, 4), mesh, [Shard(0)]))
    steps_of(shard, lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)]))
    full = shard.full_tensor().detach()
    if rank == 0:
        torch.save(full, f"{folder}/sharded.pt")
    barrier()
    destroy_process_group()
    # A normal exit destroys gloo threads that may still be running, which sometimes aborts the process.
    os._exit(0)


def test_sharded_matrices_move_as_whole_ones(tmp_path: Path):
    multiprocessing.start_processes(run_sharded, args=(str(tmp_path),), nprocs=2, start_method="spawn")
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(12, 4))
    steps_of(whole)
    torch.testing.assert_close(torch.load(tmp_path / "sharded.pt"), whole.detach(), rtol=0, atol=1e-6)
