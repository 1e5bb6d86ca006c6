"""Samplers step by step: plans, calls, prompts and the states in between. Their laws are in tests/laws."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from unmask import registry
from unmask.errors import UnmaskError
from unmask.laws.base import chi_square
from unmask.laws.tables import ConstantDenoiser, RecordingDenoiser, random_causal_table, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, State, run_sampler, sample
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler
from unmask.samplers.remasking import CorrectorSampler, ReMDMSampler
from unmask.samplers.token_sampling import TokenSampler

MASK = 1
OTHERS = [
    OrderedSampler(),
    OrderedSampler(order="uniform", steps=3),
    ThresholdSampler(),
    EntropyBoundedSampler(),
    ReMDMSampler(steps=4),
    CorrectorSampler(steps=4),
]


def blank(rows: int, length: int, seed: int = 0) -> Canvas:
    return Canvas.of(torch.full((rows, length), MASK), MASK, seed)


def flat(vocab_size: int = 5) -> ConstantDenoiser:
    """A network to which all tokens are alike."""
    return ConstantDenoiser(torch.zeros(vocab_size, dtype=torch.float64), MASK)


def test_one_step_reveals_everything_in_one_call():
    state = sample(AncestralSampler(steps=1), flat(), blank(3, 20))
    assert state.total == 1
    assert (state.order == 0).all()


def test_one_at_a_time_takes_a_call_for_every_position():
    state = AncestralSampler().begin(blank(4, 9))
    assert state.calls.tolist() == [9] * 4
    assert torch.equal(
        AncestralSampler().reveal_calls(blank(4, 9))[0].sort(dim=1).values, torch.arange(9).expand(4, -1)
    )
    assert state.plan.ends == list(range(0, 37, 4))


def test_groups_are_revealed_from_the_latest_time_to_the_earliest():
    for sampler in (AncestralSampler(), AncestralSampler(steps=5)):
        group, time = sampler.reveal_calls(blank(6, 12))
        calls = group.max(dim=1).values
        for row in range(6):
            times = time[row, : calls[row] + 1]
            assert (times.diff() < 0).all()
            assert ((times > 0) & (times <= 1)).all()


def test_steps_only_merge_calls_of_the_one_at_a_time_walk():
    """The same seeds give the same reveal times: T steps bucket them and never reorder them."""
    (fine, at), (coarse, at_coarse) = (
        AncestralSampler().reveal_calls(blank(20, 8)),
        AncestralSampler(steps=3).reveal_calls(blank(20, 8)),
    )
    for row in range(20):
        order = fine[row].argsort()
        assert (coarse[row][order].diff() >= 0).all()
        assert torch.equal(at_coarse[row, coarse[row]], torch.ceil(at[row, fine[row]] * 3) / 3)


def test_a_call_reveals_the_positions_of_its_group():
    sampler, canvas = AncestralSampler(steps=5), blank(6, 12)
    group, _ = sampler.reveal_calls(canvas)
    state = sampler.begin(canvas)
    for call in range(state.total):
        part = state.plan.part(call)
        at = torch.zeros_like(group, dtype=torch.bool)
        at[state.plan.rows[part], state.plan.columns[part]] = True
        assert torch.equal(at, group == call)


@pytest.mark.parametrize(("steps", "length"), [(4, 4), (16, 8), (8, 32)])
def test_empty_steps_cost_nothing(steps, length):
    """T equally likely steps and L positions leave T (1 - (1 - 1/T)^L) of them to walk, on average."""
    calls = AncestralSampler(steps=steps).begin(blank(4000, length)).calls.double()
    expected = steps * (1 - (1 - 1 / steps) ** length)
    assert abs(float(calls.mean()) - expected) < 4 * float(calls.std()) / 4000**0.5
    assert calls.max() <= min(steps, length)


def test_every_position_may_come_first():
    first = AncestralSampler().reveal_calls(blank(4000, 5))[0].argmin(dim=1)
    assert stats.chisquare(torch.bincount(first, minlength=5).numpy()).pvalue > 1e-3


def test_given_tokens_do_not_move_the_plan_of_the_others():
    canvas = blank(1, 6)
    ids = canvas.ids.clone()
    ids[0, 2] = 3
    given = Canvas.of(ids, MASK)
    whole, part = AncestralSampler().reveal_calls(canvas)[0][0], AncestralSampler().reveal_calls(given)[0][0]
    others = torch.tensor([0, 1, 3, 4, 5])
    assert part[2] == -1
    assert torch.equal(whole[others].argsort(), part[others].argsort())


def test_finished_sequences_leave_once_half_are_done():
    ids = torch.full((5, 4), MASK)
    ids[0, 1:] = 2
    ids[1] = 3
    ids[3, 2:] = 2
    denoiser = RecordingDenoiser(flat())
    state = sample(AncestralSampler(), denoiser, Canvas.of(ids, MASK))
    assert state.calls.tolist() == [1, 0, 4, 2, 4]
    assert [len(call) for call in denoiser.calls] == [5, 5, 2, 2]
    alone = sample(AncestralSampler(), flat(), Canvas.of(ids[4:], MASK, seed=4))
    assert torch.equal(alone.ids[0], state.ids[4])


@pytest.mark.parametrize("sampler", [AncestralSampler(), AncestralSampler(steps=3), AutoregressiveSampler(), *OTHERS])
def test_nothing_to_write_is_no_call(sampler):
    canvas = Canvas.of(torch.tensor([[2, 3]]), MASK)
    states = list(run_sampler(sampler, None, canvas))
    assert len(states) == 1
    assert states[0].total == 0
    assert states[0].confidence.tolist() == [[1.0, 1.0]]


def test_walk_shows_every_canvas():
    states = list(run_sampler(AncestralSampler(), random_table(), blank(1, 3)))
    assert [int((state.ids == MASK).sum()) for state in states] == [3, 2, 1, 0]
    assert [state.call for state in states] == [0, 1, 2, 3]
    assert (states[0].ids == MASK).all()


@pytest.mark.parametrize("sampler", [AncestralSampler(), AncestralSampler(steps=2), AutoregressiveSampler(), *OTHERS])
def test_seeds_decide(sampler):
    one = sample(sampler, flat(), blank(8, 16, seed=1)).ids
    assert torch.equal(one, sample(sampler, flat(), blank(8, 16, seed=1)).ids)
    assert torch.equal(one[1:], sample(sampler, flat(), blank(8, 16, seed=2)).ids[:-1])
    assert len(one.unique(dim=0)) == 8


def test_token_rule_reaches_the_draw():
    peaked = ConstantDenoiser(torch.tensor([0.0, 0.0, 1.0, 0.5], dtype=torch.float64), MASK)
    for sampler in (AncestralSampler(), AutoregressiveSampler()):
        assert (sample(sampler, peaked, blank(4, 6), TokenSampler(temperature=0)).ids == 2).all()


def test_conditioned_networks_are_told_the_alpha_of_each_call():
    sampler = AncestralSampler(steps=4, schedule=registry.build("schedule", "cosine"))
    denoiser = RecordingDenoiser(flat())
    state = sampler.begin(blank(1, 6))
    sample(sampler, denoiser, blank(1, 6))
    told = torch.cat(denoiser.alphas)
    assert torch.allclose(told, sampler.schedule.alpha(state.plan.time[0, : state.total]))
    assert (told.diff() > 0).all()
    grid = sampler.schedule.alpha(torch.arange(5) / 4)
    assert all((grid - alpha).abs().min() < 1e-6 for alpha in told)


def test_left_to_right_reads_a_prompt_once_and_then_a_token_a_call():
    ids = torch.full((2, 6), MASK)
    ids[:, :3] = 2
    denoiser = RecordingDenoiser(flat())
    sample(AutoregressiveSampler(), denoiser, Canvas.of(ids, MASK))
    assert [call.shape[1] for call in denoiser.calls] == [4, 1, 1]
    assert denoiser.calls[0][0].tolist() == [MASK, 2, 2, 2]


def test_left_to_right_writes_around_given_tokens():
    ids = torch.tensor([[MASK, 3, MASK], [2, MASK, 0]])
    state = sample(AutoregressiveSampler(), random_causal_table(), Canvas.of(ids, MASK))
    assert state.ids[0, 1] == 3
    assert state.ids[1, [0, 2]].tolist() == [2, 0]
    assert (state.ids != MASK).all()
    assert state.calls.tolist() == [3, 1]
    assert state.order.tolist() == [[0, -1, 2], [-1, 0, -1]]


def test_network_without_a_begin_token_needs_a_prompt():
    table = random_causal_table(begin=False)
    with pytest.raises(UnmaskError, match="prompt"):
        sample(AutoregressiveSampler(), table, blank(1, 3))
    ids = torch.tensor([[2, MASK, MASK]])
    assert (sample(AutoregressiveSampler(), table, Canvas.of(ids, MASK)).ids != MASK).all()


def test_network_without_a_begin_token_follows_its_chain():
    table, rows = random_causal_table(begin=False), 8192
    ids = torch.tensor([[2, MASK, MASK]]).expand(rows, -1)
    written = sample(AutoregressiveSampler(), table, Canvas.of(ids, MASK)).ids
    first = table.head(table.hidden(torch.tensor([[2]]))[:, -1]).softmax(dim=-1)[0]
    law = torch.zeros(4, 4, dtype=torch.float64)
    for token in (0, 2, 3):
        row = table.head(table.hidden(torch.tensor([[2, token]]))[:, -1]).softmax(dim=-1)[0]
        law[token] = first[token] * row
    counts = torch.bincount(written[:, 1] * 4 + written[:, 2], minlength=16)
    assert chi_square(counts, law.flatten()) > 1e-3


def test_sampler_is_written_with_its_schedule():
    sampler = registry.build("sampler", {"name": "reveal", "steps": 8, "schedule": {"name": "polynomial", "power": 3}})
    assert sampler.model_dump() == {
        "name": "ancestral",
        "steps": 8,
        "schedule": {"name": "polynomial", "power": 3.0},
    }
    with pytest.raises(UnmaskError, match="steps"):
        registry.build("sampler", {"name": "reveal", "steps": 0})


@pytest.mark.parametrize("axis", ["sampler", "objective"])
def test_more_steps_than_time_can_be_cut_into_are_refused(axis):
    cut = [name for name in registry.names(axis) if "steps" in registry.get(axis, name).model_fields]
    assert len(cut) >= 2
    for name in cut:
        assert registry.build(axis, {"name": name, "steps": 10**6}).steps == 10**6
        for steps in (10**6 + 1, 10**30, 10**400):
            with pytest.raises(UnmaskError, match="less than or equal to 1000000"):
                registry.build(axis, {"name": name, "steps": steps})


def test_a_walk_of_the_most_steps_writes_every_position():
    state = sample(AncestralSampler(steps=10**6), flat(), blank(2, 6))
    assert (state.ids != MASK).all()
    assert state.calls.tolist() == [6, 6]


def test_a_sequence_counts_the_calls_that_were_made_for_it():
    canvas = blank(3, 4)
    state = State(
        **{**vars(State.start(canvas, torch.tensor([2, 4, 3]), 5, None)), "idle_calls": torch.tensor([0, 1, 2])}
    )
    made = []
    for call in range(5):
        made.append(state.calls_made.tolist())
        state = state.write(torch.tensor([1]), torch.tensor([0]), torch.tensor([0]), torch.tensor([0.5]))
        assert state.order[1, 0] == call - 1
    assert made == [[0, 0, 0], [1, 0, 0], [2, 1, 0], [2, 2, 1], [2, 3, 2]]
    taken = state.select(torch.tensor([2, 0]), canvas, None)
    assert taken.calls_made.tolist() == [3, 2]
