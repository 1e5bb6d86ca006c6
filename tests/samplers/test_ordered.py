"""Orders of unmasking step by step: how many positions a call writes, which, and what a walk promises on its way."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from unmask.constraints import Vocabulary, Words, compile_constraints
from unmask.errors import UnmaskError
from unmask.laws import exact
from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import ConstantDenoiser, RecordingDenoiser, planner_log_odds, random_table
from unmask.registry import build
from unmask.samplers import token_sampling as draws
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.options import SamplingOptions, configure_sampler
from unmask.samplers.ordered import (
    SCORES,
    EntropyBoundedSampler,
    OrderedSampler,
    ThresholdSampler,
    ranks,
    tokens_per_call,
)
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear

MASK = 1
ORDERS = ("confidence", "margin", "entropy", "planner", "left_to_right", "uniform")
GREEDY = TokenSampler(temperature=0)


def blank(rows: int, length: int, seed: int = 0) -> Canvas:
    return Canvas.of(torch.full((rows, length), MASK), MASK, seed)


def test_portions_are_even_by_default():
    assert tokens_per_call(12, 4, LogLinear()) == [3, 3, 3, 3]
    assert sorted(tokens_per_call(10, 4, LogLinear())) == [2, 2, 3, 3]
    assert tokens_per_call(3, 8, LogLinear()) == [1, 1, 1]
    assert tokens_per_call(5, None, LogLinear()) == [1] * 5
    assert tokens_per_call(0, 4, LogLinear()) == tokens_per_call(0, None, LogLinear()) == []
    assert tokens_per_call(7, 1, LogLinear()) == [7]


@pytest.mark.parametrize("pace", ["cosine", "cosine-squared", "geometric", "linear-sigma", {"name": "polynomial"}])
def test_every_pace_makes_every_call(pace):
    pace = build("schedule", pace)
    for masks in (1, 5, 16, 40):
        for steps in (1, 3, 16, 39, 40, 100):
            planned = tokens_per_call(masks, steps, pace)
            assert len(planned) == min(steps, masks)
            assert sum(planned) == masks
            assert min(planned) >= 1


def test_pace_is_that_of_the_schedule():
    """Of 100 masks the cosine leaves 100 cos(pi/2 (1 - t)) on average."""
    planned = torch.tensor(tokens_per_call(100, 4, build("schedule", "cosine")))
    left = 100 * build("schedule", "cosine").mask_rate(torch.tensor([0.75, 0.5, 0.25, 0.0], dtype=torch.float64))
    assert torch.equal(100 - planned.cumsum(dim=0), left.round().long())
    assert planned.tolist() != tokens_per_call(100, 4, LogLinear())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [1, 4, 7, None])
def test_steps_are_calls(order, steps):
    denoiser = RecordingDenoiser(ConstantDenoiser(torch.arange(5, dtype=torch.float64), MASK))
    state = sample(OrderedSampler(order=order, steps=steps), denoiser, blank(3, 10))
    assert len(denoiser.calls) == state.total == (steps or 10)
    assert (state.calls == state.total).all()
    written = torch.stack([torch.bincount(row, minlength=state.total) for row in state.order])
    assert written.tolist() == [tokens_per_call(10, steps, LogLinear())] * 3


def dense_loop(table, order: str, ids: list[int]) -> list[int]:
    """The obvious way: look at everything, write the best position's likeliest token, again."""
    masks = ids.count(MASK)
    while MASK in ids:
        alpha = 1 - ids.count(MASK) / masks
        p = exact.log_conditionals(table, torch.tensor([ids]), alpha)[0].exp()
        top = p.sort(dim=1, descending=True).values
        worth = {
            "confidence": top[:, 0],
            "margin": top[:, 0] - top[:, 1],
            "entropy": torch.special.xlogy(p, p).sum(dim=1),
            "planner": planner_log_odds(p),
            "left_to_right": -torch.arange(len(ids)).double(),
        }[order]
        position = max((i for i in range(len(ids)) if ids[i] == MASK), key=lambda i: float(worth[i]))
        ids = [int(p[position].argmax()) if i == position else token for i, token in enumerate(ids)]
    return ids


@pytest.mark.parametrize("order", ORDERS[:5])
def test_one_at_a_time_and_greedy_is_the_dense_loop(order):
    for seed in range(8):
        table = random_table(seed=seed, length=4, conditioned=seed % 2 == 1)
        for start in ([MASK] * 4, [MASK, 2, MASK, MASK]):
            state = sample(OrderedSampler(order=order), table, Canvas.of(torch.tensor([start]), MASK), GREEDY)
            assert state.ids[0].tolist() == dense_loop(table, order, start)


