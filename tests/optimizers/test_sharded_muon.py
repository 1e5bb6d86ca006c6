"""Muon on matrices of which two processes hold one half each. This file imports little, since both import it again."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
from torch import multiprocessing, nn

from unmask.optimizers.muon import MuonOptimizer


def sharded(rank: int, port: int, folder: str) -> None:
    """One of two processes: the same steps with parameters sharded over rows."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    whole = torch.randn(12, 4)
    shard = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    optimizer = MuonOptimizer([{"params": [shard], "parts": 3}], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        shard.grad = distribute_tensor(torch.randn(12, 4), mesh, [Shard(0)])
        optimizer.step()
    full = shard.full_tensor().detach()
    if rank == 0:
        torch.save(full, f"{folder}/sharded.pt")
    destroy_process_group()


def test_sharded_matrices_move_as_whole_ones(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.start_processes(sharded, args=(port, str(tmp_path)), nprocs=2, start_method="spawn")
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(12, 4))
    optimizer = MuonOptimizer([{"params": [whole], "parts": 3}], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        whole.grad = torch.randn(12, 4)
        optimizer.step()
    torch.testing.assert_close(torch.load(tmp_path / "sharded.pt"), whole.detach(), rtol=0, atol=1e-6)
