"""The fast paths of a GPU against the plain ones: compiled, recorded, in half precision."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unmask.config import TrainingConfig
from unmask.data.length_policies import Packed, rows_of_texts
from unmask.models import CausalSpec, DiTSpec
from unmask.models import inference as compiling
from unmask.models.cross_entropy import Projection, weighted_cross_entropy
from unmask.models.inference import CudaGraph, InferenceEngine, cast_trunk_to_bf16
from unmask.models.layers import draw_dropout_seeds, hashed_dropout_mask
from unmask.objectives.autoregressive import AR
from unmask.objectives.base import Corruption, Noise, Objective
from unmask.objectives.d3pm import D3PM
from unmask.objectives.sedd import SEDD
from unmask.objectives.subs import Subs
from unmask.optimizers.base import AdamW
from unmask.optimizers.muon import Muon
from unmask.process import Batch
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear
from unmask.training.data_feed import DataFeed, MicroBatch, split_batch
from unmask.training.distributed import make_accelerator
from unmask.training.step import CALLS_BEFORE_RECORDING, Recorder, TrainStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
V, L, BATCH = 97, 128, 8
SHAPE = {"size": "nano", "hidden_size": 64, "layers": 2, "heads": 2, "dropout": 0.0}


def network(spec: Any = None) -> Any:
    torch.manual_seed(0)
    net = (spec or DiTSpec(**SHAPE)).build(V, V - 1, L)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return net.cuda()


def stepper(
    objective: Objective, compile: bool, optimizer: Any = None, precision: Any = "float32", **options: Any
) -> tuple[TrainStep, DataFeed]:
    spec = CausalSpec(**SHAPE) if objective.causal else DiTSpec(**{**SHAPE, **options})
    torch.manual_seed(0)
    net = spec.build(V, V - 1, L, **({"mask_logit": True} if objective.needs_mask_logit else {}))
    training = TrainingConfig(compile=compile, precision=precision, accumulation=2)
    made = TrainStep(
        make_accelerator(training, 1.0), net, objective, LogLinear(), optimizer or AdamW(learning_rate=1e-3), training
    )
    texts = [torch.randint(V - 1, (64 * L,), generator=torch.Generator().manual_seed(1)).tolist()]
    rows = rows_of_texts(Packed(), texts, L, eos_id=None)
    return made, DataFeed(rows, BATCH, split_batch(BATCH, 2), 0, 0, corrupt=made.corrupt_ahead, pin=True)


def losses(one: TrainStep, feed: DataFeed, steps: int = 10) -> list[float]:
    seen = []
    for step, micro_batches in enumerate(feed.steps(0, steps)):
        one.metrics.reset()
        one.step(micro_batches, step)
        seen.append(float(one.metrics.sums["nats"]))
    return seen


@pytest.mark.parametrize("optimizer", [AdamW(learning_rate=1e-3), Muon(warmup=2)])
@pytest.mark.parametrize("objective", [Subs(), Subs(weight="flat"), AR(), SEDD(), D3PM(steps=8)])
def test_recorded_training_is_the_plain_one(objective, optimizer):
    fast, plain = stepper(objective, True, optimizer), stepper(objective, False, optimizer)
    assert losses(*fast) == pytest.approx(losses(*plain), rel=2e-3)
    assert fast[0]._recorder is not None
    assert bool(fast[0]._recorder._recordings)
    assert plain[0]._recorder is None


def half_masked(step: int, ends: int, pads: bool) -> MicroBatch:
    """Every second token of the first half is masked, whatever comes behind; half of the rows end at `ends`."""
    tokens = torch.randint(V - 1, (BATCH // 2, L), generator=torch.Generator().manual_seed(2 * step + pads))
    real, predicted = torch.ones(tokens.shape, dtype=torch.bool), torch.zeros(tokens.shape, dtype=torch.bool)
    real[::2, ends:] = False
    predicted[:, : L // 2 : 2] = True
    rate = torch.full((len(tokens),), 0.5)
    batch = Batch.of(tokens, real if pads else None)
    return MicroBatch(batch, Noise(rate, torch.rand(tokens.shape)), Corruption.of(predicted, rate, 1.0 / rate))


def losses_of_pairs(one: TrainStep, ends: int = L // 2, steps: int = 8) -> list[float]:
    """Every step is of a micro-batch without pads and of one that has some, of the same shapes."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in one.parameters.values():
            parameter.add_(0.3 * torch.randn(parameter.shape).to(parameter.device))
    seen = []
    for step in range(steps):
        one.metrics.reset()
        one.step([half_masked(step, ends, pads=False), half_masked(step, ends, pads=True)], step)
        seen.append(float(one.metrics.sums["nats"]))
    return seen


