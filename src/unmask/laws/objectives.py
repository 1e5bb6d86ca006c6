"""The laws of objectives: what each is worth on average, computed exactly, against what it should be worth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.laws import exact
from unmask.laws.averages import average, likelihood, reference
from unmask.laws.base import STEPS, Finding, describe, law, members
from unmask.laws.planning import is_bound
from unmask.laws.statistics import deviations
from unmask.laws.tables import Data, Watched, markov_joint, random_causal_table, random_joint, random_table
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.objectives.sedd import SEDD, log_score, log_score_to_x, x_to_log_score
from unmask.objectives.subs import Subs
from unmask.schedules import LogLinear, Schedule
from unmask.times import draw_times

V, L, MASK = 4, 3, 1
TOLERANCE = 1e-5
TEXT = torch.tensor([2, 0, 3])
FREE, GIVEN = torch.tensor([True, True, True]), torch.tensor([True, False, True])
RANDOM, MARKOV = Data(random_joint(), V, L, MASK), Data(markov_joint(length=5), 3, 5, 2)


def denoisers(objective: Objective) -> list[Any]:
    """Random tables of the kind that an objective takes."""
    if objective.causal:
        return [random_causal_table(), random_causal_table(begin=False)]
    return [random_table(), random_table(conditioned=True)]


@law("objective", when=is_bound)
def average_is_the_bound(objective: Objective) -> Iterator[Finding]:
    """Averaged over its noise an objective is its bound, for every schedule, conditioned or not (laws 2, 3, 4, 5): in
    continuous time the same number for all, in T steps the divergences made of transition matrices."""
    for schedule in members("schedule"):
        worst = 0.0
        for denoiser in denoisers(objective):
            for open_ in (FREE, GIVEN):
                made = average(objective, denoiser, schedule, TEXT, open_)
                should = reference(objective, denoiser, schedule, TEXT, open_)
                worst = max(worst, float((made - should).abs().max()))
        yield Finding(worst, TOLERANCE, f"nats from the enumerated bound with {describe(schedule)}")


@law("objective", when=is_bound)
def bound_is_not_below_the_likelihood(objective: Objective) -> Iterator[Finding]:
    """-log p of the process that the objective bounds, enumerated, is not above the bound (law 1)."""
    shortfall, gap = -math.inf, math.inf
    for schedule in members("schedule"):
        for denoiser in denoisers(objective)[: 1 if objective.causal else None]:
            for open_ in (FREE, GIVEN):
                nats = float(average(objective, denoiser, schedule, TEXT, open_).sum())
                nll = likelihood(objective, denoiser, schedule, TEXT, open_)
                shortfall, gap = max(shortfall, nll - nats), min(gap, nats - nll)
    yield Finding(shortfall, TOLERANCE, "nats by which the bound is below -log p")
    if objective.exact:
        yield Finding(abs(gap), TOLERANCE, "nats between an exact objective and -log p")


@law("objective", when=lambda o: is_bound(o) and getattr(o, "steps", None) is None)
def oracle_leaves_no_gap(objective: Objective) -> Iterator[Finding]:
    """With the true conditionals the bound is -log p itself, of any law and of a Markov chain, given tokens conditioned
    on (law 1)."""
    for data in (RANDOM, MARKOV):
        denoiser = data.oracle(objective.causal)
        for given in (0, 1):
            open_ = torch.arange(data.length) >= given
            gap = [
                float(average(objective, denoiser, LogLinear(), text, open_).sum()) - data.nll(text, open_)
                for text in data.texts()[::5]
            ]
            yield Finding(max(map(abs, gap)), TOLERANCE, f"nats between bound and -log p with an oracle, {given} given")


@law("objective", when=lambda o: getattr(o, "steps", None) is not None)
def oracle_gains_by_more_steps(objective: Any) -> Iterator[Finding]:
    """With the true conditionals the T-step bound, averaged over the data, comes down along T, 2T, 4T towards the
    entropy of the data and never below it (law 3)."""
    denoiser = RANDOM.oracle(objective.causal)
    for given in (0, 1):
        open_ = torch.arange(L) >= given
        entropy = RANDOM.mean([RANDOM.nll(text, open_) for text in RANDOM.texts()])
        nats = []
        for steps in (objective.steps, 2 * objective.steps, 4 * objective.steps):
            finer = objective.model_copy(update={"steps": steps})
            each = [average(finer, denoiser, LogLinear(), text, open_).sum() for text in RANDOM.texts()]
            nats.append(RANDOM.mean(each))
        rise = max(after - before for before, after in itertools.pairwise(nats))
        yield Finding(rise, -1e-3, "rise along T, 2T, 4T with an oracle")
        yield Finding(entropy - nats[-1], TOLERANCE, "nats by which the bound is below the entropy of the data")


def _in_steps(objective: Objective) -> bool:
    return "steps" in type(objective).model_fields and not (objective.needs_mask_logit or objective.needs_visible_rows)


@law("objective", when=lambda o: _in_steps(o) and o.steps == STEPS[0])
def many_steps_are_continuous_time(objective: Objective) -> Iterator[Finding]:
    """The T-step bound comes as close to the continuous one as 1/T, for a denoiser that contradicts itself (law 3)."""
    for schedule in members("schedule"):
        for denoiser in denoisers(objective):
            limit = float(exact.continuous_bound(denoiser, TEXT[None], FREE).sum())
            gaps = [
                float(average(objective.model_copy(update={"steps": T}), denoiser, schedule, TEXT, FREE).sum()) - limit
                for T in (128, 256)
            ]
            yield Finding(abs(gaps[1]), 0.05, f"nats from the continuous bound at T = 256 with {describe(schedule)}")
            yield Finding(abs(2 * gaps[1] - gaps[0]), 0.01, "what is left when 1/T is extrapolated away")


@law("objective", when=is_bound)
def estimators_agree(objective: Objective) -> Iterator[Finding]:
    """The estimators by which an objective wants its models judged average to one number (law 2)."""
    for denoiser in denoisers(objective):
        for open_ in (FREE, GIVEN):
            nats = [average(e, denoiser, LogLinear(), TEXT, open_).sum() for e in objective.estimators().values()]
            yield Finding(float(max(nats) - min(nats)), TOLERANCE, "nats between the estimators")


@law("objective", when=lambda o: isinstance(o, SEDD))
def free_score_pays_for_its_mass(objective: SEDD) -> Iterator[Finding]:
    """A score of total mass S alpha/(1 - alpha) costs w(t) (S - 1 - log S) more at every masked token (law 5)."""
    schedule = LogLinear()
    noise = Noise(torch.tensor([0.4, 0.9]).double(), torch.tensor([[0.2, 0.3, 0.95]] * 2).double())
    batch, masked = Batch.of(TEXT.expand(2, -1)), torch.tensor([[True, True, False]] * 2)
    fair = objective.loss(random_table(), batch, schedule, noise).nelbo
    subs = Subs().loss(random_table(), batch, schedule, noise).nelbo
    yield Finding(_most(fair - subs), TOLERANCE, "nats between a normalised score and SUBS at a z_t")
    for mass in (0.3, 2.5):
        table = random_table(mass=mass)
        free = objective.loss(table, batch, schedule, noise).nelbo
        price = schedule.weight(noise.t)[:, None] * (mass - 1 - math.log(mass)) * masked
        yield Finding(_most(free - fair - price), TOLERANCE, f"price of a score of mass {mass}")
        written = _score_entropy(table, batch, schedule, noise.t, masked)
        yield Finding(_most(free - written), TOLERANCE, f"against the formula as written, mass {mass}")


def _score_entropy(denoiser: Any, batch: Batch, schedule: Schedule, t: Tensor, masked: Tensor) -> Tensor:
    """[B, L] sigma' [sum_y s_y - r log s_x + r (log r - 1)] at masked tokens [B, L], with sigma = -log alpha."""
    alpha = schedule.alpha(t)[:, None, None]
    z = batch.input_ids.masked_fill(masked, MASK)
    log_s = log_score(denoiser.head(denoiser.hidden(z)), alpha, V)
    r = (alpha / (1 - alpha))[..., 0]
    log_s_x = log_s.gather(2, batch.input_ids[..., None])[..., 0]
    sigma_rate = (-schedule.dalpha(t) / schedule.alpha(t))[:, None]
    return sigma_rate * (log_s.exp().sum(dim=-1) - r * log_s_x + r * (r.log() - 1)) * masked


