"""Engines, recordings, compiled forms: what can be judged of them without a GPU."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

from unmask.models import DiTSpec
from unmask.models import dit as trunk
from unmask.models import inference as compiling
from unmask.models import inference as engine
from unmask.models.attention import bidirectional_mask, rotary_angles
from unmask.models.inference import InferenceEngine, cast_trunk_to_bf16, select_dtype, worth_compiling
from unmask.models.layers import Dropout, Gelu, cpu_dropout, draw_dropout_seeds, hashed_dropout_mask
from unmask.objectives.base import Corruption, LossTerms, Noise
from unmask.process import Batch
from unmask.samplers import token_sampling as draws
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.token_sampling import TokenSampler
from unmask.training import step as recording
from unmask.training.data_feed import MicroBatch
from unmask.training.step import MOST_SHAPES, Recorder

V, L = 11, 12
CPU = torch.device("cpu")


class Replayed:
    """Stands for a recording: work is done once when it is made, and again at every call."""

    made: ClassVar[list[Any]] = []

    def __init__(self, work: Any, warm_up: int = 2, pool_of: Any = None) -> None:
        for _ in range(warm_up):
            work()
        self.work = work
        self.pool_of = pool_of
        Replayed.made.append(self)

    def __call__(self) -> Any:
        return self.work()


@pytest.fixture(autouse=True)
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(Replayed, "made", [])
    monkeypatch.setattr(engine, "CudaGraph", Replayed)
    monkeypatch.setattr(recording, "CudaGraph", Replayed)
    return Replayed.made


def network(length: int = L, **options: Any) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "layers": 2, "heads": 2, "dropout": 0.0}
    net = DiTSpec(**{**shape, **options}).build(V, V - 1, length)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


@pytest.mark.parametrize("conditioned", [False, True])
def test_an_engine_records_a_shape_once_and_gives_the_rows_of_its_network(replayed, conditioned):
    net = network(conditioned=conditioned)
    ready = InferenceEngine(net)
    with torch.no_grad():
        for call in range(8):
            rows = 1 + call % 2
            ids, alpha = torch.randint(V, (rows, L)), torch.rand(rows)
            assert torch.equal(ready.hidden(ids, alpha), net.hidden(ids, alpha))
            positions = torch.randint(L, (rows, 3))
            assert torch.equal(ready.hidden_at(ids, positions, alpha), net.hidden_at(ids, positions, alpha))
    assert len(replayed) == 4
    assert replayed[0].pool_of is None
    assert all(one.pool_of in replayed[:number] for number, one in enumerate(replayed) if number)


def test_an_engine_keeps_the_recordings_that_were_played_last(replayed, monkeypatch):
    monkeypatch.setattr(engine, "MAX_GRAPHS", 2)
    net = network()
    ready = InferenceEngine(net)

    def play(rows: int) -> None:
        ids = torch.randint(V, (rows, L))
        assert torch.equal(ready.hidden(ids), net.hidden(ids))

    with torch.no_grad():
        for rows in (1, 1, 2, 2, 1, 3, 3):
            play(rows)
        second, third = (weakref.ref(one) for one in replayed[1:])
        del replayed[:]
        gc.collect()
        assert second() is None
        assert third() is not None
        play(1), play(3)
        assert not replayed
        play(2)
        assert not replayed
        play(2)
        assert len(replayed) == 1


def test_seeds_share_the_recordings_of_a_walk(replayed):
    """The most positions that fall into one step vary from canvas to canvas; the shapes that a network sees do not."""
    ids = torch.full((2, 40), V - 1)
    counts = set()
    for seed in range(12):
        canvas = Canvas.of(ids, V - 1, seed=seed)
        plan = AncestralSampler(steps=40).begin(canvas).plan
        counts.add(int(plan.slots.max()) + 1)
        assert plan.width == 8
    assert len(counts) > 2
    assert AncestralSampler().begin(canvas).plan.width == 1


def test_an_engine_forgets_its_recordings_when_it_is_compiled(replayed, monkeypatch):
    monkeypatch.setattr(engine, "compile_blocks", lambda net: setattr(net, "fused", True))
    ready = InferenceEngine(network())
    ids = torch.randint(V, (1, L))
    with torch.no_grad():
        ready.hidden(ids), ready.hidden(ids)
        assert len(replayed) == 1
        ready.compile()
        ready.hidden(ids), ready.hidden(ids)
    assert ready.fused
    assert len(replayed) == 2
    assert replayed[1].pool_of is None


def test_samples_through_an_engine_are_those_of_its_network():
    net = network()
    canvas = Canvas.of(torch.full((3, L), V - 1), V - 1, seed=2)
    for steps in (None, 4):
        assert torch.equal(
            sample(AncestralSampler(steps=steps), InferenceEngine(net), canvas).ids,
            sample(AncestralSampler(steps=steps), net, canvas).ids,
        )


class Whole:
    """A network that can only be asked about all positions at once."""

    def __init__(self, net: Any) -> None:
        self.config, self.hidden, self.head = net.config, net.hidden, net.head


@pytest.mark.parametrize("steps", [None, 3, 20, 40])
def test_samples_are_the_same_whether_a_network_is_asked_about_some_positions_or_all(steps):
    net = network(40)
    ids = torch.full((5, 40), V - 1)
    ids[1, 2:] = 3
    canvas = Canvas.of(ids, V - 1, seed=2)
    some, all_of_them = (sample(AncestralSampler(steps=steps), asked, canvas) for asked in (net, Whole(net)))
    assert torch.equal(some.ids, all_of_them.ids)
    torch.testing.assert_close(some.confidence, all_of_them.confidence)


def test_only_long_jobs_on_a_gpu_are_worth_compiling(monkeypatch):
    net = network()
    assert not worth_compiling(net, 10**15)
    monkeypatch.setattr(engine, "has_triton", lambda: True)
    monkeypatch.setattr(type(net), "device", property(lambda self: torch.device("cuda")))
    weights = sum(parameter.numel() for parameter in net.blocks.parameters())
    least = engine.MIN_OPERATIONS_TO_COMPILE / (2 * weights)
    assert not worth_compiling(net, int(0.99 * least))
    assert worth_compiling(net, int(1.01 * least))


def test_a_halved_trunk_hands_over_rows_that_are_not_rounded():
    plain, half = network(), cast_trunk_to_bf16(network())
    ids = torch.randint(V, (2, L))
    with torch.no_grad():
        rows = half.hidden(ids)
        assert half.blocks[0].attn_qkv.weight.dtype == torch.bfloat16
        assert rows.dtype == half.head(rows).dtype == torch.float32
        assert (rows != rows.bfloat16().float()).any()
        torch.testing.assert_close(
            half.head(rows).softmax(-1), plain.head(plain.hidden(ids)).softmax(-1), atol=0.05, rtol=0
        )


def test_bf16_is_for_those_who_ask_or_have_it():
    assert select_dtype("auto", CPU) == torch.float32
    assert select_dtype("bf16", CPU) == torch.bfloat16
    assert select_dtype("float32", CPU) == torch.float32


def micro_batch(rows: int, count: int) -> MicroBatch:
    predicted = torch.arange(rows * L).view(rows, L) < count
    made = Corruption.of(predicted, torch.rand(rows), torch.rand(rows))
    return MicroBatch(Batch.of(torch.randint(V, (rows, L))), Noise(torch.rand(rows), torch.rand(rows, L)), made)


def work(one: MicroBatch, scale: torch.Tensor) -> LossTerms:
    """Something that depends on all that goes in."""
    assert one.corruption is not None
    value = one.batch.input_ids.sum() * scale + one.corruption.rows.sum() + one.corruption.mask_rate.sum()
    return LossTerms(*[value] * 6)


def test_a_recorder_gives_what_the_work_gives_and_records_repeated_shapes_alone(replayed):
    recorder = Recorder(work)
    for call in range(9):
        one, scale = micro_batch(2 + call % 2, count=5), torch.tensor(float(call))
        assert recorder(one, scale).loss == work(one, scale).loss
    assert len(replayed) == 2
    other = micro_batch(2, count=6)
    assert recorder(other, scale).loss == work(other, scale).loss
    assert len(replayed) == 2


def test_a_recorder_keeps_few_recordings(replayed):
    recorder = Recorder(work)
    for count in range(MOST_SHAPES + 3):
        for _ in range(4):
            recorder(micro_batch(2, count), torch.tensor(1.0))
    assert len(replayed) == MOST_SHAPES


def test_a_recorder_that_forgets_holds_no_recording_and_begins_anew(replayed):
    recorder = Recorder(work)
    for _ in range(4):
        recorder(micro_batch(2, 5), torch.tensor(1.0))
    held = weakref.ref(replayed.pop())
    recorder.clear()
    gc.collect()
    assert held() is None
    for made in (0, 0, 1, 1):
        recorder(micro_batch(2, 5), torch.tensor(1.0))
        assert len(replayed) == made


def test_a_recorder_tells_batches_with_pads_from_those_without(replayed):
    """Attention reads pads or does not, which is decided when a pass is recorded and not when it is played."""

    def seen(one: MicroBatch, scale: torch.Tensor) -> LossTerms:
        return LossTerms(*[torch.tensor(float(one.batch.has_pads))] * 6)

    recorder = Recorder(seen)
    full = micro_batch(2, 5)
    ragged = replace(full, batch=replace(full.batch, has_pads=True))
    assert not full.batch.has_pads
    for one in [full, ragged] * 5:
        assert recorder(one, torch.tensor(1.0)).loss == float(one.batch.has_pads)
    assert len(replayed) == 2


def test_a_recorder_tells_what_a_pass_reads_by_name_and_type(replayed):
    """A weight is no mask rate of the step before, and what is copied into another type is no longer the same."""

    def seen(one: MicroBatch, scale: torch.Tensor) -> LossTerms:
        weight, before, rate = one.corruption.weight, one.corruption.mask_rate_s, one.corruption.mask_rate
        told = [0.0 if x is None else float(x.sum()) for x in (weight, before)]
        return LossTerms(*[torch.tensor(told[0] - told[1] + (rate.dtype == torch.float64))] * 6)

    recorder, plain = Recorder(seen), micro_batch(2, 5)
    corruption = replace(plain.corruption, weight=None, mask_rate_s=None, mask_rate=torch.full((2,), 0.5))
    kinds = [
        replace(corruption, weight=torch.ones(2)),
        replace(corruption, mask_rate_s=torch.ones(2)),
        replace(corruption, weight=torch.ones(2), mask_rate=torch.full((2,), 0.5, dtype=torch.float64)),
    ]
    for kind in kinds * 4:
        one = replace(plain, corruption=kind)
        assert recorder(one, torch.tensor(1.0)).loss == seen(one, torch.tensor(1.0)).loss
    assert len(replayed) == 3


def test_a_compiled_gelu_is_the_same_function(monkeypatch):
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    plain = Gelu()(x)
    assert torch.equal(plain, F.gelu(x, approximate="tanh"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(Gelu()(x), plain, rtol=1e-12, atol=1e-12)


def test_dropout_scales_what_it_keeps_and_rests_outside_training():
    x = torch.ones(200, 200)
    layer = Dropout(0.25)
    for out in (layer(x), layer(x, draw_dropout_seeds(device=x.device))):
        assert sorted(out.unique().tolist()) == pytest.approx([0.0, 4 / 3])
        assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    assert not Dropout(1.0)(x, draw_dropout_seeds(device=x.device)).any()
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x


def hashed_mask(x, p):
    return hashed_dropout_mask(x, p, draw_dropout_seeds(device=x.device))


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("drawn", [hashed_mask, lambda x, p: cpu_dropout(torch.ones_like(x), p) > 0])
def test_masks_are_fresh_and_fair_in_every_row_and_column(drawn, p):
    torch.manual_seed(0)
    masks = torch.stack([drawn(torch.empty(256, 128), p) for _ in range(16)]).double()
    spread = (p * (1 - p)) ** 0.5
    assert masks.mean().item() == pytest.approx(1 - p, abs=4 * spread / masks.numel() ** 0.5)
    for dimension in (0, 1, 2):
        means = masks.mean(dim=dimension)
        expected = spread / masks.shape[dimension] ** 0.5
        assert means.std().item() == pytest.approx(expected, rel=0.1)
    one, other = masks[0] - (1 - p), masks[1] - (1 - p)
    assert abs((one * other).mean().item()) < 4 * spread**2 / one.numel() ** 0.5
    assert abs((one[:, 1:] * one[:, :-1]).mean().item()) < 4 * spread**2 / one.numel() ** 0.5


def test_a_compiled_block_drops_in_the_backward_pass_what_it_dropped_in_the_forward_pass(monkeypatch):
    """However much of the forward pass is made again there."""
    monkeypatch.setattr(compiling, "ACTIVATION_MEMORY_BUDGET", 0.3)
    torch._dynamo.reset()
    torch.manual_seed(0)
    found = []
    for network in two_networks(dropout=0.5):
        block, x = network.train().blocks[0], torch.linspace(-9, 9, 1024).view(2, 16, 32).sin().requires_grad_()
        rotary = rotary_angles(16, 16, 1e4, x.device)
        out = block(x, None, rotary, bidirectional_mask(None), seeds=torch.tensor([[1, 2], [3, 4]], dtype=torch.int32))
        (out * torch.arange(32.0)).sum().backward()
        found.append([out.detach(), x.grad, *(parameter.grad for parameter in block.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm()


@pytest.fixture
def seeds_seen(monkeypatch):
    """The seeds that branches are given, and a network of three blocks that is compiled for a GPU by its own word."""
    seen: list[Any] = []
    monkeypatch.setattr(Dropout, "forward", lambda self, x, seeds=None: seen.append(seeds) or x)
    monkeypatch.setattr(
        trunk, "draw_dropout_seeds", lambda *shape, device: torch.arange(2 * math.prod(shape)).view(*shape, 2)
    )
    one = DiTSpec(size="nano", hidden_size=32, layers=3, heads=2, dropout=0.5).build(V, 10, L).train()
    decide = one._dropout_seeds
    monkeypatch.setattr(one, "_dropout_seeds", lambda device: decide(torch.device("cuda")))
    one.fused = True
    return one, seen


@pytest.mark.parametrize("positions", [None, torch.tensor([[1, 3]])], ids=["all", "some"])
def test_every_branch_of_every_block_drops_by_a_seed_of_its_own(seeds_seen, positions):
    one, seen = seeds_seen
    ids = torch.zeros(1, L, dtype=torch.int64)
    one.hidden(ids) if positions is None else one.hidden_at(ids, positions)
    assert [seeds.tolist() for seeds in seen] == [[2 * i, 2 * i + 1] for i in range(6)]


@pytest.mark.parametrize("change", [{"training": False}, {"fused": False}], ids=str)
def test_seeds_are_drawn_for_a_compiled_network_in_training_alone(seeds_seen, change):
    one, seen = seeds_seen
    for name, value in change.items():
        setattr(one, name, value)
    one.hidden(torch.zeros(1, L, dtype=torch.int64))
    assert seen == [None] * 6


def two_networks(**options):
    """The same network twice, compiled and as it is, with nothing at zero."""
    for compiled in (True, False):
        torch.manual_seed(0)
        network = DiTSpec(size="nano", hidden_size=32, layers=1, heads=2, **options).build(11, 10, 16)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        if compiled:
            compiling.compile_blocks(network)
        yield network


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4)])
def test_words_shared_by_four_numbers_serve_any_shape_and_its_gradient(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    out = cpu_dropout(x, 0.3)
    out.sum().backward()
    assert torch.allclose(out, x * x.grad)
    assert torch.allclose(x.grad[x.grad > 0], torch.tensor(1 / 0.7), rtol=1e-4)


@pytest.mark.parametrize(("p", "share"), [(1e-9, 1.0), (1 - 1e-9, 2.0**-16)])
def test_extreme_rates_are_rounded_and_never_divide_by_nothing(p, share):
    torch.manual_seed(0)
    out = cpu_dropout(torch.ones(1 << 20), p)
    assert out.isfinite().all()
    assert (out > 0).double().mean().item() == pytest.approx(share, rel=0.8)
    assert out.max().item() == pytest.approx(1 / share)
    assert not Dropout(1.0)(torch.ones(100)).any()


def test_fused_draws_are_for_the_plain_rule_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(draws, "_sample_fused", lambda *args: seen.append(args) or draws._sample(*args))
    logits, seeds, positions = torch.randn(4, V), torch.arange(4), torch.arange(4)
    for rule in (TokenSampler(), TokenSampler(temperature=0.5), TokenSampler(top_k=3), TokenSampler(top_p=0.5)):
        plain, fused = (rule.sample(logits, seeds, 3, positions, fused=f) for f in (False, True))
        assert torch.equal(plain[0], fused[0])
        assert torch.equal(plain[1], fused[1])
    assert len(seen) == 1
