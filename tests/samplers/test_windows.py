"""Texts longer than the network: their enumerated distribution, their calls, and their ends."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask.generation_config import SamplingOptions, configure_sampler
from unmask.laws import describe, members
from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import ConstantDenoiser, RecordingDenoiser, random_table
from unmask.pipeline import load
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, Sampler, run_sampler, sample
from unmask.samplers.windows import Windows, run_windows
from unmask.schedules import LogLinear

V, L, MASK, LONG = 4, 3, 1, 5
CPU = torch.device("cpu")
DEFAULT = LogLinear()


def last_of(states):
    *_, last = states
    return last


def windowed(sampler: Sampler, denoiser, canvas: Canvas, windows: Windows):
    return run_windows(lambda window: run_sampler(sampler, denoiser, window), sampler, canvas, windows)


def windowed_law(sampler: Sampler, denoiser, start: list[int], windows: Windows) -> torch.Tensor:
    """[V^N] the distribution of the canvas, from the enumerated chain of the sampler on each window."""
    law = {tuple(start): 1.0}
    for begin in windows.starts(len(start)):
        after: dict[tuple[int, ...], float] = {}
        for canvas, chance in law.items():
            chain = output_distribution(sampler, denoiser, torch.tensor(canvas[begin : begin + L]))
            for code in chain.nonzero()[:, 0].tolist():
                written = tuple(code // V**i % V for i in range(L))
                new = canvas[:begin] + written + canvas[begin + L :]
                after[new] = after.get(new, 0.0) + chance * float(chain[code])
        law = after
    out = torch.zeros(V ** len(start), dtype=torch.float64)
    for canvas, chance in law.items():
        out[sum(token * V**i for i, token in enumerate(canvas))] = chance
    return out


def masked_samplers() -> list[Sampler]:
    """Every registered sampler of masked models, with the default schedule."""
    return [one for one in members("sampler") if not one.causal and getattr(one, "schedule", DEFAULT) == DEFAULT]


@pytest.mark.parametrize("sampler", masked_samplers(), ids=describe)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_follow_their_enumerated_distribution(sampler, stride):
    denoiser, windows = random_table(), Windows(L, stride)
    for start in ([MASK] * LONG, [2, MASK, MASK, 0, MASK]):
        law = windowed_law(sampler, denoiser, start, windows)
        assert float(law.sum()) == pytest.approx(1)
        canvas = Canvas.of(torch.tensor(start).expand(4000, -1), MASK, seed=300)
        ids = last_of(windowed(sampler, denoiser, canvas, windows)).ids
        counts = torch.bincount((ids * V ** torch.arange(LONG)).sum(dim=1), minlength=V**LONG)
        assert counts[law == 0].sum() == 0
        assert chi_square(counts, law) > 1e-4


def test_windows_cover_the_canvas_and_end_with_it():
    assert Windows(8, 4).starts(20) == [0, 4, 8, 12]
    assert Windows(8, 4).starts(21) == [0, 4, 8, 12, 13]
    assert Windows(8, 8).starts(20) == [0, 8, 12]
    assert Windows(8, 3).starts(9) == [0, 1]
    assert Windows(8, 3).starts(8) == [0]


@pytest.mark.parametrize("steps", [2, None])
def test_calls_and_order_count_on_over_the_windows(steps):
    denoiser = RecordingDenoiser(random_table())
    canvas = Canvas.of(torch.tensor([[MASK] * 7]), MASK, seed=5)
    states = list(windowed(AncestralSampler(steps=steps), denoiser, canvas, Windows(L, 2)))
    assert [state.call for state in states] == list(range(len(denoiser.calls) + 1))
    assert {state.total for state in states} == {len(denoiser.calls)}
    last = states[-1]
    assert int(last.calls[0]) == len(denoiser.calls) == int(last.order.max()) + 1
    for before, after in itertools.pairwise(states):
        fresh = after.order == before.call
        assert torch.equal(before.ids != after.ids, fresh)
        assert torch.equal(before.confidence[~fresh], after.confidence[~fresh])
    assert all(seen.shape == (1, L) and (seen == MASK).any() for seen in denoiser.calls)


def test_a_sequence_is_finished_with_the_window_of_its_end():
    """Token 3 ends a text. Sequences are the same alone and in a batch."""
    denoiser = RecordingDenoiser(ConstantDenoiser(torch.tensor([0.4, 0.0, 0.4, 0.2]).log(), MASK))
    windows, rows = Windows(4, 2, end=3), 12
    canvas = Canvas.of(torch.full((rows, 16), MASK), MASK, seed=70)
    together = last_of(windowed(AncestralSampler(), denoiser, canvas, windows))
    assert together.total == together.call == len(denoiser.calls)
    assert not any((seen[:, :2] == 3).any() for seen in denoiser.calls[4:]), "finished sequences are left out"
    ends = set()
    for b in range(rows):
        size = int(together.canvas.attention_mask[b].sum())
        ids = together.ids[b, :size].tolist()
        assert MASK not in ids
        assert size == 16 or 3 in ids[-4:]
        assert 3 not in ids[: max(0, size - 4)]
        assert int(together.calls[b]) == size == int(together.order[b].max()) + 1
        denoiser.calls.clear()
        alone = last_of(
            windowed(AncestralSampler(), denoiser, Canvas.of(canvas.ids[b : b + 1], MASK, seed=70 + b), windows)
        )
        assert alone.ids[0, :size].tolist() == ids
        assert alone.order[0, :size].tolist() == together.order[b, :size].tolist()
        assert len(denoiser.calls) == int(together.calls[b])
        ends.add(size)
    assert len(ends) > 2


def test_a_canvas_of_one_window_is_sampled_as_without_windows():
    canvas = Canvas.of(torch.full((20, L), MASK), MASK, seed=3)
    plain = sample(AncestralSampler(steps=2), random_table(), canvas)
    ours = last_of(
        configure_sampler(AncestralSampler(steps=2), SamplingOptions(windows=Windows(L, 2)), CPU)(
            random_table(), canvas
        )
    )
    assert torch.equal(plain.ids, ours.ids)
    assert torch.equal(plain.order, ours.order)
    whole = last_of(windowed(AncestralSampler(steps=2), random_table(), canvas, Windows(L, 2)))
    assert torch.equal(plain.ids, whole.ids)


def test_generate_writes_any_length(mdlm):
    done = mdlm.sample(3, prompt="def f(", length=150, steps=8, seed=4, batch_size=2)
    for i, one in enumerate(done):
        assert len(one.ids) == 150
        assert bytes(one.ids[:6]) == b"def f("
        assert mdlm.text_processor.mask_token_id not in one.ids
        assert one.calls == max(one.order) + 1
        assert min(one.order[6:]) >= 0
        assert all(0 < c <= 1 for c in one.confidence)
        alone = mdlm.sample(1, prompt="def f(", length=150, steps=8, seed=4 + i)[0]
        assert (alone.ids, alone.order, alone.calls) == (one.ids, one.order, one.calls)
    first = mdlm.sample(1, prompt="def f(", length=LENGTH, steps=8, seed=4)[0]
    assert done[0].ids[:LENGTH] == first.ids
    other = mdlm.sample(1, prompt="def f(", length=150, steps=8, seed=4, stride=10)[0]
    assert len(mdlm.sample(1, length=150, steps=2, stride=mdlm.text_processor.max_length)[0].ids) == 150
    assert other.ids[LENGTH:] != done[0].ids[LENGTH:]
    frames = list(mdlm.stream("def f(", length=150, steps=8, seed=4))
    assert frames[-1].ids == done[0].ids
    assert [frame.call for frame in frames] == list(range(done[0].calls + 1))


def test_windows_may_be_shorter_than_the_network(mdlm):
    whole = mdlm.sample(1, length=LENGTH, steps=8, seed=4)[0]
    assert mdlm.sample(1, length=LENGTH, window=LENGTH, steps=8, seed=4)[0].ids == whole.ids
    done = mdlm.sample(1, length=LENGTH, window=LENGTH // 2, stride=LENGTH // 4, seed=4)[0]
    first = mdlm.sample(1, length=LENGTH // 2, seed=4)[0]
    assert done.ids[: LENGTH // 2] == first.ids
    assert done.calls == LENGTH
    blocks = [set(done.order[start : start + LENGTH // 4]) for start in range(LENGTH // 2, LENGTH, LENGTH // 4)]
    assert blocks == [set(range(start, start + LENGTH // 4)) for start in range(LENGTH // 2, LENGTH, LENGTH // 4)]


def test_a_prompt_may_be_longer_than_the_network(mdlm):
    prompt = "x = 1\n" * 12
    one = mdlm.sample(1, prompt=prompt, length=100, steps=4)[0]
    assert bytes(one.ids[:72]).decode() == prompt
    assert one.order[:72] == [-1] * 72
    assert one.calls == max(one.order) + 1


def test_a_long_text_ends_at_eos_if_the_policy_says_so(tmp_path):
    lm = load(make_checkpoint(tmp_path / "padded", policy="padded"), device="cpu")
    eos = lm.tokenizer.eos_token_id
    done = lm.sample(6, length=20 * LENGTH, steps=4, seed=0)
    assert any(len(one.ids) < 20 * LENGTH for one in done)
    for one in done:
        if len(one.ids) < 20 * LENGTH:
            assert eos in one.ids[-LENGTH:]
            assert one.text == lm.decode(one.ids)
            assert one.calls == max(one.order) + 1
    *_, last = lm.stream(length=20 * LENGTH, steps=4, seed=0)
    assert (last.ids, last.call) == (done[0].ids, last.calls)