@law("objective", when=lambda o: isinstance(o, SEDD))
def scores_and_predictions_convert(objective: SEDD) -> Iterator[Finding]:
    """s = alpha/(1 - alpha) x_theta, there and back; a raw output whose mass is V - 1 is such a score."""
    table, alpha = random_table(), torch.tensor(0.3, dtype=torch.float64)
    log_x = exact.log_conditionals(table, TEXT[None].masked_fill(FREE, MASK), 0.3)
    log_s = x_to_log_score(log_x, alpha)
    yield Finding(_most(log_s.exp() - log_x.exp() * 0.3 / 0.7), 1e-12, "score of a prediction")
    yield Finding(_most(log_score_to_x(log_s).exp() - log_x.exp()), 1e-12, "prediction of a score")
    f = table.head(table.hidden(TEXT[None].masked_fill(FREE, MASK)))
    yield Finding(_most(log_score(f, alpha, V).exp() - log_s.exp()), 1e-12, "score of a raw output")


@law("objective", when=is_bound)
def frozen_and_padded_tokens_are_left_alone(objective: Objective) -> Iterator[Finding]:
    """Frozen tokens and pads are never corrupted, predicted nor counted; what stands at a pad does not matter."""
    denoiser: Any = Watched(denoisers(objective)[0])
    attention, frozen = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    batch = Batch.of(TEXT.expand(64, -1), attention.expand(64, -1), frozen.expand(64, -1))
    noise = _real_noise(64, seed=3)
    terms = objective.loss(denoiser, batch, LogLinear(), noise)
    yield Finding(float((terms.counted != batch.open).sum()), 0, "positions counted that are not open, or the reverse")
    for name in ("diffusion", "reconstruction", "prior", "cross_entropy"):
        yield Finding(float(getattr(terms, name)[~batch.open].abs().sum()), 0, f"{name} where nothing is counted")
    if terms.masked is not None:
        touched = sum(int((ids != batch.input_ids)[~batch.open].sum()) for ids in denoiser.calls)
        yield Finding(touched, 0, "tokens corrupted that are frozen or pads")
        yield Finding(float((terms.masked & ~batch.open).sum()), 0, "positions called masked that are not open")
    other = replace(batch, input_ids=batch.input_ids.masked_fill(~batch.attention_mask, 0))
    again = objective.loss(denoiser, other, LogLinear(), noise)
    yield Finding(float((terms.nelbo != again.nelbo).sum()), 0, "values that change with what stands at a pad")


