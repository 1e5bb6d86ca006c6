"""Compiled, captured and half-precision code gives the results of the plain code."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import rows_of_texts
from unmask import laws
from unmask.config import TrainingConfig
from unmask.data.length_policies import Packed
from unmask.laws.base import on_device
from unmask.models import CausalConfig, CausalLM, CausalSpec, DiTSpec
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
from unmask.samplers import autoregressive as ar
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear
from unmask.training.data_feed import DataFeed, MicroBatch, split_batch
from unmask.training.distributed import make_accelerator
from unmask.training.step import CALLS_BEFORE_CAPTURE, CapturedPasses, TrainStep

pytestmark = pytest.mark.gpu
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


def losses(one: TrainStep, batches: Iterable[list[MicroBatch]]) -> list[float]:
    """The loss of every step."""
    seen = []
    for step, micro_batches in enumerate(batches):
        one.metrics.reset()
        one.step(micro_batches, step)
        seen.append(float(one.metrics.sums["nats"]))
    return seen


def perturb(one: TrainStep, scale: float) -> None:
    """Move the weights away from their initial values, the same for every network of a shape."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in one.parameters.values():
            parameter.add_(scale * torch.randn(parameter.shape).to(parameter.device))


@pytest.mark.parametrize("optimizer", [AdamW(learning_rate=1e-3), Muon(warmup=2)])
@pytest.mark.parametrize("objective", [Subs(), Subs(weight="flat"), AR(), SEDD(), D3PM(steps=8)])
def test_recorded_training_is_the_plain_one(objective, optimizer):
    (fast, feed), (plain, other) = stepper(objective, True, optimizer), stepper(objective, False, optimizer)
    assert losses(fast, feed.steps(0, 10)) == pytest.approx(losses(plain, other.steps(0, 10)), rel=2e-3)
    assert fast._captured_passes is not None
    assert bool(fast._captured_passes._passes)
    assert plain._captured_passes is None


