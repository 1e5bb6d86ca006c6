"""One optimizer step: the loss is nats per counted token of the global batch, however it is split."""

from __future__ import annotations

import math

import pytest
import torch

from tests.conftest import rows_of_texts
from unmask.config import TrainingConfig
from unmask.data.length_policies import Padded
from unmask.models import CausalSpec, DiTSpec
from unmask.objectives.autoregressive import AR
from unmask.objectives.base import Noise, Objective
from unmask.objectives.subs import Subs
from unmask.optimizers.base import AdamW
from unmask.process import Batch
from unmask.schedules import Cosine, Learned, LogLinear, Schedule
from unmask.training.data_feed import DataFeed, split_batch
from unmask.training.distributed import make_accelerator
from unmask.training.metrics import predicted_share
from unmask.training.step import TrainStep

VOCABULARY, LENGTH, BATCH = 12, 10, 8
TINY = {"size": "nano", "hidden_size": 16, "layers": 2, "heads": 2, "dropout": 0.0}


def feed(accumulation: int) -> DataFeed:
    """Texts of different lengths, so that micro-batches count different numbers of tokens."""
    texts = [[(7 * i + j) % 10 for j in range(1 + (3 * i) % LENGTH)] for i in range(20)]
    rows = rows_of_texts(Padded(), texts, LENGTH, eos_id=None)
    return DataFeed(rows, BATCH, split_batch(BATCH, accumulation), seed=0, data_seed=0)


def make_step(
    objective: Objective, accumulation: int = 1, schedule: Schedule | None = None, **options: float
) -> TrainStep:
    torch.manual_seed(0)
    spec = CausalSpec(**TINY) if objective.causal else DiTSpec(**TINY)
    denoiser = spec.build(VOCABULARY, VOCABULARY - 1, LENGTH)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    training = TrainingConfig(accumulation=accumulation)
    accelerator = make_accelerator(training, clip=1.0)
    return TrainStep(accelerator, denoiser, objective, schedule or LogLinear(), AdamW(**options), training)


def gradients(one: TrainStep) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in one.parameters.items() if p.grad is not None}


@pytest.mark.parametrize("objective", [Subs(), AR()])
def test_returned_terms_hold_no_graph(objective: Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    one, seen = make_step(objective, accumulation=2), []
    monkeypatch.setattr(one.metrics, "add", lambda terms, padding: seen.append(terms))
    one.gradients(feed(2).micro_batches(0))
    assert len(seen) == 2
    assert all(gradient.abs().sum() > 0 for gradient in list(gradients(one).values())[:1])
    for terms in seen:
        assert not any(value.requires_grad for value in vars(terms).values() if value is not None)


def test_the_first_step_moves_the_average_as_the_first_update() -> None:
    one = make_step(Subs(), learning_rate=0.01, warmup=0)
    before = {name: weight.clone() for name, weight in one.ema.weights.items()}
    one.step(feed(1).micro_batches(0), 0)
    for name, live in one.parameters.items():
        torch.testing.assert_close(one.ema.weights[name], before[name].lerp(live.detach(), 1 - 2 / 11))


@pytest.mark.parametrize("objective", [Subs(), AR()])
def test_the_gradient_is_that_of_nats_per_counted_token(objective: Objective) -> None:
    one = make_step(objective)
    (batch,) = feed(1).micro_batches(3)
    terms = objective.loss(one.denoiser, batch.batch, LogLinear(), batch.noise)
    expected = terms.loss / terms.counted.sum()
    expected.backward()
    plain = gradients(one)
    one.optimizer.zero_grad()
    loss = one.gradients([batch])
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-6)
    for name, gradient in gradients(one).items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("objective", [Subs(), AR()])
@pytest.mark.parametrize("accumulation", [3, 4, 8])
def test_accumulation_changes_nothing(objective: Objective, accumulation: int) -> None:
    whole = make_step(objective)
    loss = whole.gradients(feed(1).micro_batches(0))
    cut = make_step(objective, accumulation)
    cut_loss = cut.gradients(feed(accumulation).micro_batches(0))
    assert float(cut_loss) == pytest.approx(float(loss), rel=1e-6)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], gradient, rtol=1e-5, atol=1e-6)
    assert torch.equal(cut.metrics.sums["tokens"], whole.metrics.sums["tokens"])


def test_gradients_are_clipped_and_the_norm_before_is_kept() -> None:
    one = make_step(Subs(), clip=1e-3)
    seen: list[float] = []
    one.optimizer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(math.sqrt(sum(float(g.square().sum()) for g in gradients(one).values())))
    )
    one.step(feed(1).micro_batches(0), 0)
    assert seen[0] == pytest.approx(1e-3, rel=1e-3)
    assert float(one.metrics.grad_norm) > 1e-2


@pytest.mark.parametrize(("step", "rate"), [(4, 0.05), (500, 1.0), (950, 0.25)])
def test_weights_move_by_the_learning_rate_of_the_step(step: int, rate: float) -> None:
    one = make_step(Subs(), learning_rate=1.0, warmup=100, cooldown=0.2, eps=1e-12)
    before = {name: p.detach().clone() for name, p in one.parameters.items()}
    one.step(feed(1).micro_batches(0), step)
    moved = max(float((p.detach() - before[name]).abs().max()) for name, p in one.parameters.items())
    assert moved == pytest.approx(rate, rel=1e-3)


def test_a_compiled_network_gets_rows_padded_around_the_mean_mask_rate() -> None:
    one = make_step(Subs(), schedule=Cosine())
    batch, sample = Batch.of(torch.zeros(128, 64, dtype=torch.long)), torch.arange(128)
    noise = Noise.draw(0, 0, sample, sample / 128, 64)
    plain = one.corrupt_ahead(batch, noise)
    one.compiled = True
    padded = one.corrupt_ahead(batch, noise)
    assert len(padded.rows) == len(plain.pad_rows(predicted_share(Subs(), Cosine())).rows)
    assert len(padded.rows) != len(plain.pad_rows().rows)


@pytest.mark.parametrize("schedule", [LogLinear(), Learned(every=None)])
def test_a_schedule_that_does_not_learn_stays(schedule: Schedule) -> None:
    one = make_step(Subs(), schedule=schedule)
    one.step(feed(1).micro_batches(0), 0)
    assert one.schedule is schedule
    assert one.schedule_learner is None
