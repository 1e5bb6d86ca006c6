"""Ordered and adaptive samplers: how many positions a call writes, which ones, and how many calls are left."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from tests.samplers.test_base import MASK, blank
from unmask.constraints import Vocabulary, Words, compile_constraints
from unmask.generation_config import SamplingOptions, configure_sampler
from unmask.laws import exact
from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import ConstantDenoiser, RecordingDenoiser, planner_log_odds, random_table
from unmask.registry import build
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler, tokens_per_call
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear

ORDERS = ("confidence", "margin", "entropy", "planner", "left_to_right", "uniform")
FLAT = ConstantDenoiser(torch.zeros(5, dtype=torch.float64), MASK)


@pytest.mark.parametrize(
    ("masks", "steps", "counts"),
    [
        (12, 4, [3, 3, 3, 3]),
        (3, 8, [1, 1, 1]),
        (5, None, [1] * 5),
        (0, 4, []),
        (0, None, []),
        (7, 1, [7]),
    ],
)
def test_calls_write_equally_many_by_default(masks, steps, counts):
    assert tokens_per_call(masks, steps, LogLinear()) == counts
    assert sorted(tokens_per_call(10, 4, LogLinear())) == [2, 2, 3, 3]


@pytest.mark.parametrize("pace", ["cosine", "cosine-squared", "geometric", "linear-sigma", {"name": "polynomial"}])
def test_every_call_writes_at_least_one(pace):
    for masks in (1, 5, 16, 40):
        for steps in (1, 3, 16, 39, 40, 100):
            counts = tokens_per_call(masks, steps, build("schedule", pace))
            assert len(counts) == min(steps, masks)
            assert sum(counts) == masks
            assert min(counts) >= 1


def test_the_pace_follows_the_schedule():
    """Of 100 masks the cosine schedule leaves 100 cos(pi/2 (1 - t)) on average."""
    counts = torch.tensor(tokens_per_call(100, 4, build("schedule", "cosine")))
    left = 100 * build("schedule", "cosine").mask_rate(torch.tensor([0.75, 0.5, 0.25, 0.0], dtype=torch.float64))
    assert torch.equal(100 - counts.cumsum(dim=0), left.round().long())
    assert counts.tolist() != tokens_per_call(100, 4, LogLinear())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [1, 4, 7, None])
def test_steps_are_network_calls(order, steps):
    denoiser = RecordingDenoiser(ConstantDenoiser(torch.arange(5, dtype=torch.float64), MASK))
    state = sample(OrderedSampler(order=order, steps=steps), denoiser, blank(3, 10))
    assert len(denoiser.calls) == state.total == (steps or 10)
    assert (state.calls == state.total).all()
    written = torch.stack([torch.bincount(row, minlength=state.total) for row in state.order])
    assert written.tolist() == [tokens_per_call(10, steps, LogLinear())] * 3


def dense_loop(table, order: str, ids: list[int]) -> list[int]:
    """The naive implementation: predict everything, write the most likely token at the best position, repeat."""
    masks = ids.count(MASK)
    while MASK in ids:
        alpha = 1 - ids.count(MASK) / masks
        p = exact.log_conditionals(table, torch.tensor([ids]), alpha)[0].exp()
        top = p.sort(dim=1, descending=True).values
        score = {
            "confidence": top[:, 0],
            "margin": top[:, 0] - top[:, 1],
            "entropy": torch.special.xlogy(p, p).sum(dim=1),
            "planner": planner_log_odds(p),
            "left_to_right": -torch.arange(len(ids)).double(),
        }[order]
        position = max((i for i in range(len(ids)) if ids[i] == MASK), key=lambda i: float(score[i]))
        ids = [int(p[position].argmax()) if i == position else token for i, token in enumerate(ids)]
    return ids


@pytest.mark.parametrize("order", ORDERS[:5])
def test_one_greedy_token_at_a_time_equals_the_dense_loop(order):
    for seed in range(8):
        table = random_table(seed=seed, length=4, conditioned=seed % 2 == 1)
        for start in ([MASK] * 4, [MASK, 2, MASK, MASK]):
            canvas = Canvas.of(torch.tensor([start]), MASK)
            state = sample(OrderedSampler(order=order), table, canvas, TokenSampler(temperature=0))
            assert state.ids[0].tolist() == dense_loop(table, order, start)


@pytest.mark.parametrize("order", ORDERS)
def test_ties_are_written_from_left_to_right(order):
    state = sample(OrderedSampler(order=order), FLAT, blank(3, 80))
    in_turn = (state.order == torch.arange(80)).all(dim=1)
    assert in_turn.all() if order != "uniform" else not in_turn.any()


class PerPosition(ConstantDenoiser):
    """Predicts the same row for a position on every canvas: token 0 with probability `tops`, token 2 otherwise."""

    def __init__(self, *tops: float) -> None:
        self.rows = torch.tensor([[top, 1e-9, 1 - top] for top in tops], dtype=torch.float64).log()
        super().__init__(self.rows[0], MASK)

    def hidden(self, input_ids, *args, **kwargs):
        return self.rows.expand(len(input_ids), -1, -1)


@pytest.mark.parametrize(
    ("sampler", "tops", "order"),
    [
        (ThresholdSampler(above=0.7), (0.9, 0.6, 0.8, 0.65), [0, 2, 0, 1]),
        (ThresholdSampler(above=1.0), (0.9, 0.6, 0.8, 0.65), [0, 3, 1, 2]),
        (ThresholdSampler(above=0.9, by="planner"), (0.9, 0.6, 0.99, 0.65), [0, 2, 0, 1]),
        (ThresholdSampler(above=0.95, by="planner"), (0.9, 0.6, 0.99, 0.65), [1, 3, 0, 2]),
        (ThresholdSampler(above=0.5, by="planner"), (0.9, 0.6, 0.99, 0.65), [0, 0, 0, 0]),
        (EntropyBoundedSampler(gamma=0.3), (0.5, 0.8, 0.9, 0.5), [2, 1, 0, 3]),
        (EntropyBoundedSampler(gamma=0.33), (0.5, 0.8, 0.9, 0.5), [1, 0, 0, 2]),
        (EntropyBoundedSampler(gamma=0.83), (0.5, 0.8, 0.9, 0.5), [0, 0, 0, 1]),
        (EntropyBoundedSampler(gamma=1.6), (0.5, 0.8, 0.9, 0.5), [0, 0, 0, 0]),
    ],
)
def test_adaptive_samplers_write_what_is_certain_enough(sampler, tops, order):
    """At least one position per call. The entropies of 0.5, 0.8 and 0.9 are 0.6931, 0.5004 and 0.3251 nats."""
    states = list(islice(run_sampler(sampler, PerPosition(*tops), blank(2, 4)), 6))
    assert states[-1].order.tolist() == [order] * 2
    assert states[-1].calls.tolist() == [max(order) + 1] * 2


def test_the_limit_on_calls_falls_and_finished_sequences_are_left_out():
    denoiser = RecordingDenoiser(PerPosition(0.9, 0.6, 0.8, 0.65))
    ids = torch.tensor([[MASK] * 4, [MASK, 2, MASK, 2], [2] * 4])
    states = list(run_sampler(ThresholdSampler(above=0.7), denoiser, Canvas.of(ids, MASK)))
    assert [state.calls.tolist() for state in states] == [[4, 2, 0], [3, 1, 0], [3, 1, 0], [3, 1, 0]]
    assert [state.total for state in states] == [4, 3, 3, 3]
    assert [len(call) for call in denoiser.calls] == [3, 1, 1]


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
def test_particles_converge_to_the_distribution_given_the_match(sampler):
    table, start = random_table(), torch.full((3,), MASK)
    automaton = compile_constraints([Words([2, 3])], Vocabulary(None, 4, MASK), [])
    canvases = torch.arange(64)[:, None] // 4 ** torch.arange(3) % 4
    matches = ((canvases[:, :-1] == 2) & (canvases[:, 1:] == 3)).any(dim=1)
    law = output_distribution(sampler, table, start).where(matches, 0.0)
    run = configure_sampler(sampler, SamplingOptions(automaton=automaton, particles=256), torch.device("cpu"))
    *_, last = run(table, blank(300, 3))
    counts = torch.bincount((last.ids * 4 ** torch.arange(3)).sum(dim=1), minlength=64)
    assert (counts[~matches] == 0).all()
    assert chi_square(counts, law / law.sum()) > 1e-3
    assert float(last.particle_weights.log_weight.exp().mean()) == pytest.approx(float(law.sum()), rel=0.05)