def test_a_recorded_step_in_bf16_hides_the_pads_that_a_plain_one_hides():
    """Were pads shown, some step would be off by five times what is allowed here, or more."""
    fast, plain, blind = (stepper(Subs(), compile, precision="bf16")[0] for compile in (True, False, False))
    expected = losses_of_pairs(plain)
    assert losses_of_pairs(fast) == pytest.approx(expected, rel=4e-3)
    assert fast._recorder is not None
    assert len(fast._recorder._recordings) == 2
    shown = losses_of_pairs(blind, ends=L)
    assert max(abs(one / other - 1.0) for one, other in zip(shown[2:], expected[2:], strict=True)) > 2e-2


def test_a_shape_is_recorded_after_one_that_is_too_rare_for_it():
    fast, plain = (stepper(Subs(), compile)[0] for compile in (True, False))
    steps = [[False, False], [True, False], [True, False], [False, True], [True, False]]
    seen: dict[TrainStep, list[float]] = {fast: [], plain: []}
    for one in (fast, plain):
        for step, pads in enumerate(steps):
            one.metrics.reset()
            one.step([half_masked(2 * step + i, L // 2, padded) for i, padded in enumerate(pads)], step)
            seen[one].append(float(one.metrics.sums["nats"]))
    assert seen[fast] == pytest.approx(seen[plain], rel=2e-3)
    assert fast._recorder is not None
    assert len(fast._recorder._recordings) == 2


def test_garbage_does_not_end_a_recording():
    """Ten thousand lists that are kept make Python look for garbage, of which there is a graph."""
    gc.disable()
    garbage = SimpleNamespace(recording=CudaGraph(lambda: torch.zeros(1, device="cuda")))
    garbage.itself = garbage
    seen = weakref.ref(garbage.recording)
    del garbage
    gc.enable()
    made = CudaGraph(lambda: torch.ones(len([[] for _ in range(10_000)]), device="cuda"), warm_up=0)
    assert int(made().sum()) == 10_000
    assert gc.isenabled()
    gc.collect()
    assert seen() is None


def test_recordings_of_several_shapes_share_their_memory():
    work = 64 << 20

    def passes(micro_batch: MicroBatch, scale: torch.Tensor) -> Any:
        return torch.ones(work // 4, device="cuda").mul(scale).mean() + micro_batch.batch.input_ids.sum()

    recorder, scale = Recorder(passes), torch.ones((), device="cuda")
    taken, sums = [], []
    for rows in (2, 3, 4):
        micro_batch = half_masked(0, L, pads=False).map(lambda tensor, rows=rows: tensor[:rows].cuda())
        for _ in range(CALLS_BEFORE_RECORDING + 2):
            sums.append(float(recorder(micro_batch, scale)) - int(micro_batch.batch.input_ids.sum()))
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_reserved())
    assert len(recorder._recordings) == 3
    assert sums == [1.0] * len(sums)
    assert taken[2] - taken[0] < work


@pytest.mark.parametrize("objective", [Subs(), AR()])
def test_a_recorded_step_never_waits_for_the_gpu(objective):
    one, feed = stepper(objective, True)
    micro_batches = feed.micro_batches(0)
    for step in range(12):
        torch.cuda.set_sync_debug_mode("error" if step > 6 else "default")
        try:
            one.step(micro_batches, step)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_dropout_of_a_recorded_step_is_drawn_anew():
    one, feed = stepper(Subs(), True, AdamW(learning_rate=1e-30), dropout=0.5)
    with torch.no_grad():
        for parameter in one.parameters.values():
            parameter.add_(0.05 * torch.randn_like(parameter))
    micro_batches = feed.micro_batches(0)
    seen = set()
    for step in range(8):
        one.metrics.reset()
        one.step(micro_batches, step)
        seen.add(float(one.metrics.sums["nats"]))
    assert len(seen) > 4


def test_gradients_of_a_compiled_network_are_those_of_the_masks_that_it_dropped_by(monkeypatch):
    """Of the biases behind the last product, whose gradients are sums over what was kept."""
    for budget in (0.8, 0.3):
        monkeypatch.setattr(compiling, "ACTIVATION_MEMORY_BUDGET", budget)
        torch._dynamo.reset()
        net = network(DiTSpec(**{**SHAPE, "dropout": 0.3})).train()
        compiling.compile_blocks(net)
        ids, seen = torch.randint(V - 1, (4, L), device="cuda"), []
        for shift in (0.0, 8.0):
            with torch.no_grad():
                net.blocks[-1].mlp[2].bias.add_(shift)
            torch.manual_seed(1)
            seen.append(before_final_norm(net, ids))
        upward = torch.randn_like(seen[0])
        wanted = ((seen[1] - seen[0] > 1) * upward).sum(dim=(0, 1)) / 0.7
        net.zero_grad()
        torch.manual_seed(1)
        (before_final_norm(net, ids) * upward).sum().backward()
        found = net.blocks[-1].mlp[2].bias.grad
        assert (found - wanted).norm() < 1e-2 * wanted.norm()


def before_final_norm(net: Any, ids: torch.Tensor) -> torch.Tensor:
    """[B, L, D] what the last block gives."""
    given = []
    hook = net.blocks[-1].register_forward_hook(lambda module, inputs, output: given.append(output))
    net.hidden(ids)
    hook.remove()
    return given[0]


def test_compiled_dropout_keeps_its_share():
    x, compiled = torch.empty(512, 1024, device="cuda"), torch.compile(hashed_dropout_mask)
    drawn, again = (compiled(x, 0.1, draw_dropout_seeds(device=x.device)) for _ in range(2))
    assert drawn.float().mean().item() == pytest.approx(0.9, abs=3e-3)
    assert (drawn == again).float().mean().item() == pytest.approx(0.82, abs=5e-3)


@pytest.mark.parametrize("rows", [torch.arange(0), torch.arange(300), torch.arange(0, 300, 7)])
def test_fused_loss_is_the_plain_one(rows):
    torch.manual_seed(0)
    hidden = torch.randn(3, 100, 64, device="cuda", requires_grad=True)
    weight, bias = torch.randn(V, 64, device="cuda", requires_grad=True), torch.randn(V, device="cuda")
    bias[-1] = -torch.inf
    bias.requires_grad_()
    targets, rows = torch.randint(V - 1, (3, 100), device="cuda"), rows.cuda()
    weights = torch.rand(len(rows), device="cuda")
    found = []
    for fused in (False, True):
        made = Projection(weight, bias, torch.float32, fused)
        net = SimpleNamespace(projection=lambda made=made: made, config=SimpleNamespace(vocab_size=V))
        total, nll = weighted_cross_entropy(net, hidden, rows, targets, weights)
        found.append((nll, *torch.autograd.grad(total, (hidden, weight, bias))))
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [DiTSpec(**SHAPE), DiTSpec(**SHAPE, conditioned=True), DiTSpec(**SHAPE, qk_norm=True)])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_engine_gives_the_rows_of_its_network(spec, compiled):
    plain, engine = network(spec).eval(), InferenceEngine(network(spec).eval())
    if compiled:
        engine.compile()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for call in range(12):
            rows = 4 if call % 3 else 2
            ids = torch.randint(V, (rows, L), generator=generator).cuda()
            alpha = torch.rand(rows, generator=generator).cuda()
            positions = torch.randint(L, (rows, 3), generator=generator).cuda()
            torch.testing.assert_close(engine.hidden(ids, alpha), plain.hidden(ids, alpha), rtol=1e-3, atol=1e-3)
            some, all_of_them = engine.hidden_at(ids, positions, alpha), plain.hidden_at(ids, positions, alpha)
            torch.testing.assert_close(some, all_of_them, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("steps", [None, 16])
def test_samples_of_an_engine_are_those_of_its_network_in_any_company(steps):
    plain, engine = network().eval(), InferenceEngine(network().eval()).compile()
    canvas = Canvas.of(torch.full((4, L), V - 1, device="cuda"), V - 1, seed=5)
    together = sample(AncestralSampler(steps=steps), engine, canvas)
    assert torch.equal(together.ids, sample(AncestralSampler(steps=steps), plain, canvas).ids)
    lone = Canvas.of(canvas.ids[:1], V - 1, seed=7)
    assert torch.equal(sample(AncestralSampler(steps=steps), engine, lone).ids[0], together.ids[2])
    assert not (together.ids == V - 1).any()


def test_fused_draws_are_the_plain_ones():
    torch.manual_seed(0)
    logits = 3 * torch.randn(64, 1001, device="cuda")
    seeds, positions = torch.arange(64, device="cuda"), torch.arange(64, device="cuda") % 7
    for step in (0, 5, torch.tensor(5, device="cuda")):
        plain = TokenSampler().sample(logits, seeds, step, positions)
        fused = TokenSampler().sample(logits, seeds, step, positions, fused=True)
        assert torch.equal(plain[0], fused[0])
        torch.testing.assert_close(fused[1], plain[1], rtol=1e-4, atol=1e-7)


def test_a_halved_trunk_is_close_and_its_rows_are_not_rounded():
    plain, half = network().eval(), cast_trunk_to_bf16(network().eval())
    ids = torch.randint(V, (4, L), device="cuda")
    with torch.no_grad():
        exact, rows = plain.hidden(ids), half.hidden(ids)
    assert rows.dtype == torch.float32
    assert (rows != rows.bfloat16().float()).float().mean() > 0.5
    torch.testing.assert_close(rows, exact, rtol=0.1, atol=0.15)


def test_noise_made_ahead_masks_what_noise_made_late_does():
    one, feed = stepper(Subs(), True)
    micro_batch = feed.micro_batches(0)[0]
    late = Subs().corrupt(
        micro_batch.batch.to("cuda"),
        LogLinear(),
        Noise(micro_batch.noise.t.cuda(), micro_batch.noise.u.cuda()),
        one.denoiser.config,
    )
    assert micro_batch.corruption is not None
    assert torch.equal(late.predicted.cpu(), micro_batch.corruption.predicted)
    assert isinstance(micro_batch.batch, Batch)
