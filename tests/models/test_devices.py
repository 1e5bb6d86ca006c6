"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from unmask.errors import UnmaskError
from unmask.models.inference import select_device
from unmask.pipeline import load


@pytest.mark.parametrize("name", ["banana", "meta", "cuda:99"])
def test_a_device_that_cannot_compute_is_one_sentence(name):
    with pytest.raises(UnmaskError, match=f"The device '{name}' cannot be used here"):
        select_device(name)
    with pytest.raises(UnmaskError, match=f"The device '{name}' cannot be used here"):
        load("smoke", device=name)


@pytest.mark.parametrize("name", ["hpu", "vulkan"])
def test_a_device_of_another_build_of_torch_is_told_in_few_words(name):
    """torch imports a module that is not there, or says a page about its dispatcher."""
    with pytest.raises(UnmaskError, match="cannot be used here") as caught:
        select_device(name)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16, None], ids=str)
def test_a_type_that_is_none_of_ours_is_not_taken_for_float32(dtype):
    with pytest.raises(UnmaskError, match="dtype must be one of auto, float32, bf16"):
        load("no such folder", device="cpu", dtype=dtype)


def test_without_a_name_it_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_device(None) == torch.device("cpu")
    assert load("smoke").device == torch.device("cpu")


def test_a_device_must_know_the_numbers_that_are_meant(monkeypatch):
    def zeros(*size, dtype, device):
        raise TypeError(f"no {dtype} on {device}")

    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(UnmaskError, match=r"no torch\.float64 on cpu"):
        select_device("cpu", dtype=torch.float64)
