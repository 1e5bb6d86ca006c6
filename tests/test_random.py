"""Counter-based random numbers: the hash, its statistics, and its independence of everything but its arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from unmask import random
from unmask.random import Purpose, bits, exponential, uniform

WORD = 0xFFFFFFFF
EXTREMES = (0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, -1, -7, -(2**32), -(2**63))
AXES = ("seed", "step", "sample", "position")


def mix(word: int) -> int:
    """The published 32-bit mixer in Python integers."""
    word ^= word >> 16
    word = word * 0x7FEB352D % 2**32
    word ^= word >> 15
    word = word * 0x846CA68B % 2**32
    return word ^ word >> 16


def reference_bits(*values: int) -> int:
    state = 0
    for value in values:
        word = (value & WORD) ^ mix(value >> 32 & WORD) ^ 0x9E3779B9
        state = mix(state ^ mix(word))
    return state


def along(axis: str, size: int = 1 << 14, start: int = 0) -> torch.Tensor:
    """Uniforms along one argument."""
    fixed = {"seed": 3, "step": 5, "sample": 7, "position": 11}
    return uniform(purpose=Purpose.MASK, **{**fixed, axis: torch.arange(start, start + size)})


@pytest.mark.parametrize("value", EXTREMES)
def test_bits_equal_the_hash_in_python_integers(value):
    for others in ((3, 4, 5), (2**40 + 1, -9, 2**33)):
        for place in range(4):
            arguments = [*others[:place], value, *others[place:]]
            expected = reference_bits(Purpose.TOKEN, *arguments)
            assert bits(arguments[0], Purpose.TOKEN, *arguments[1:]).item() == expected
            tensors = [torch.tensor(argument) for argument in arguments]
            assert bits(tensors[0], Purpose.TOKEN, *tensors[1:]).item() == expected


def test_purposes_keep_their_numbers():
    assert [int(purpose) for purpose in Purpose] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_arguments_broadcast():
    seeds, positions = torch.tensor([[1], [2]]), torch.arange(3)
    grid = uniform(seeds, Purpose.TOKEN, 4, 5, positions)
    assert grid.shape == (2, 3)
    assert grid.dtype == torch.float32
    for i, seed in enumerate((1, 2)):
        for position in range(3):
            assert grid[i, position] == uniform(seed, Purpose.TOKEN, 4, 5, position)


def test_uniforms_are_inside_the_open_interval(monkeypatch):
    cells = torch.tensor([0, 1, 2**31, WORD - 1, WORD])
    monkeypatch.setattr(random, "bits", lambda *args: cells)
    values = uniform(0, Purpose.MASK)
    assert values[:2].tolist() == [2.0**-33, 3 * 2.0**-33]
    assert values[-1] == 1 - 2.0**-24
    assert exponential(0, Purpose.MASK)[0] == 2.0**-33
    assert exponential(0, Purpose.MASK).isfinite().all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_numbers_are_the_same(backend):
    def draw(seed, position):
        return uniform(seed, Purpose.REVEAL, 2, 3, position), exponential(seed, Purpose.TOKEN, 2, position, 3)

    seeds, positions = torch.tensor([[5], [-6], [2**40]]), torch.arange(64)
    compiled = torch.compile(draw, backend=backend, fullgraph=True)
    for one, other in zip(draw(seeds, positions), compiled(seeds, positions), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_numbers_are_the_same(compiled):
    def draw(seed, position):
        return uniform(seed, Purpose.MASK, 1, 2, position), exponential(seed, Purpose.TOKEN, 0, position)

    seeds, positions = torch.tensor(EXTREMES)[:, None], torch.arange(1 << 14)
    here, there = draw(seeds, positions), (torch.compile(draw) if compiled else draw)(seeds.cuda(), positions.cuda())
    assert torch.equal(there[0].cpu(), here[0])
    assert torch.allclose(there[1].cpu(), here[1])


@pytest.mark.parametrize("axis", AXES)
def test_numbers_are_uniform_and_neighbours_independent(axis):
    """Pairs of a number and a neighbour fall evenly into 16 x 16 cells."""
    here = along(axis)
    assert stats.kstest(here.numpy(), "uniform").pvalue > 1e-3
    for lag in (1, 2, 256, 2**16, 2**32):
        there = along(axis, start=lag)
        assert stats.kstest(there.numpy(), "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(here, there)[0, 1]) < 4 / len(here) ** 0.5
        cells = (here * 16).long() * 16 + (there * 16).long()
        assert stats.chisquare(torch.bincount(cells, minlength=256).numpy()).pvalue > 1e-4


def test_exponentials_are_exponential_and_exact_near_zero():
    position = torch.arange(1 << 18)
    draws, u = exponential(1, Purpose.TOKEN, position=position), uniform(1, Purpose.TOKEN, position=position)
    assert stats.kstest(draws[: 1 << 14].numpy(), "expon").pvalue > 1e-3
    small = u < 1e-4
    exact = -np.log1p(-u[small].double().numpy())
    assert np.abs(draws[small] / exact - 1).max() < 1e-6


@pytest.mark.parametrize("axes", [("seed", "step"), ("step", "sample"), ("sample", "position"), ("seed", "position")])
def test_arguments_are_not_interchangeable(axes):
    """(1, 2) and (2, 1) give different numbers, and so do (a, b + 1) and (a + 1, b)."""
    first, second = torch.arange(128)[:, None], torch.arange(128)
    grid = uniform(purpose=Purpose.MASK, **{**dict.fromkeys(AXES, 9), axes[0]: first, axes[1]: second})
    assert len(grid.unique()) > 128 * 128 - 100
    off = ~torch.eye(128, dtype=torch.bool)
    assert abs(np.corrcoef(grid[off], grid.T[off])[0, 1]) < 4 / 128
    assert abs(np.corrcoef(grid[1:, :-1].flatten(), grid[:-1, 1:].flatten())[0, 1]) < 4 / 128
