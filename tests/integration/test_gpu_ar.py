"""Left-to-right sampling as CUDA graphs: what is replayed is what plain calls give. Skipped where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.models import CausalConfig, CausalLM
from unmask.models.inference import CudaGraph
from unmask.samplers import autoregressive as ar
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, State, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
V, MASK, LENGTH = 300, 299, 600


@pytest.fixture(scope="module")
def model() -> CausalLM:
    """A random network whose tokens depend on all that stands before them."""
    torch.manual_seed(0)
    config = CausalConfig(
        vocab_size=V, mask_token_id=MASK, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, max_length=LENGTH
    )
    network = CausalLM(config).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return network.cuda()


def canvas(rows: int = 3, length: int = LENGTH) -> Canvas:
    """Prompts of different lengths; one row has a given token far behind."""
    ids = torch.full((rows, length), MASK)
    for row in range(rows):
        ids[row, : 2 * row] = torch.arange(2 * row)
    ids[-1, length // 2] = 7
    return Canvas.of(ids.cuda(), MASK, seed=5)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a graph was recorded, one entry each."""
    seen: list[int] = []
    monkeypatch.setattr(ar, "CudaGraph", lambda step: (seen.append(1), CudaGraph(step))[1])
    return seen


def plainly(model: CausalLM, start: Canvas, rule: TokenSampler | None = None) -> State:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ar, "can_capture", lambda denoiser: False)
        return sample(AutoregressiveSampler(), model, start, rule)


@pytest.mark.parametrize(
    "rule",
    [TokenSampler(), TokenSampler(temperature=0), TokenSampler(temperature=0.8, top_k=20), TokenSampler(top_p=0.9)],
)
def test_graphs_write_what_plain_calls_write(model: CausalLM, recorded: list[int], rule: TokenSampler) -> None:
    """Over three reaches of the cache: 256, 512 and 600."""
    start = canvas()
    captured, plain = sample(AutoregressiveSampler(), model, start, rule), plainly(model, start, rule)
    assert len(recorded) == 3
    assert torch.equal(captured.ids, plain.ids)
    assert torch.equal(captured.order, plain.order)
    torch.testing.assert_close(captured.confidence, plain.confidence, rtol=1e-4, atol=1e-7)


def test_every_state_keeps_what_it_showed(model: CausalLM) -> None:
    """A graph writes into the same memory at every call; the states must not."""
    shown: list[Tensor] = []
    states = []
    for state in run_sampler(AutoregressiveSampler(), model, canvas(length=64)):
        shown.append(state.ids.clone())
        states.append(state)
    assert all(torch.equal(state.ids, ids) for state, ids in zip(states, shown, strict=True))
    assert [int((ids[0] == MASK).sum()) for ids in shown] == list(range(64, -1, -1))


def test_the_cpu_writes_the_same(model: CausalLM) -> None:
    there = canvas(length=64)
    here = Canvas(there.ids.cpu(), there.attention_mask.cpu(), there.seeds.cpu(), MASK)
    on_gpu = sample(AutoregressiveSampler(), model, there).ids.cpu()
    assert torch.equal(sample(AutoregressiveSampler(), model.cpu(), here).ids, on_gpu)
    model.cuda()


def test_bf16_graphs_write_what_plain_calls_write(model: CausalLM, recorded: list[int]) -> None:
    start = canvas(length=300)
    with torch.autocast("cuda", torch.bfloat16):
        captured, plain = sample(AutoregressiveSampler(), model, start), plainly(model, start)
    assert len(recorded) == 2
    assert torch.equal(captured.ids, plain.ids)


def test_nothing_between_two_tokens_waits_for_the_device(model: CausalLM) -> None:
    states = run_sampler(AutoregressiveSampler(), model, canvas(length=128))
    for _ in range(4):
        next(states)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rest = list(states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(rest) == 128 + 1 - 4


def test_few_tokens_are_not_recorded(model: CausalLM, recorded: list[int]) -> None:
    sample(AutoregressiveSampler(), model, canvas(length=ar.MIN_CALLS_TO_CAPTURE))
    assert recorded == []
    sample(AutoregressiveSampler(), model, canvas(length=ar.MIN_CALLS_TO_CAPTURE + 1))
    assert recorded == [1]


def test_laws_of_the_causal_network_hold_on_graphs(monkeypatch: pytest.MonkeyPatch, recorded: list[int]) -> None:
    from unmask import laws
    from unmask.laws.base import on_device

    monkeypatch.setattr(ar, "MIN_CALLS_TO_CAPTURE", 1)
    cases = [case for case in laws.cases("model") if case.member.causal]
    with on_device("cuda"):
        for law in (law for case in cases for law in case.run()):
            law.require()
    assert recorded
