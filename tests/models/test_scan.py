"""The selective scan: outputs and gradients against a loop over tokens in float64, and memory along the length."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from unmask.models import scan
from unmask.models.inference import has_triton
from unmask.models.scan import CHUNK, selective_scan

torch.set_num_threads(1)

NAMES = ("x", "dt", "decay", "b", "c", "state")


def sequential_scan(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as it is defined, one token at a time."""
    outputs = []
    for step in range(x.shape[1]):
        state = torch.exp(dt[:, step, None] * decay) * state + (dt * x)[:, step, None] * b[:, step, :, None]
        outputs.append((state * c[:, step, :, None]).sum(dim=1))
    return torch.stack(outputs, dim=1), state


def random_inputs(length: int, rate: float = 1.0, batch: int = 2, width: int = 5, size: int = 3) -> list[Tensor]:
    """Inputs in float64; exponents dt A are of the order of `rate`."""
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    dt, decay = rate * draw(batch, length, width).abs(), -draw(size, width).abs()
    inputs = [draw(batch, length, width), dt, decay, draw(batch, length, size), draw(batch, length, size)]
    return [tensor.requires_grad_() for tensor in (*inputs, draw(batch, size, width))]


def results(function, inputs: list[Tensor]) -> dict[str, Tensor]:
    """Outputs, last state, and the gradients of a random combination of both."""
    outputs, last = function(*inputs)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one) for one in (outputs, last)]
    total = (outputs * weights[0]).sum() + (last * weights[1]).sum()
    gradients = torch.autograd.grad(total, inputs)
    return {"y": outputs, "last": last, **{f"grad {n}": g for n, g in zip(NAMES, gradients, strict=True)}}


@pytest.mark.parametrize("length", [1, 7, CHUNK, CHUNK + 1, 5 * CHUNK + 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_scan_and_its_gradients_equal_the_loop_over_tokens(
    length: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "STATES_IN_BACKWARD", 2 * CHUNK * 3 * 5 * 2)  # two chunks at a time
    inputs = random_inputs(length)
    expected = results(sequential_scan, inputs)
    found = results(selective_scan, [tensor.detach().to(dtype).requires_grad_() for tensor in inputs])
    for name, value in expected.items():
        error = float((found[name] - value).detach().abs().max() / value.detach().abs().max())
        assert error < tolerance, name


@pytest.mark.parametrize("length", [1, CHUNK + 1])
def test_gradients_equal_finite_differences(length: int) -> None:
    inputs = random_inputs(length, batch=1, width=2, size=2)
    assert torch.autograd.gradcheck(selective_scan, inputs, fast_mode=True)


@pytest.mark.parametrize("rate", [1e-4, 1e3])
def test_very_slow_and_very_fast_decays_neither_overflow_nor_lose_precision(rate: float) -> None:
    inputs = random_inputs(3 * CHUNK, rate)
    expected = results(sequential_scan, inputs)
    found = results(selective_scan, [tensor.detach().float().requires_grad_() for tensor in inputs])
    for name, value in expected.items():
        assert found[name].isfinite().all(), name
        scale = float(value.detach().abs().max())
        assert float((found[name] - value).detach().abs().max()) < 2e-5 * scale + 1e-30, name


def test_a_scan_continues_from_a_state() -> None:
    x, dt, decay, b, c, state = (tensor.detach() for tensor in random_inputs(70))
    whole, last = selective_scan(x, dt, decay, b, c, state)
    parts = []
    for cut in (slice(0, 40), slice(40, 41), slice(41, 70)):
        part, state = selective_scan(x[:, cut], dt[:, cut], decay, b[:, cut], c[:, cut], state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, last)


def test_half_precision_inputs_are_scanned_in_float32() -> None:
    inputs = [tensor.detach().bfloat16() for tensor in random_inputs(50)]
    outputs, last = selective_scan(*inputs)
    assert outputs.dtype == last.dtype == torch.float32
    expected, _ = sequential_scan(*(tensor.double() for tensor in inputs))
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=1e-4)


def test_saved_numbers_grow_with_the_length_and_not_with_the_states() -> None:
    """Between the passes there are the inputs and one state per chunk, not one per token."""
    size, width = 16, 8
    saved = {}
    for length in (4 * CHUNK, 8 * CHUNK):
        inputs = random_inputs(length, width=width, size=size)
        numbers: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one, n=numbers: n.append(one.numel()) or one, lambda t: t):
            selective_scan(*inputs)
        saved[length] = sum(numbers)
        assert saved[length] < 1.5 * sum(tensor.numel() for tensor in inputs)
    assert saved[8 * CHUNK] < 2.05 * saved[4 * CHUNK]


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the kernels themselves are tested")
def test_triton_kernels_equal_the_loops_in_triton_s_interpreter() -> None:
    """In a process of its own, since triton decides at its import whether it interprets."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


INTERPRETED = """
import torch
from tests.models.test_scan import random_inputs, results, selective_scan, sequential_scan
from unmask.models import scan, scan_triton
scan._has_kernels = lambda x: True
scan_triton.BACKWARD_PROGRAMS = 6
for length, width, size, rate in ((1, 5, 3, 1.0), (45, 66, 16, 1.0), (101, 7, 5, 0.1), (70, 3, 2, 1e3)):
    inputs = random_inputs(length, rate, width=width, size=size)
    found = results(selective_scan, [one.detach().float().requires_grad_() for one in inputs])
    for name, value in results(sequential_scan, inputs).items():
        error = (found[name] - value).abs().max() / value.abs().max()
        assert error < 3e-6, (length, name, error)
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("length", "width", "size"), [(1, 5, 3), (16, 32, 16), (63, 236, 16), (64, 64, 16), (1000, 130, 16), (4096, 40, 5)]
)
def test_triton_kernels_equal_the_loops_in_float64(length: int, width: int, size: int) -> None:
    inputs = random_inputs(length, width=width, size=size)
    expected = results(selective_scan, [tensor.detach().cuda().requires_grad_() for tensor in inputs])
    kernels = [tensor.detach().float().cuda().requires_grad_() for tensor in inputs]
    assert scan._has_kernels(kernels[0]) == (length >= scan.KERNEL_CHUNK)
    found = results(selective_scan, kernels)
    for name, value in expected.items():
        assert float((found[name] - value).detach().abs().max() / value.detach().abs().max()) < 1e-4, name


@pytest.mark.gpu
def test_triton_kernels_repeat_whatever_the_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.models import scan_triton

    inputs = [tensor.detach().float().cuda().requires_grad_() for tensor in random_inputs(1000, width=70, size=16)]
    whole, again = results(selective_scan, inputs), results(selective_scan, inputs)
    monkeypatch.setattr(scan_triton, "BACKWARD_PROGRAMS", 9)
    fewer = results(selective_scan, inputs)
    for name, value in whole.items():
        assert torch.equal(value, again[name]), name
        torch.testing.assert_close(fewer[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_memory_of_a_long_scan_grows_with_its_inputs() -> None:
    length, width = 1 << 17, 64
    shapes = [(1, length, width), (1, length, width), (16, width), (1, length, 16), (1, length, 16), (1, 16, width)]
    inputs = [torch.rand(*shape, device="cuda").requires_grad_() for shape in shapes]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y, _ = selective_scan(inputs[0], inputs[1], -inputs[2], *inputs[3:])
    y.sum().backward()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 16 * sum(one.numel() * 4 for one in inputs)
