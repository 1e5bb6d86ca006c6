"""Left-to-right sampling on a key-value cache: the same tokens as without one, and no waiting for the device."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.test_causal import MASK, SHAPE, L, make, some_ids
from unmask.errors import UnmaskError
from unmask.laws.tables import ConstantDenoiser, RecordingDenoiser
from unmask.models.attention import STRIDE, StaticCache
from unmask.samplers import autoregressive
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

SYNCHRONISES = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "item", "equal")


@pytest.fixture(autouse=True)
def short_stride(monkeypatch):
    """Cache lengths of 5, 10 and the capacity."""
    monkeypatch.setitem(STRIDE, "cpu", 5)


def read(model, ids: Tensor, cache: StaticCache, position: int) -> Tensor:
    cache.seek(position, ids.shape[1])
    return model.hidden(ids, past_key_values=cache)


@pytest.mark.parametrize("pieces", [[1] * L, [4, 1, 1, 1, 5], [7, 5], [L]])
def test_hidden_rows_equal_those_without_a_cache(pieces):
    model, ids = make(), some_ids()
    cache, at, rows = model.new_cache(L), 0, []
    for piece in ids.split(pieces, dim=1):
        rows.append(read(model, piece, cache, at))
        at += piece.shape[1]
        assert cache.reach in (5, 10, L)
        assert cache.reach >= at
    torch.testing.assert_close(torch.cat(rows, dim=1), model.hidden(ids), rtol=0, atol=1e-5)


def test_the_cache_is_allocated_once():
    model, ids = make(), some_ids()
    cache = model.new_cache(L)
    read(model, ids[:, :2], cache, 0)
    before = cache._keys.data_ptr(), cache._values.data_ptr()
    for position in range(2, L):
        read(model, ids[:, position : position + 1], cache, position)
    assert (cache._keys.data_ptr(), cache._values.data_ptr()) == before
    assert cache._keys.shape == (2, 3, 4, L, SHAPE["hidden_size"] // 4)


def test_one_compilation_serves_every_position_of_a_cache_length():
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


def test_a_cache_beyond_the_length_of_the_network_is_refused():
    with pytest.raises(UnmaskError, match=f"{L + 1}"):
        make().new_cache(L + 1)


def ragged() -> Canvas:
    """Prompts of several lengths, given tokens in between, a row without masks and one with pads."""
    ids = torch.randint(0, MASK, (5, L), generator=torch.Generator().manual_seed(1))
    ids[0], ids[1, 3:], ids[3, 6:], ids[4, :4] = MASK, MASK, MASK, MASK
    ids[1, 7:9] = 2
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[3, -2:] = False
    return Canvas.of(ids, MASK, seed=11, attention_mask=attention)


def without_cache(model, canvas: Canvas, tokens: TokenSampler) -> tuple[Tensor, Tensor]:
    """Every position from all tokens before it, row by row."""
    ids, confidence = canvas.ids.clone(), torch.ones(canvas.ids.shape)
    bos = [] if model.config.bos_token_id is None else [model.config.bos_token_id]
    for row, position in canvas.masked.nonzero().tolist():
        logits = model.head(model.hidden(torch.tensor([bos + ids[row, :position].tolist()]))[:, -1])
        token, probability = tokens.sample(logits, canvas.seeds[row : row + 1], position, torch.tensor([position]))
        ids[row, position], confidence[row, position] = token[0], probability[0]
    return ids, confidence


@pytest.mark.parametrize(
    "tokens",
    [TokenSampler(), TokenSampler(temperature=0), TokenSampler(temperature=0.7, top_k=5), TokenSampler(top_p=0.8)],
)
def test_tokens_equal_those_of_whole_passes(tokens):
    model, canvas = make(), ragged()
    with torch.inference_mode():
        ids, confidence = without_cache(model, canvas, tokens)
        states = list(run_sampler(AutoregressiveSampler(), model, canvas, tokens))
    assert torch.equal(states[-1].ids, ids)
    torch.testing.assert_close(states[-1].confidence, confidence, rtol=1e-4, atol=1e-6)
    left = [int(state.masked.sum()) for state in states]
    assert [before - after for before, after in pairwise(left)] == canvas.masked.sum(0).tolist()
    own = torch.arange(ids.shape[1]) - canvas.masked.long().argmax(dim=1, keepdim=True)
    assert torch.equal(states[-1].order, own.where(canvas.masked, -1))
    assert [state.call for state in states] == list(range(L + 1))


def test_a_model_without_bos_needs_a_prompt():
    model, ids = make(bos_token_id=None), some_ids().clamp(max=MASK - 1)
    ids[0, 1:], ids[1, 4:], ids[2, 2:7] = MASK, MASK, MASK
    canvas = Canvas.of(ids, MASK, seed=3)
    with torch.inference_mode():
        expected, _ = without_cache(model, canvas, TokenSampler())
        assert torch.equal(sample(AutoregressiveSampler(), model, canvas).ids, expected)
    with pytest.raises(UnmaskError, match="give a prompt"):
        sample(AutoregressiveSampler(), model, Canvas.of(torch.full((1, 3), MASK), MASK))


def test_a_prompt_is_read_once_and_then_one_token_per_call():
    ids = torch.full((2, 6), 1)
    ids[:, :3] = 2
    denoiser = RecordingDenoiser(ConstantDenoiser(torch.zeros(5, dtype=torch.float64), 1))
    sample(AutoregressiveSampler(), denoiser, Canvas.of(ids, 1))
    assert [call.shape[1] for call in denoiser.calls] == [4, 1, 1]
    assert denoiser.calls[0][0].tolist() == [1, 2, 2, 2]


class CountOperations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.seen["slice" if name == "alias" else name] += 1  # a slice of everything is an alias
        indices = args[1] if name.startswith("index") and len(args) > 1 else ()
        chosen = [x for x in indices if isinstance(x, Tensor)] if isinstance(indices, (list, tuple)) else []
        assert all(x.dtype != torch.bool for x in chosen), "indexing by a boolean mask waits for the device"
        return function(*args, **(kwargs or {}))


def test_calls_cost_the_same_and_never_wait():
    model, calls = make(), []
    states = run_sampler(AutoregressiveSampler(), model, ragged())
    next(states)
    while True:
        with CountOperations() as operations:
            if next(states, None) is None:
                break
        calls.append(operations.seen)
    assert len(calls) == L
    assert all(call == calls[1] for call in calls[1:])
    assert not any(name in calls[1] for name in SYNCHRONISES)
    assert calls[1]["index_copy_"] == 2 * model.config.num_hidden_layers


@pytest.mark.parametrize(("minimum", "replays"), [(1, [4, 5, 2]), (3, [4, 5]), (5, [5]), (6, [])])
def test_a_graph_is_captured_where_enough_calls_are_left(monkeypatch, minimum, replays):
    """A stand-in for a CUDA graph: the same call on the same memory, with its result at the same place."""
    played: list[int] = []

    def capture(step):
        held = [x.clone() for x in step()]
        played.append(0)

        def replay():
            played[-1] += 1
            for kept, new in zip(held, step(), strict=True):
                kept.copy_(new)
            return tuple(held)

        return replay

    model, canvas = make(), ragged()
    plain = list(run_sampler(AutoregressiveSampler(), model, canvas))
    monkeypatch.setattr(autoregressive, "can_capture", lambda denoiser: True)
    monkeypatch.setattr(autoregressive, "CudaGraph", capture)
    monkeypatch.setattr(autoregressive, "MIN_CALLS_TO_CAPTURE", minimum)
    for state, again in zip(plain, run_sampler(AutoregressiveSampler(), model, canvas), strict=True):
        assert torch.equal(state.ids, again.ids)
        assert torch.equal(state.confidence, again.confidence)
    assert played == replays
