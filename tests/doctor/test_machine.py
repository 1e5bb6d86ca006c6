"""What the machine is, and where the laws are carried."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from unmask.doctor.machine import look
from unmask.laws.base import on_device


def test_the_machine_is_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "not" / "there" / "yet"))
    here = look()
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.threads == torch.get_num_threads()
    assert here.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert "gloo" in here.backends
    assert here.cache.endswith("yet")
    assert here.cache_free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert not (tmp_path / "not").exists()


def test_a_driver_that_torch_cannot_use_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for found, told in (("/usr/bin/nvidia-smi", True), (None, False)):
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        assert look().driver_unused is told


def test_the_compiler_is_the_one_that_torch_would_call(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name if name in ("clang++", "mine") else None)
    monkeypatch.delenv("CXX", raising=False)
    assert look().compiler == "clang++"
    monkeypatch.setenv("CXX", "mine")
    assert look().compiler == "mine"


def test_tensors_of_the_cpu_follow_to_the_device():
    """On the meta device, which computes nothing but says where it would have."""
    constant = torch.arange(3)
    with on_device("meta"):
        made = torch.zeros(3)
        found = {
            "made": made,
            "sum": constant + 1,
            "joined": torch.cat([constant, constant]),
            "chosen": torch.where(constant > 1, constant, other=constant),
            "indexed": made[constant],
        }
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert {name: tensor.device.type for name, tensor in found.items()} == dict.fromkeys(found, "meta")
    assert drawn.device.type == "cpu"
    assert constant.device.type == "cpu"


def test_on_the_cpu_nothing_is_done():
    with on_device("cpu"):
        assert torch.zeros(1).device.type == "cpu"