def half_masked(step: int, ends: int, pads: bool) -> MicroBatch:
    """Every second token of the first half is masked; with pads, every second row ends at `ends`."""
    tokens = torch.randint(V - 1, (BATCH // 2, L), generator=torch.Generator().manual_seed(2 * step + pads))
    real, predicted = torch.ones(tokens.shape, dtype=torch.bool), torch.zeros(tokens.shape, dtype=torch.bool)
    real[::2, ends:] = False
    predicted[:, : L // 2 : 2] = True
    rate = torch.full((len(tokens),), 0.5)
    batch = Batch.of(tokens, real if pads else None)
    return MicroBatch(batch, Noise(rate, torch.rand(tokens.shape)), Corruption.of(predicted, rate, 1.0 / rate))


def losses_with_pads(one: TrainStep, ends: int = L // 2) -> list[float]:
    """Every step has a micro-batch without pads and one with pads, of the same shapes."""
    perturb(one, 0.3)
    return losses(one, ([half_masked(step, ends, pads) for pads in (False, True)] for step in range(8)))


def test_a_recorded_step_in_bf16_hides_pads():
    """If pads were visible, the loss of some step would differ by five times the tolerance or more."""
    fast, plain, blind = (stepper(Subs(), compile, precision="bf16")[0] for compile in (True, False, False))
    expected = losses_with_pads(plain)
    assert losses_with_pads(fast) == pytest.approx(expected, rel=4e-3)
    assert fast._captured_passes is not None
    assert len(fast._captured_passes._passes) == 2
    shown = losses_with_pads(blind, ends=L)
    assert max(abs(one / other - 1.0) for one, other in zip(shown[2:], expected[2:], strict=True)) > 2e-2


def test_a_frequent_shape_is_recorded_after_a_rare_one():
    fast, plain = (stepper(Subs(), compile)[0] for compile in (True, False))
    steps = [[False, False], [True, False], [True, False], [False, True], [True, False]]
    batches = [
        [half_masked(2 * step + i, L // 2, pad) for i, pad in enumerate(pads)] for step, pads in enumerate(steps)
    ]
    assert losses(fast, batches) == pytest.approx(losses(plain, batches), rel=2e-3)
    assert fast._captured_passes is not None
    assert len(fast._captured_passes._passes) == 2


def test_garbage_does_not_end_a_capture():
    """Allocating ten thousand lists starts the garbage collector, which frees another graph."""
    gc.disable()
    garbage = SimpleNamespace(graph=CudaGraph(lambda: torch.zeros(1, device="cuda")))
    garbage.itself = garbage
    seen = weakref.ref(garbage.graph)
    del garbage
    gc.enable()
    made = CudaGraph(lambda: torch.ones(len([[] for _ in range(10_000)]), device="cuda"), warm_up=0)
    assert int(made().sum()) == 10_000
    assert gc.isenabled()
    gc.collect()
    assert seen() is None


def test_graphs_of_several_shapes_share_their_memory():
    work = 64 << 20

    def passes(micro_batch: MicroBatch, scale: torch.Tensor) -> Any:
        return torch.ones(work // 4, device="cuda").mul(scale).mean() + micro_batch.batch.input_ids.sum()

    captured, scale = CapturedPasses(passes), torch.ones((), device="cuda")
    taken, sums = [], []
    for rows in (2, 3, 4):
        micro_batch = half_masked(0, L, pads=False).map(lambda tensor, rows=rows: tensor[:rows].cuda())
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            sums.append(float(captured(micro_batch, scale)) - int(micro_batch.batch.input_ids.sum()))
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_reserved())
    assert len(captured._passes) == 3
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
    perturb(one, 0.05)
    assert len(set(losses(one, [feed.micro_batches(0)] * 8))) > 4


def test_a_compiled_backward_pass_uses_the_dropout_mask_of_the_forward_pass(monkeypatch):
    """The gradient of the last bias is the sum over the positions that were kept."""
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
    """[B, L, D] the output of the last block."""
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
def test_samples_of_an_engine_are_those_of_its_network_in_any_batch(steps):
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


def test_a_bf16_trunk_is_close_and_its_rows_are_not_rounded():
    plain, half = network().eval(), cast_trunk_to_bf16(network().eval())
    ids = torch.randint(V, (4, L), device="cuda")
    with torch.no_grad():
        exact, rows = plain.hidden(ids), half.hidden(ids)
    assert rows.dtype == torch.float32
    assert (rows != rows.bfloat16().float()).float().mean() > 0.5
    torch.testing.assert_close(rows, exact, rtol=0.1, atol=0.15)


def test_corruption_made_ahead_is_that_made_on_the_gpu():
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


# ---- left-to-right sampling as CUDA graphs --------------------------------------------------------------------------

MASK, LONG = 299, 600


@pytest.fixture(scope="module")
def model() -> CausalLM:
    """A random causal network with a long context."""
    torch.manual_seed(0)
    config = CausalConfig(
        vocab_size=MASK + 1,
        mask_token_id=MASK,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        max_length=LONG,
    )
    network = CausalLM(config).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return network.cuda()


def canvas(rows: int = 3, length: int = LONG) -> Canvas:
    """Prompts of different lengths; one row has a given token in its middle."""
    ids = torch.full((rows, length), MASK)
    for row in range(rows):
        ids[row, : 2 * row] = torch.arange(2 * row)
    ids[-1, length // 2] = 7
    return Canvas.of(ids.cuda(), MASK, seed=5)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each graph that is captured."""
    seen: list[int] = []
    monkeypatch.setattr(ar, "CudaGraph", lambda step: (seen.append(1), CudaGraph(step))[1])
    return seen


RULES = [{}, {"temperature": 0}, {"temperature": 0.8, "top_k": 20}, {"top_p": 0.9}]


@pytest.mark.parametrize(("rule", "bf16"), [*((rule, False) for rule in RULES), ({}, True)])
def test_graphs_write_the_tokens_of_plain_calls(model, captures, rule, bf16):
    """A graph is captured for each cache size: 256, 512 and 600 tokens."""
    start, sampler = canvas(length=300 if bf16 else LONG), TokenSampler(**rule)
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        captured = sample(AutoregressiveSampler(), model, start, sampler)
        assert len(captures) == (2 if bf16 else 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ar, "can_capture", lambda denoiser: False)
            plain = sample(AutoregressiveSampler(), model, start, sampler)
    assert torch.equal(captured.ids, plain.ids)
    assert torch.equal(captured.order, plain.order)
    if not bf16:
        torch.testing.assert_close(captured.confidence, plain.confidence, rtol=1e-4, atol=1e-7)


def test_states_do_not_share_the_memory_of_a_graph(model):
    states, shown = [], []
    for state in run_sampler(AutoregressiveSampler(), model, canvas(length=64)):
        states.append(state)
        shown.append(state.ids.clone())
    assert all(torch.equal(state.ids, ids) for state, ids in zip(states, shown, strict=True))
    assert [int((ids[0] == MASK).sum()) for ids in shown] == list(range(64, -1, -1))


def test_graphs_write_the_tokens_of_the_cpu(model):
    there = canvas(length=64)
    here = Canvas(there.ids.cpu(), there.attention_mask.cpu(), there.seeds.cpu(), MASK)
    on_gpu = sample(AutoregressiveSampler(), model, there).ids.cpu()
    assert torch.equal(sample(AutoregressiveSampler(), model.cpu(), here).ids, on_gpu)
    model.cuda()


def test_autoregressive_sampling_does_not_wait_for_the_gpu(model):
    states = run_sampler(AutoregressiveSampler(), model, canvas(length=128))
    for _ in range(4):
        next(states)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rest = list(states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(rest) == 128 + 1 - 4


def test_short_runs_are_not_captured(model, captures):
    sample(AutoregressiveSampler(), model, canvas(length=ar.MIN_CALLS_TO_CAPTURE))
    assert captures == []
    sample(AutoregressiveSampler(), model, canvas(length=ar.MIN_CALLS_TO_CAPTURE + 1))
    assert captures == [1]


def test_laws_of_the_causal_network_hold_on_graphs(monkeypatch, captures):
    monkeypatch.setattr(ar, "MIN_CALLS_TO_CAPTURE", 1)
    cases = [case for case in laws.cases("model") if case.member.causal]
    with on_device("cuda"):
        for law in (law for case in cases for law in case.run()):
            law.require()
    assert captures
