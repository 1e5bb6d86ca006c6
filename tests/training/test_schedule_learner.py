"""The schedule learned from known losses: the density of least variance, and the predicted variance."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from unmask.laws import describe
from unmask.laws.exact import time_quadrature
from unmask.laws.tables import random_table
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.objectives.d3pm import D3PM
from unmask.objectives.sedd import SEDD
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.schedules import KNOTS, Learned, Schedule, draw_times
from unmask.training.schedule_learner import ScheduleLearner, best_density

LENGTH, BATCH = 32, 256
CPU = torch.device("cpu")
TEXT = Batch.of(torch.zeros(BATCH, LENGTH, dtype=torch.long))


class Known:
    """Every token is 0, and at mask rate u a masked token costs c(u) = 1/2 + 2u nats."""

    config = SimpleNamespace(vocab_size=3, mask_token_id=2, conditioned=True)

    def hidden(self, input_ids: Tensor, alpha: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        p = torch.exp(-cost(1.0 - alpha))
        rows = torch.stack([p, 1.0 - p, torch.zeros_like(p)], dim=-1).log()
        return rows[:, None].expand(-1, input_ids.shape[1], -1)

    def head(self, rows: Tensor) -> Tensor:
        return rows


def cost(u: Tensor) -> Tensor:
    return 0.5 + 2.0 * u


def square(u: Tensor) -> Tensor:
    """E[loss^2 | u]: the number of masked tokens is binomial."""
    return cost(u).square() * (LENGTH * u * (1 - u) + (LENGTH * u).square())


def best(u: Tensor) -> Tensor:
    """The unnormalised density of least variance."""
    return (square(u) / u.square()).sqrt()


@pytest.fixture(scope="module")
def learned() -> Learned:
    """The schedule after 200 steps on known losses."""
    learner = ScheduleLearner(Learned(warmup=0), 20, CPU)
    for step in range(1, 201):
        noise = Noise.draw(3, step, torch.arange(BATCH), draw_times(3, step, torch.arange(BATCH), BATCH), LENGTH)
        learner.add(Subs().loss(Known(), TEXT, learner.schedule, noise))
        learner.end_step(step, lambda sums: sums)
    return learner.schedule


def second_moment(schedule: Schedule, t: Tensor, weight: Tensor) -> float:
    """E[(w loss)^2] over times [K] with quadrature weights."""
    return float((weight * schedule.weight(t).square() * square(schedule.mask_rate(t))).sum())


def test_the_learned_density_has_the_least_variance(learned: Learned) -> None:
    ends = (torch.arange(KNOTS + 1).double() / KNOTS).square()
    node, weight = time_quadrature(tuple(ends[1:-1].tolist()))
    should = (weight * best(node)).view(KNOTS, -1).sum(dim=1)
    shares = torch.tensor((0.0, *learned.times), dtype=torch.float64).diff()
    ratio = shares / (should / should.sum())
    assert ratio.min() > 0.9
    assert ratio[8:].max() < 1.05
    # for u < 1/64 most losses are 0, so the estimate rests on a few tokens
    assert ratio[:8].max() < 2


def test_the_variance_is_near_the_minimum_and_flat_is_not(learned: Learned) -> None:
    node, weight = time_quadrature()
    least = float((weight * best(node)).sum()) ** 2
    assert 1.0 < second_moment(learned, *time_quadrature(learned.breakpoints())) / least < 1.01
    assert second_moment(Learned(), *time_quadrature()) / least > 1.1


def terms(mask_rate: list[float], nll: list[list[float]]) -> LossTerms:
    nll_BL = torch.tensor(nll)
    zero = torch.zeros_like(nll_BL)
    masked = nll_BL > 0
    # a cross-entropy at a visible token is not part of the loss
    cross_entropy = nll_BL - (~masked).float()
    return LossTerms(nll_BL, zero, zero, zero == 0, cross_entropy, nll_BL.sum(), masked, torch.tensor(mask_rate))


def test_squared_losses_are_binned_by_mask_rate() -> None:
    learner = ScheduleLearner(Learned(every=10), 10, CPU)
    rates = [(3.5 / 64) ** 2, (3.9 / 64) ** 2, 1.0, 0.25]
    learner.add(terms(rates, [[1.0, 2.0], [0.0, 4.0], [1.0, 1.0], [math.inf, 1.0]]))
    learner.add(terms([0.0, 1.0], [[0.0, 0.0], [3.0, 0.0]]))
    learner.end_step(1, lambda sums: sums)
    squares, counts = torch.zeros(KNOTS), torch.zeros(KNOTS)
    squares[3], counts[3] = 9.0 + 16.0, 2
    squares[63], counts[63] = 4.0 + 9.0, 2
    counts[0] = 1
    assert torch.equal(learner.tensors["squares"], squares)
    assert torch.equal(learner.tensors["counts"], counts)


def test_the_schedule_changes_after_the_warmup_every_few_steps() -> None:
    learner = ScheduleLearner(Learned(every=3, warmup=4, decay=0.5), 3, CPU)
    seen = []
    for step in range(1, 10):
        learner.add(terms([0.04, 0.9], [[1.0 + step, 0.0], [2.0, 3.0]]))
        seen.append(learner.end_step(step, lambda sums: sums))
    moved = [step for step, (before, after) in enumerate(zip([Learned(every=3), *seen], seen, strict=False), 1)
             if before.times != after.times]  # fmt: skip
    assert moved == [6, 9]
    assert learner.tensors["counts"].sum() == ((12 * 0.5) + 6) * 0.5
    assert learner.schedule is seen[-1]


def test_two_processes_learn_the_schedule_of_one() -> None:
    whole, halves = (ScheduleLearner(Learned(warmup=0), 1, CPU), [ScheduleLearner(Learned(), 1, CPU) for _ in range(2)])
    parts = [terms([0.1], [[1.0, 2.0]]), terms([0.8], [[3.0, 4.0]])]
    for one, part in zip(halves, parts, strict=True):
        whole.add(part)
        one.add(part)
    total = halves[0]._step + halves[1]._step
    for one in halves:
        one.end_step(100, lambda sums: total)
    whole.end_step(100, lambda sums: sums)
    for one in halves:
        assert one.schedule.times == whole.schedule.times
        assert all(torch.equal(tensor, whole.tensors[name]) for name, tensor in one.tensors.items())


def test_a_learner_is_restored_from_its_tensors() -> None:
    one, other = (ScheduleLearner(Learned(warmup=0), 2, CPU) for _ in range(2))
    for step in range(1, 4):
        one.add(terms([0.04, 0.9], [[1.0 + step, 0.0], [2.0, 3.0]]))
        one.end_step(step, lambda sums: sums)
    assert other.restore() == Learned(warmup=0)
    for name, tensor in other.tensors.items():
        tensor.copy_(one.tensors[name])
    assert other.restore() == one.schedule
    assert other.end_step(4, lambda sums: sums) == one.end_step(4, lambda sums: sums)


@pytest.mark.parametrize("objective", [Subs(steps=8), Subs(weight="flat"), D3PM(steps=8), SEDD()], ids=describe)
def test_every_objective_teaches_by_the_unweighted_cross_entropy(objective: Objective) -> None:
    size, table = 4096, random_table()
    batch = Batch.of(torch.tensor([2, 0, 3]).expand(size, -1))
    noise = Noise.draw(5, 0, torch.arange(size), draw_times(5, 0, torch.arange(size), size), 3)
    learner = ScheduleLearner(Learned(warmup=0), 1, CPU)
    found = objective.loss(table, batch, learner.schedule, noise)
    learner.add(found)
    moved = learner.end_step(1, lambda sums: sums)
    losses = found.cross_entropy.where(found.masked, 0.0).sum(dim=1)
    kept = learner.schedule.decay
    assert float(learner.tensors["squares"].sum()) == pytest.approx(kept * float(losses.square().sum()), rel=1e-5)
    assert float(learner.tensors["counts"].sum()) == pytest.approx(kept * size)
    assert moved.times != Learned().times
    assert objective.loss(table, batch, moved, noise).nelbo.isfinite().all()


def test_empty_bins_lie_between_their_neighbours() -> None:
    squares, counts = torch.zeros(KNOTS).double(), torch.zeros(KNOTS).double()
    rate = ((torch.arange(1, KNOTS + 1).double() ** 3).diff() / (3 * KNOTS**2))[[9, 29]]
    squares[[10, 30]], counts[[10, 30]] = 8 * rate * torch.tensor([4.0, 25.0]), 8.0
    density = best_density(squares, counts)
    assert density[0] == pytest.approx(2.0, rel=1e-3)
    assert density[10] == pytest.approx(2.0, rel=1e-3)
    assert density[-1] == pytest.approx(5.0, rel=1e-3)
    assert (density.diff() > -1e-12).all()
    assert 3.0 < density[20] < 4.5


def test_an_autoregressive_loss_teaches_nothing() -> None:
    learner = ScheduleLearner(Learned(warmup=0), 1, CPU)
    nll = torch.ones(2, 3)
    learner.add(LossTerms(nll, nll, nll, nll > 0, nll, nll.sum()))
    assert learner.end_step(1, lambda sums: sums) == Learned(warmup=0)