def test_left_to_right_and_lots():
    flat = ConstantDenoiser(torch.zeros(5, dtype=torch.float64), MASK)
    state = sample(OrderedSampler(order="left_to_right", steps=3), flat, blank(2, 6))
    assert state.order.tolist() == [[0, 0, 1, 1, 2, 2]] * 2
    lots = sample(OrderedSampler(order="uniform", steps=3), flat, blank(4000, 6)).order
    first = (lots == 0).long().argmax(dim=1)
    chances = torch.tensor([5, 4, 3, 2, 1, 0], dtype=torch.float64) / 15
    assert chi_square(torch.bincount(first, minlength=6), chances) > 1e-3


@pytest.mark.parametrize("order", ORDERS)
def test_equal_positions_are_written_in_turn_or_by_lot(order):
    flat = ConstantDenoiser(torch.zeros(5, dtype=torch.float64), MASK)
    state = sample(OrderedSampler(order=order), flat, blank(3, 80))
    in_turn = (state.order == torch.arange(80)).all(dim=1)
    assert in_turn.all() if order != "uniform" else not in_turn.any()


def test_scores_of_known_rows():
    log_p = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [1.0, 0.0, 0.0]]).log()
    assert torch.allclose(SCORES["confidence"](log_p), torch.tensor([0.5, 0.6, 1.0]))
    assert torch.allclose(SCORES["margin"](log_p), torch.tensor([0.0, 0.4, 1.0]))
    assert torch.allclose(SCORES["entropy"](log_p), torch.tensor([-0.6931472, -0.9502705, 0.0]))


def test_ranks_count_from_the_surest():
    assert ranks(torch.tensor([[0.1, 0.9, -torch.inf, 0.9]])).tolist() == [[2, 0, 3, 1]]


def test_no_more_than_a_chunk_of_logits_is_held(monkeypatch):
    class Counting(ConstantDenoiser):
        most = 0

        def head(self, rows, mask_logit=False):
            self.most = max(self.most, len(rows))
            return super().head(rows, mask_logit)

    monkeypatch.setattr(draws, "ENTRIES_PER_CHUNK", {"cpu": 4 * 5})
    denoiser = Counting(torch.zeros(5, dtype=torch.float64), MASK)
    sample(OrderedSampler(order="entropy"), denoiser, blank(2, 16))
    assert denoiser.most == 4


