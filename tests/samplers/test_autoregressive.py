"""The cache that is allocated once, and left-to-right sampling on it: same rows, same draws, no waiting."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.test_causal import MASK, SHAPE, L, V, make, some_ids
from unmask.errors import UnmaskError
from unmask.models.attention import STRIDE, StaticCache
from unmask.samplers import autoregressive as ar
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "item", "equal")


@pytest.fixture(autouse=True)
def short_stride(monkeypatch):
    """Reaches of 5, 10 and the capacity."""
    monkeypatch.setitem(STRIDE, "cpu", 5)


def read(model, ids: Tensor, cache: StaticCache, position: int) -> Tensor:
    cache.seek(position, ids.shape[1])
    return model.hidden(ids, past_key_values=cache)


@pytest.mark.parametrize("pieces", [[1] * L, [4, 1, 1, 1, 5], [7, 5], [L]])
def test_rows_are_those_without_a_cache(pieces):
    model, ids = make(), some_ids()
    cache, at, rows = model.new_cache(L), 0, []
    for piece in ids.split(pieces, dim=1):
        rows.append(read(model, piece, cache, at))
        at += piece.shape[1]
        assert cache.reach in (5, 10, L)
        assert cache.reach >= at
    torch.testing.assert_close(torch.cat(rows, dim=1), model.hidden(ids), rtol=0, atol=1e-5)


def test_what_lies_behind_a_query_is_not_seen():
    """Keys of tokens that were read before and are to be read anew are masked until they are written again."""
    model, ids = make(), some_ids()
    cache = model.new_cache(L)
    first = read(model, ids, cache, 0)
    torch.testing.assert_close(read(model, ids[:, 3:5], cache, 3), first[:, 3:5], rtol=0, atol=1e-5)
    other = (ids + 1) % V
    assert (read(model, other[:, 5:6], cache, 5) - first[:, 5:6]).abs().amax() > 1e-3


def test_memory_is_taken_once():
    model, ids = make(), some_ids()
    cache = model.new_cache(L)
    read(model, ids[:, :2], cache, 0)
    before = cache._keys.data_ptr(), cache._values.data_ptr()
    for position in range(2, L):
        read(model, ids[:, position : position + 1], cache, position)
    assert (cache._keys.data_ptr(), cache._values.data_ptr()) == before
    assert cache._keys.shape == (2, 3, 4, L, SHAPE["hidden_size"] // 4)


def test_one_compilation_serves_every_position_of_a_reach():
    model, ids = make(), some_ids()
    cache = model.new_cache(L)
    plain = read(model, ids, cache, 0)
    counter = CompileCounter()
    torch._dynamo.reset()
    step = torch.compile(lambda token: model.hidden(token, past_key_values=cache), fullgraph=True, backend=counter)
    for position in range(5, 10):
        cache.seek(position, 1)
        row = step(ids[:, position : position + 1].clone())
        torch.testing.assert_close(row, plain[:, position : position + 1], rtol=0, atol=1e-5)
    assert counter.frame_count == 1


def test_more_room_than_the_network_reads_is_refused():
    with pytest.raises(UnmaskError, match=f"{L + 1} tokens.*semi-autoregressive"):
        make().new_cache(L + 1)


def ragged(length: int = L) -> Canvas:
    """Prompts of several lengths, tokens given on the way, a row with nothing to write and one with pads."""
    ids = some_ids(5, length).clamp(max=MASK - 1)
    ids[0], ids[1, 3:], ids[3, 6:], ids[4, :4] = MASK, MASK, MASK, MASK
    ids[1, 7:9] = 2
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[3, -2:] = False
    return Canvas.of(ids, MASK, seed=11, attention_mask=attention)


def without_a_cache(model, canvas: Canvas, rule: TokenSampler) -> tuple[Tensor, Tensor]:
    """Every position from all tokens before it, row by row, with the step as a plain number."""
    ids, trust = canvas.ids.clone(), torch.ones(canvas.ids.shape)
    begin = [] if model.config.bos_token_id is None else [model.config.bos_token_id]
    for row, position in canvas.masked.nonzero().tolist():
        before = torch.tensor([begin + ids[row, :position].tolist()])
        logits = model.head(model.hidden(before)[:, -1])
        token, confidence = rule.sample(logits, canvas.seeds[row : row + 1], position, torch.tensor([position]))
        ids[row, position], trust[row, position] = token[0], confidence[0]
    return ids, trust


@pytest.mark.parametrize(
    "rule",
    [TokenSampler(), TokenSampler(temperature=0), TokenSampler(temperature=0.7, top_k=5), TokenSampler(top_p=0.8)],
)
def test_tokens_are_those_of_whole_passes(rule):
    model, canvas = make(), ragged()
    with torch.inference_mode():
        ids, trust = without_a_cache(model, canvas, rule)
        states = list(run_sampler(AutoregressiveSampler(), model, canvas, rule))
    assert torch.equal(states[-1].ids, ids)
    torch.testing.assert_close(states[-1].confidence, trust, rtol=1e-4, atol=1e-6)
    left = [int(state.masked.sum()) for state in states]
    assert [before - after for before, after in pairwise(left)] == canvas.masked.sum(0).tolist()
    own = torch.arange(ids.shape[1]) - canvas.masked.long().argmax(dim=1, keepdim=True)
    assert torch.equal(states[-1].order, own.where(canvas.masked, -1))
    assert [state.call for state in states] == list(range(L + 1))


def test_a_network_without_a_begin_token():
    model = make(bos_token_id=None)
    ids = some_ids().clamp(max=MASK - 1)
    ids[0, 1:], ids[1, 4:], ids[2, 2:7] = MASK, MASK, MASK
    canvas = Canvas.of(ids, MASK, seed=3)
    with torch.inference_mode():
        expected, _ = without_a_cache(model, canvas, TokenSampler())
        assert torch.equal(sample(AutoregressiveSampler(), model, canvas).ids, expected)


def test_draws_do_not_see_whether_the_step_is_a_tensor():
    logits, seeds, at = torch.randn(64, 300), torch.arange(64), torch.full((64,), 9)
    for rule in (TokenSampler(), TokenSampler(top_k=7), TokenSampler(top_p=0.5, temperature=1.3)):
        for number, tensor in zip(
            rule.sample(logits, seeds, 9, at), rule.sample(logits, seeds, torch.tensor(9), at), strict=True
        ):
            assert torch.equal(number, tensor)


class Launches(TorchDispatchMode):
    """Counts what is computed, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.seen["slice" if name == "alias" else name] += 1  # what a slice of everything is
        indices = args[1] if name.startswith("index") and len(args) > 1 else ()
        chosen = [x for x in indices if isinstance(x, Tensor)] if isinstance(indices, (list, tuple)) else []
        assert all(x.dtype != torch.bool for x in chosen), "how many are chosen is not known before they are counted"
        return function(*args, **(kwargs or {}))