@law("objective", when=is_bound)
def cross_entropy_is_that_of_the_prediction(objective: Objective) -> Iterator[Finding]:
    """The term `cross_entropy` is -log x_theta(x) at the tokens that were masked (for AR: at all), and 0 elsewhere."""
    denoiser: Any = Watched(denoisers(objective)[0])
    batch = Batch.of(TEXT.expand(64, -1))
    terms = objective.loss(denoiser, batch, LogLinear(), _real_noise(64, seed=4))
    if terms.masked is None:
        should = exact.left_to_right_nll(denoiser.denoiser, batch.input_ids, FREE)
    else:
        log_p = exact.log_conditionals(denoiser.denoiser, denoiser.calls[0], 0.5, mask_logit=objective.needs_mask_logit)
        should = -log_p.gather(2, batch.input_ids[..., None])[..., 0] * terms.masked
    yield Finding(_most(terms.cross_entropy - should), TOLERANCE, "nats from -log x_theta(x)")


@law("objective", when=is_bound)
def terms_are_finite_with_gradients(objective: Objective) -> Iterator[Finding]:
    """Every term and every gradient is finite at all times, t = 0, 1 and the first step of the grid included."""
    table = denoisers(objective)[0]
    table.logits.requires_grad_()
    t = torch.tensor([0.0, 2.0**-33, 1e-6, 0.1, 0.5, 0.999, 1.0])
    u = torch.linspace(0.001, 0.999, len(t) * L).view(L, -1).T
    for schedule in members("schedule"):
        terms = objective.loss(table, Batch.of(TEXT.expand(len(t), -1)), schedule, Noise(t, u))
        (gradient,) = torch.autograd.grad(terms.trained, table.logits)
        bad = int((~terms.nelbo.isfinite()).sum() + (~gradient.isfinite()).sum())
        yield Finding(bad, 0, f"values or gradients that are not finite with {describe(schedule)}")


@law("objective", when=lambda o: is_bound(o) and not o.exact)
def real_noise_averages_to_the_bound(objective: Objective) -> Iterator[Finding]:
    """With the noise of training, stratified times included, the mean is the bound within 4 standard errors (law 2)."""
    rounds, size = 24, 256
    noises = [_real_noise(size, seed=5, step=step) for step in range(rounds)]
    noise = Noise(torch.cat([n.t for n in noises]), torch.cat([n.u for n in noises]))
    for denoiser in denoisers(objective):
        terms = objective.loss(denoiser, Batch.of(TEXT.expand(rounds * size, -1)), LogLinear(), noise)
        means = terms.nelbo.double().sum(dim=1).view(rounds, size).mean(dim=1)
        value = float(average(objective, denoiser, LogLinear(), TEXT, FREE).sum())
        yield Finding(deviations(means, value), 4.0, "standard errors from the exact average")


@law("objective")
def half_a_batch_is_half_of_the_batch(objective: Objective) -> Iterator[Finding]:
    """A global batch of 8 has the same times, masks and values on one process and on two (law 11)."""
    denoiser = denoisers(objective)[0]

    def terms(index: Tensor) -> LossTerms:
        noise = Noise.draw(11, 7, index, draw_times(11, 7, index, 8), L)
        return objective.loss(denoiser, Batch.of(TEXT.expand(len(index), -1)), LogLinear(), noise)

    whole, first, second = terms(torch.arange(8)), terms(torch.arange(4)), terms(torch.arange(4, 8))
    for name in ("nelbo", "masked", "mask_rate"):
        if getattr(whole, name) is not None:
            halves = torch.cat([getattr(first, name), getattr(second, name)])
            yield Finding(float((getattr(whole, name) != halves).sum()), 0, f"{name} that differ on two processes")


def _most(difference: Tensor) -> float:
    return float(difference.abs().max())


def _real_noise(size: int, seed: int, step: int = 0) -> Noise:
    index = torch.arange(size)
    return Noise.draw(seed, step, index, draw_times(seed, step, index, size), L)