class Rows(ConstantDenoiser):
    """A network that says the same of a position whatever the canvas."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__(rows[0], MASK)
        self.rows = rows

    def hidden(self, input_ids, *args, **kwargs):
        return self.rows.expand(len(input_ids), -1, -1)


def sure(*tops: float) -> Rows:
    """Positions whose most likely token, 0, has these probabilities; token 2 has the rest."""
    return Rows(torch.tensor([[top, 1e-9, 1 - top] for top in tops], dtype=torch.float64).log())


@pytest.mark.parametrize("sampler", [ThresholdSampler(above=1.0), ThresholdSampler(above=1.0, by="planner")], ids=repr)
def test_where_nothing_is_sure_a_call_writes_the_surest(sampler):
    """A walk that wrote nothing would never end, so that no more of its states are asked for than there may be."""
    states = list(islice(run_sampler(sampler, sure(0.9, 0.6, 0.8, 0.65), blank(2, 4)), 6))
    assert [int(state.masked[0].sum()) for state in states] == [4, 3, 2, 1, 0]
    assert states[-1].calls.tolist() == [4, 4]
    assert states[-1].order.tolist() == [[0, 3, 1, 2]] * 2


def test_a_threshold_writes_what_is_above_it_and_else_the_surest():
    state = sample(ThresholdSampler(above=0.7), sure(0.9, 0.6, 0.8, 0.65), blank(1, 4))
    assert state.order.tolist() == [[0, 2, 0, 1]]
    assert state.calls.tolist() == [3]


def test_a_threshold_may_ask_the_planner():
    """Tokens 0 and 2 have the odds 4 sin 1 and 4 sin 5 of being right, by the planner of tables: 0.967 and 0.021."""
    network = sure(0.9, 0.6, 0.99, 0.65)
    assert sample(ThresholdSampler(above=0.9, by="planner"), network, blank(1, 4)).order.tolist() == [[0, 2, 0, 1]]
    assert sample(ThresholdSampler(above=0.95, by="planner"), network, blank(1, 4)).order.tolist() == [[1, 3, 0, 2]]
    assert sample(ThresholdSampler(above=0.5, by="planner"), network, blank(1, 4)).order.tolist() == [[0, 0, 0, 0]]
    assert ThresholdSampler(by="planner").needs_planner
    assert not ThresholdSampler().needs_planner


def test_entropy_is_bounded_without_the_largest():
    """Entropies of 0.5, 0.8 and 0.9 against 1/2: 0.6931, 0.5004, 0.3251 nats, and 0.6931."""
    network = sure(0.5, 0.8, 0.9, 0.5)
    for gamma, order in ((0.3, [2, 1, 0, 3]), (0.33, [1, 0, 0, 2]), (0.83, [0, 0, 0, 1]), (1.6, [0, 0, 0, 0])):
        assert sample(EntropyBoundedSampler(gamma=gamma), network, blank(1, 4)).order.tolist() == [order], gamma


def test_an_adaptive_walk_promises_less_and_less():
    network = sure(0.9, 0.6, 0.8, 0.65)
    ids = torch.tensor([[MASK] * 4, [MASK, 2, MASK, 2], [2] * 4])
    states = list(run_sampler(ThresholdSampler(above=0.7), network, Canvas.of(ids, MASK)))
    assert [state.calls.tolist() for state in states] == [[4, 2, 0], [3, 1, 0], [3, 1, 0], [3, 1, 0]]
    assert [state.total for state in states] == [4, 3, 3, 3]


def test_finished_sequences_leave_once_half_are_done():
    denoiser = RecordingDenoiser(sure(0.9, 0.6, 0.8, 0.65))
    ids = torch.tensor([[MASK] * 4, [MASK, 2, MASK, 2]])
    sample(ThresholdSampler(above=0.7), denoiser, Canvas.of(ids, MASK))
    assert [len(call) for call in denoiser.calls] == [2, 1, 1]


@pytest.mark.parametrize(
    "sampler",
    [
        OrderedSampler(),
        OrderedSampler(order="uniform"),
        OrderedSampler(order="planner", steps=2),
        ThresholdSampler(above=0.6),
        EntropyBoundedSampler(),
    ],
)
def test_particles_converge_to_the_law_given_the_match(sampler):
    """One at a time or not: the enumerated chain, restricted to what matches."""
    table, start = random_table(), torch.full((3,), MASK)
    automaton = compile_constraints([Words([2, 3])], Vocabulary(None, 4, MASK), [])
    canvases = torch.arange(64)[:, None] // 4 ** torch.arange(3) % 4
    matches = ((canvases[:, :-1] == 2) & (canvases[:, 1:] == 3)).any(dim=1)
    law = output_distribution(sampler, table, start).where(matches, 0.0)
    begin = configure_sampler(sampler, SamplingOptions(automaton=automaton, particles=256), torch.device("cpu"))
    last = list(begin(table, blank(300, 3)))[-1]
    counts = torch.bincount((last.ids * 4 ** torch.arange(3)).sum(dim=1), minlength=64)
    assert (counts[~matches] == 0).all()
    assert chi_square(counts, law / law.sum()) > 1e-3
    assert float(last.particle_weights.log_weight.exp().mean()) == pytest.approx(float(law.sum()), rel=0.05)


def test_a_walk_that_is_taken_goes_on_in_its_own_order():
    ids = torch.tensor([[MASK] * 4, [2, MASK, MASK, MASK], [MASK, 2, MASK, 2]])
    sampler = OrderedSampler(order="uniform")
    state = sampler.begin(Canvas.of(ids, MASK))
    taken = sampler.select(state, torch.tensor([2, 0, 0]))
    assert taken.calls.tolist() == [2, 4, 4]
    assert torch.equal(taken.plan.scores, state.plan.scores[[2, 0, 0]])
    assert taken.plan.counts.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_samplers_that_cannot_resample_say_so_before_the_network_is_asked():
    class Alone(OrderedSampler):
        select = OrderedSampler.__mro__[1].select

    automaton = compile_constraints([Words([2, 3])], Vocabulary(None, 4, MASK), [])
    with pytest.raises(UnmaskError, match="does not support particles"):
        configure_sampler(Alone(), SamplingOptions(automaton=automaton, particles=2), torch.device("cpu"))