def test_calls_cost_the_same_and_wait_for_nothing():
    model, canvas, calls = make(), ragged(), []
    states = run_sampler(AutoregressiveSampler(), model, canvas)
    next(states)
    while True:
        with Launches() as launches:
            if next(states, None) is None:
                break
        calls.append(launches.seen)
    assert len(calls) == L
    assert all(call == calls[1] for call in calls[1:])
    assert not any(name in calls[1] for name in WAITS)
    assert calls[1]["index_copy_"] == 2 * model.config.num_hidden_layers


@pytest.mark.parametrize(("worth", "recordings"), [(1, [4, 5, 2]), (3, [4, 5]), (5, [5]), (6, [])])
def test_a_recording_serves_a_reach_where_it_is_worth_it(monkeypatch, worth, recordings):
    """Played back as a graph is: the same call on the same memory, its result at the same place."""
    played: list[int] = []

    def record(step):
        held = [x.clone() for x in step()]
        played.append(0)

        def play():
            played[-1] += 1
            for kept, new in zip(held, step(), strict=True):
                kept.copy_(new)
            return tuple(held)

        return play

    model, canvas = make(), ragged()
    plain = list(run_sampler(AutoregressiveSampler(), model, canvas))
    monkeypatch.setattr(ar, "can_capture", lambda denoiser: True)
    monkeypatch.setattr(ar, "CudaGraph", record)
    monkeypatch.setattr(ar, "MIN_CALLS_TO_CAPTURE", worth)
    for state, again in zip(plain, list(run_sampler(AutoregressiveSampler(), model, canvas)), strict=True):
        assert torch.equal(state.ids, again.ids)
        assert torch.equal(state.confidence, again.confidence)
    assert played == recordings
