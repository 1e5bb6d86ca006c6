"""The laws as `unmask doctor` runs them, and the device that they run on."""

from __future__ import annotations

import torch

from unmask import laws
from unmask.doctor.laws import count_cases, run_laws
from unmask.laws.base import on_device


def test_every_case_counts_and_the_closest_is_reported(monkeypatch):
    monkeypatch.setattr(laws, "AXES", ("schedule", "model"))
    done = []
    schedules, models = run_laws(torch.device("cpu"), done.append)
    assert sum(done) == count_cases() == sum(len(laws.cases(axis)) for axis in ("schedule", "model"))
    results = list(laws.run(("schedule",)))
    assert schedules["checks"] == len(results)
    assert schedules["members"] == len(laws.members("schedule"))
    assert schedules["closest"]["share"] == max(one.value / one.limit for one in results if one.limit > 0)
    assert (models["axis"], models["passed"], models["broken"]) == ("model", True, [])


def test_tensors_of_the_cpu_move_to_the_device():
    """On the meta device, which computes nothing but keeps track of devices."""
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
    with on_device("cpu"):
        assert torch.zeros(1).device.type == "cpu"
