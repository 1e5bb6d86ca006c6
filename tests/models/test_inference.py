"""The inference engine with a stand-in for CUDA graphs, precision, devices, and fused draws."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch

from unmask.errors import UnmaskError
from unmask.models import DiTSpec, inference
from unmask.models.inference import (
    InferenceEngine,
    cast_trunk_to_bf16,
    no_garbage_collection,
    select_device,
    select_dtype,
    worth_compiling,
)
from unmask.pipeline import load
from unmask.samplers import token_sampling
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.token_sampling import TokenSampler

V, L = 11, 12
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs captured; a stand-in runs the function at every replay."""
    made: list[Any] = []

    class Graph:
        def __init__(self, function: Any, warm_up: int = 2, pool_of: Any = None) -> None:
            self.function, self.pool_of = function, pool_of
            made.append(self)

        def __call__(self) -> Any:
            return self.function()

    monkeypatch.setattr(inference, "CudaGraph", Graph)
    return made


def network(length: int = L, **options: Any) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "layers": 2, "heads": 2, "dropout": 0.0}
    net = DiTSpec(**{**shape, **options}).build(V, V - 1, length)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


@pytest.mark.parametrize("conditioned", [False, True])
def test_an_engine_captures_each_shape_once_and_returns_the_rows_of_its_network(captured, conditioned):
    net = network(conditioned=conditioned)
    engine = InferenceEngine(net)
    with torch.no_grad():
        for call in range(8):
            rows = 1 + call % 2
            ids, alpha = torch.randint(V, (rows, L)), torch.rand(rows)
            assert torch.equal(engine.hidden(ids, alpha), net.hidden(ids, alpha))
            positions = torch.randint(L, (rows, 3))
            assert torch.equal(engine.hidden_at(ids, positions, alpha), net.hidden_at(ids, positions, alpha))
    assert len(captured) == 4
    assert captured[0].pool_of is None
    assert all(one.pool_of in captured[:number] for number, one in enumerate(captured) if number)


def test_an_engine_keeps_the_most_recently_used_graphs(captured, monkeypatch):
    monkeypatch.setattr(inference, "MAX_GRAPHS", 2)
    net = network()
    engine = InferenceEngine(net)

    def call(rows: int) -> None:
        ids = torch.randint(V, (rows, L))
        assert torch.equal(engine.hidden(ids), net.hidden(ids))

    with torch.no_grad():
        for rows in (1, 1, 2, 2, 1, 3, 3):
            call(rows)
        second, third = (weakref.ref(one) for one in captured[1:])
        captured.clear()
        gc.collect()
        assert second() is None
        assert third() is not None
        for rows, graphs in ((1, 0), (3, 0), (2, 0), (2, 1)):
            call(rows)
            assert len(captured) == graphs


def test_an_engine_drops_its_graphs_when_it_is_compiled(captured, monkeypatch):
    monkeypatch.setattr(inference, "compile_blocks", lambda net: setattr(net, "fused", True))
    engine, ids = InferenceEngine(network()), torch.randint(V, (1, L))
    with torch.no_grad():
        engine.hidden(ids), engine.hidden(ids)
        assert len(captured) == 1
        engine.compile()
        engine.hidden(ids), engine.hidden(ids)
    assert engine.fused
    assert len(captured) == 2
    assert captured[1].pool_of is None


def test_samples_of_all_seeds_have_the_same_shapes():
    """The largest number of positions in one step varies with the seed; the width of the plan does not."""
    ids = torch.full((2, 40), V - 1)
    counts = set()
    for seed in range(12):
        plan = AncestralSampler(steps=40).begin(Canvas.of(ids, V - 1, seed=seed)).plan
        counts.add(int(plan.slots.max()) + 1)
        assert plan.width == 8
    assert len(counts) > 2
    assert AncestralSampler().begin(Canvas.of(ids, V - 1, seed=0)).plan.width == 1


class WithoutHiddenAt:
    """A network that only computes the rows of all positions."""

    def __init__(self, net: Any) -> None:
        self.config, self.hidden, self.head = net.config, net.hidden, net.head


@pytest.mark.parametrize("steps", [None, 3, 20, 40])
def test_samples_are_the_same_with_an_engine_and_without_hidden_at(steps):
    net = network(40)
    ids = torch.full((5, 40), V - 1)
    ids[1, 2:] = 3
    canvas = Canvas.of(ids, V - 1, seed=2)
    expected = sample(AncestralSampler(steps=steps), net, canvas)
    for denoiser in (InferenceEngine(net), WithoutHiddenAt(net)):
        found = sample(AncestralSampler(steps=steps), denoiser, canvas)
        assert torch.equal(found.ids, expected.ids)
        torch.testing.assert_close(found.confidence, expected.confidence)


def test_only_long_jobs_on_a_gpu_are_worth_compiling(monkeypatch):
    net = network()
    assert not worth_compiling(net, 10**15)
    monkeypatch.setattr(inference, "has_triton", lambda: True)
    monkeypatch.setattr(type(net), "device", property(lambda self: torch.device("cuda")))
    weights = sum(parameter.numel() for parameter in net.blocks.parameters())
    least = inference.MIN_OPERATIONS_TO_COMPILE / (2 * weights)
    assert not worth_compiling(net, int(0.99 * least))
    assert worth_compiling(net, int(1.01 * least))


def test_a_bf16_trunk_returns_rows_in_float32():
    plain, half = network(), cast_trunk_to_bf16(network())
    ids = torch.randint(V, (2, L))
    with torch.no_grad():
        rows = half.hidden(ids)
        assert half.blocks[0].attn_qkv.weight.dtype == torch.bfloat16
        assert rows.dtype == half.head(rows).dtype == torch.float32
        assert (rows != rows.bfloat16().float()).any()
        expected = plain.head(plain.hidden(ids)).softmax(-1)
        torch.testing.assert_close(half.head(rows).softmax(-1), expected, atol=0.05, rtol=0)


def test_dtypes_are_selected_by_name_and_device():
    assert select_dtype("auto", CPU) == torch.float32
    assert select_dtype("bf16", CPU) == torch.bfloat16
    assert select_dtype("float32", CPU) == torch.float32
    for dtype in ("float16", torch.bfloat16, None):
        with pytest.raises(UnmaskError, match="dtype must be one of auto, float32, bf16"):
            load("no such folder", device="cpu", dtype=dtype)


@pytest.mark.parametrize("name", ["banana", "meta", "cuda:99", "hpu", "vulkan"])
def test_an_unusable_device_is_refused_in_one_sentence(name):
    for function in (select_device, lambda name: load("smoke", device=name)):
        with pytest.raises(UnmaskError, match=f"The device '{name}' cannot be used here") as caught:
            function(name)
        assert len(str(caught.value)) < 300


def test_the_default_device_is_the_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_device(None) == CPU
    assert load("smoke").device == CPU


def test_a_device_must_support_the_dtype(monkeypatch):
    def zeros(*size, dtype, device):
        raise TypeError(f"no {dtype} on {device}")

    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(UnmaskError, match=r"no torch\.float64 on cpu"):
        select_device("cpu", dtype=torch.float64)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_paused_and_restored(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(ValueError), no_garbage_collection():
            assert not gc.isenabled()
            raise ValueError("on purpose")
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_fused_draws_are_used_only_without_filters_and_equal_plain_ones(monkeypatch):
    seen = []
    monkeypatch.setattr(
        token_sampling, "_sample_fused", lambda *args: seen.append(args) or token_sampling._sample(*args)
    )
    logits, seeds, positions = torch.randn(4, V), torch.arange(4), torch.arange(4)
    for rule in (TokenSampler(), TokenSampler(temperature=0.5), TokenSampler(top_k=3), TokenSampler(top_p=0.5)):
        plain, fused = (rule.sample(logits, seeds, 3, positions, fused=f) for f in (False, True))
        assert torch.equal(plain[0], fused[0])
        assert torch.equal(plain[1], fused[1])
    assert len(seen) == 1
