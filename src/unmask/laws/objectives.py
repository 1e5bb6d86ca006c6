"""The laws of objectives: what each is worth on average, computed exactly, against what it should be worth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.base import STEPS, Check, LawBroken, describe, deviations, law, members
from unmask.laws.tables import (
    Data,
    RecordingDenoiser,
    all_canvases,
    markov_joint,
    odds,
    random_causal_table,
    random_joint,
    random_table,
)
from unmask.objectives.autoregressive import AR
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.objectives.d3pm import D3PM
from unmask.objectives.sedd import SEDD, log_score, log_score_to_x, x_to_log_score
from unmask.objectives.subs import MaskCount, Subs
from unmask.process import Batch
from unmask.schedules import LogLinear, Schedule, draw_times


@dataclass(frozen=True)
class NoiseDraws:
    """Noise that meets every case once, and the probability [N] of each case."""

    noise: Noise
    weight: Tensor


@singledispatch
def enumerate_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> NoiseDraws:
    """All cases of the noise of an objective, or a message that says what to write for a new one."""
    raise LawBroken(
        f"The laws cannot average {describe(objective)} over its noise: write a function (objective, schedule, open) "
        f"-> Draws that enumerates it and register it with @enumerate_noise.register({type(objective).__name__}), see "
        "unmask.laws.objectives."
    )


@enumerate_noise.register(Subs)
@enumerate_noise.register(D3PM)
@enumerate_noise.register(SEDD)
def threshold_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> NoiseDraws:
    """Those that mask where u < 1 - alpha(t), t uniform or on the grid i/T: every t with every set of small u."""
    steps = getattr(objective, "steps", None)
    t, weight = exact.time_quadrature(schedule.breakpoints()) if steps is None else _one_a_step(steps)
    rate = schedule.mask_rate(t if steps is None else torch.ceil(t * steps) / steps)
    small = all_canvases(2, len(open_)).bool()
    u = torch.where(small, 0.5 * rate[:, None, None], 0.5 + 0.5 * rate[:, None, None])
    chance = torch.where(small, rate[:, None, None], 1.0 - rate[:, None, None]).prod(dim=-1)
    return NoiseDraws(Noise(t.repeat_interleave(len(small)), u.flatten(0, 1)), (weight[:, None] * chance).flatten())


@enumerate_noise.register(MaskCount)
def count_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> NoiseDraws:
    """n = ceil(t L) of the open u are the smallest, any set of them, and the n-th of them is Beta(n, L - n + 1).

    Positions that are not open get smaller numbers still, which must not matter.
    """
    length = int(open_.sum())
    small = all_canvases(2, len(open_)).bool()
    small = small[(small & ~open_).sum(dim=1).eq(0) & small.any(dim=1)]
    n = small.sum(dim=1)
    node, weight = exact.gauss_legendre(16)
    sets = torch.tensor([math.comb(length, int(k)) for k in n], dtype=torch.float64)
    density = n[:, None] * sets[:, None] * node ** (n[:, None] - 1) * (1.0 - node) ** (length - n[:, None])
    chance = density * weight / sets[:, None] / length
    u = torch.where(small[:, None], node[:, None] * _descending(small)[:, None], 0.5 + 0.5 * node[:, None])
    u = torch.where(open_, u, 1e-6)
    t = ((n - 0.5) / length)[:, None].expand_as(chance)
    return NoiseDraws(Noise(t.flatten(), u.flatten(0, 1)), chance.flatten())


@enumerate_noise.register(AR)
def no_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> NoiseDraws:
    """Nothing is random."""
    one = torch.ones(1, dtype=torch.float64)
    return NoiseDraws(Noise(0.5 * one, torch.full((1, len(open_)), 0.5, dtype=torch.float64)), one)


def average(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, open_: Tensor) -> Tensor:
    """[L] the nats of the objective at each position of a text [L], averaged exactly over its noise."""
    draws = enumerate_noise(objective, schedule, open_)
    count = len(draws.weight)
    batch = Batch.of(text.expand(count, -1), frozen=(~open_).expand(count, -1))
    with torch.no_grad():
        terms = objective.loss(denoiser, batch, schedule, draws.noise)
    return (draws.weight[:, None] * terms.nelbo.double()).sum(dim=0)


def reference(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, open_: Tensor) -> Tensor:
    """[L] what the objective should be worth at each position, by what it declares itself to be."""
    if objective.causal:
        return exact.left_to_right_nll(denoiser, text[None], open_)[0]
    rates = rates_of(objective, schedule)
    if rates is None:
        return exact.continuous_bound(denoiser, text[None], open_)[0]
    switches = (objective.needs_mask_logit, not objective.needs_visible_rows)
    return exact.step_bound(denoiser, text[None], open_, rates, *switches)[0]


def likelihood(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, open_: Tensor) -> float:
    """-log p(text) of the very process whose bound the objective is."""
    if objective.causal:
        return float(exact.left_to_right_nll(denoiser, text[None], open_).sum())
    rates = rates_of(objective, schedule)
    if rates is None:
        return float(exact.any_order_nll(denoiser, text[None], open_))
    start = text.masked_fill(open_, denoiser.config.mask_token_id)
    law_of_x = exact.step_law(denoiser, start, rates, objective.needs_mask_logit)
    if objective.needs_visible_rows:
        law_of_x = exact.rewritten(denoiser, law_of_x, open_, objective.needs_mask_logit)
    code = int((text * denoiser.config.vocab_size ** torch.arange(len(text))).sum())
    return -math.log(float(law_of_x[code]))


def rates_of(objective: Objective, schedule: Schedule) -> Tensor | None:
    """[T + 1] 1 - alpha on the grid of an objective that has steps; None in continuous time."""
    steps = getattr(objective, "steps", None)
    return None if steps is None else schedule.mask_rate(torch.arange(steps + 1, dtype=torch.float64) / steps)


def _one_a_step(steps: int) -> tuple[Tensor, Tensor]:
    """[T] a time inside every step, and their equal weights."""
    t = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return t, torch.full_like(t, 1 / steps)


def _descending(small: Tensor) -> Tensor:
    """[S, L] 1 at the first member of each set, and smaller and smaller numbers at the others."""
    rank = small.long().cumsum(dim=1)
    return torch.where(small, 1.0 / rank.clamp_min(1), 1.0).double()


PLANNER_TEXT, PLANNER_MASK = torch.tensor([2, 0, 3]), 1
RATES = torch.tensor([0.0, 2.0**-33, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])


def is_bound(objective: Objective) -> bool:
    """Whether the value of an objective bounds -log p of a text."""
    return not objective.trains_planner


def plans(objective: Objective) -> bool:
    """Whether it trains a planner."""
    return objective.trains_planner


@law("objective", when=plans)
def planner_pays_for_its_surprise(objective: Objective) -> Iterator[Check]:
    """The loss at a masked position is -log of the chance that the planner gave to what is true of it: that the most
    likely token is the text's, or that it is not. Nothing else is counted."""
    for schedule in members("schedule"):
        for conditioned in (False, True):
            denoiser: Any = RecordingDenoiser(random_table(conditioned=conditioned))
            terms = objective.loss(denoiser, Batch.of(PLANNER_TEXT.expand(len(RATES), -1)), schedule, _noise())
            should = _surprise(denoiser)
            apart = (terms.nelbo - should).abs().max()
            yield Check(float(apart), 1e-5, f"nats from the enumerated loss with {describe(schedule)}")
            uncounted = int((terms.counted != (denoiser.calls[0] == PLANNER_MASK)).sum())
            yield Check(uncounted, 0, "positions counted that are not masked, or the reverse")
            yield Check(abs(float(terms.loss - should.sum())), 1e-4, "nats between the loss and what is trained")


@law("objective", when=plans)
def denoiser_learns_nothing(objective: Objective) -> Iterator[Check]:
    """Gradients reach the planner, all finite, and nothing of the denoiser."""
    table = _Learning(random_table())
    terms = objective.loss(table, Batch.of(PLANNER_TEXT.expand(len(RATES), -1)), LogLinear(), _noise())
    denoiser, planner = torch.autograd.grad(terms.loss, [table.logits, table.scale], allow_unused=True)
    yield Check(float(denoiser is not None), 0, "gradients that reach the denoiser")
    yield Check(float(not (planner.isfinite() and planner != 0)), 0, "planners without a finite gradient")


@law("objective", when=plans)
def planner_sees_open_tokens_alone(objective: Objective) -> Iterator[Check]:
    """Frozen tokens and pads are never corrupted nor counted."""
    denoiser: Any = RecordingDenoiser(random_table())
    attention, frozen = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    size = len(RATES)
    batch = Batch.of(PLANNER_TEXT.expand(size, -1), attention.expand(size, -1), frozen.expand(size, -1))
    terms = objective.loss(denoiser, batch, LogLinear(), _noise())
    yield Check(float((terms.counted & ~batch.target_mask).sum()), 0, "positions counted that are not open")
    yield Check(float(terms.nelbo[~batch.target_mask].abs().sum()), 0, "nats where nothing is counted")
    touched = (denoiser.calls[0] != batch.input_ids)[~batch.target_mask].sum()
    yield Check(float(touched), 0, "tokens corrupted that are frozen or pads")


class _Learning:
    """A table whose logits could learn, and a planner that says `scale` times what the table's own says."""

    def __init__(self, table: Any) -> None:
        self.table, self.config = table, table.config
        self.logits = table.logits.requires_grad_()
        self.scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        self.hidden, self.head = table.hidden, table.head

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """The log-odds [N] of rows [N, V]."""
        return self.scale * self.table.plan(rows, log_top)


def _noise() -> Noise:
    return Noise(RATES, torch.linspace(0.001, 0.999, len(RATES) * 3).view(3, -1).T)


def _surprise(denoiser: RecordingDenoiser) -> Tensor:
    """[B, L] by the definition, at what a denoiser was asked."""
    z, alpha = denoiser.calls[0], denoiser.alphas[0]
    assert alpha is not None
    p = exact.log_conditionals(denoiser.denoiser, z, alpha.double()).exp()
    right = p.argmax(dim=-1) == PLANNER_TEXT
    chance = torch.sigmoid(odds(p))
    return -torch.where(right, chance, 1 - chance).log() * (z == PLANNER_MASK)


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
def average_is_the_bound(objective: Objective) -> Iterator[Check]:
    """Averaged over its noise an objective is its bound, for every schedule, conditioned or not (laws 2, 3, 4, 5): in
    continuous time the same number for all, in T steps the divergences made of transition matrices."""
    for schedule in members("schedule"):
        worst = 0.0
        for denoiser in denoisers(objective):
            for open_ in (FREE, GIVEN):
                made = average(objective, denoiser, schedule, TEXT, open_)
                should = reference(objective, denoiser, schedule, TEXT, open_)
                worst = max(worst, float((made - should).abs().max()))
        yield Check(worst, TOLERANCE, f"nats from the enumerated bound with {describe(schedule)}")


@law("objective", when=is_bound)
def bound_is_not_below_the_likelihood(objective: Objective) -> Iterator[Check]:
    """-log p of the process that the objective bounds, enumerated, is not above the bound (law 1)."""
    shortfall, gap = -math.inf, math.inf
    for schedule in members("schedule"):
        for denoiser in denoisers(objective)[: 1 if objective.causal else None]:
            for open_ in (FREE, GIVEN):
                nats = float(average(objective, denoiser, schedule, TEXT, open_).sum())
                nll = likelihood(objective, denoiser, schedule, TEXT, open_)
                shortfall, gap = max(shortfall, nll - nats), min(gap, nats - nll)
    yield Check(shortfall, TOLERANCE, "nats by which the bound is below -log p")
    if objective.exact:
        yield Check(abs(gap), TOLERANCE, "nats between an exact objective and -log p")


@law("objective", when=lambda o: is_bound(o) and getattr(o, "steps", None) is None)
def oracle_leaves_no_gap(objective: Objective) -> Iterator[Check]:
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
            yield Check(max(map(abs, gap)), TOLERANCE, f"nats between bound and -log p with an oracle, {given} given")


@law("objective", when=lambda o: getattr(o, "steps", None) is not None)
def oracle_gains_by_more_steps(objective: Any) -> Iterator[Check]:
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
        yield Check(rise, -1e-3, "rise along T, 2T, 4T with an oracle")
        yield Check(entropy - nats[-1], TOLERANCE, "nats by which the bound is below the entropy of the data")


def _in_steps(objective: Objective) -> bool:
    return "steps" in type(objective).model_fields and not (objective.needs_mask_logit or objective.needs_visible_rows)


@law("objective", when=lambda o: _in_steps(o) and o.steps == STEPS[0])
def many_steps_are_continuous_time(objective: Objective) -> Iterator[Check]:
    """The T-step bound comes as close to the continuous one as 1/T, for a denoiser that contradicts itself (law 3)."""
    for schedule in members("schedule"):
        for denoiser in denoisers(objective):
            limit = float(exact.continuous_bound(denoiser, TEXT[None], FREE).sum())
            gaps = [
                float(average(objective.model_copy(update={"steps": T}), denoiser, schedule, TEXT, FREE).sum()) - limit
                for T in (128, 256)
            ]
            yield Check(abs(gaps[1]), 0.05, f"nats from the continuous bound at T = 256 with {describe(schedule)}")
            yield Check(abs(2 * gaps[1] - gaps[0]), 0.01, "what is left when 1/T is extrapolated away")


@law("objective", when=is_bound)
def estimators_agree(objective: Objective) -> Iterator[Check]:
    """The estimators by which an objective wants its models judged average to one number (law 2)."""
    for denoiser in denoisers(objective):
        for open_ in (FREE, GIVEN):
            nats = [average(e, denoiser, LogLinear(), TEXT, open_).sum() for e in objective.estimators().values()]
            yield Check(float(max(nats) - min(nats)), TOLERANCE, "nats between the estimators")


@law("objective", when=lambda o: isinstance(o, SEDD))
def free_score_pays_for_its_mass(objective: SEDD) -> Iterator[Check]:
    """A score of total mass S alpha/(1 - alpha) costs w(t) (S - 1 - log S) more at every masked token (law 5)."""
    schedule = LogLinear()
    noise = Noise(torch.tensor([0.4, 0.9]).double(), torch.tensor([[0.2, 0.3, 0.95]] * 2).double())
    batch, masked = Batch.of(TEXT.expand(2, -1)), torch.tensor([[True, True, False]] * 2)
    fair = objective.loss(random_table(), batch, schedule, noise).nelbo
    subs = Subs().loss(random_table(), batch, schedule, noise).nelbo
    yield Check(_most(fair - subs), TOLERANCE, "nats between a normalised score and SUBS at a z_t")
    for mass in (0.3, 2.5):
        table = random_table(mass=mass)
        free = objective.loss(table, batch, schedule, noise).nelbo
        price = schedule.weight(noise.t)[:, None] * (mass - 1 - math.log(mass)) * masked
        yield Check(_most(free - fair - price), TOLERANCE, f"price of a score of mass {mass}")
        written = _score_entropy(table, batch, schedule, noise.t, masked)
        yield Check(_most(free - written), TOLERANCE, f"against the formula as written, mass {mass}")


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
def scores_and_predictions_convert(objective: SEDD) -> Iterator[Check]:
    """s = alpha/(1 - alpha) x_theta, there and back; a raw output whose mass is V - 1 is such a score."""
    table, alpha = random_table(), torch.tensor(0.3, dtype=torch.float64)
    log_x = exact.log_conditionals(table, TEXT[None].masked_fill(FREE, MASK), 0.3)
    log_s = x_to_log_score(log_x, alpha)
    yield Check(_most(log_s.exp() - log_x.exp() * 0.3 / 0.7), 1e-12, "score of a prediction")
    yield Check(_most(log_score_to_x(log_s).exp() - log_x.exp()), 1e-12, "prediction of a score")
    f = table.head(table.hidden(TEXT[None].masked_fill(FREE, MASK)))
    yield Check(_most(log_score(f, alpha, V).exp() - log_s.exp()), 1e-12, "score of a raw output")


@law("objective", when=is_bound)
def frozen_and_padded_tokens_are_left_alone(objective: Objective) -> Iterator[Check]:
    """Frozen tokens and pads are never corrupted, predicted nor counted; what stands at a pad does not matter."""
    denoiser: Any = RecordingDenoiser(denoisers(objective)[0])
    attention, frozen = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    batch = Batch.of(TEXT.expand(64, -1), attention.expand(64, -1), frozen.expand(64, -1))
    noise = _real_noise(64, seed=3)
    terms = objective.loss(denoiser, batch, LogLinear(), noise)
    yield Check(
        float((terms.counted != batch.target_mask).sum()), 0, "positions counted that are not open, or the reverse"
    )
    for name in ("diffusion", "reconstruction", "prior", "cross_entropy"):
        yield Check(float(getattr(terms, name)[~batch.target_mask].abs().sum()), 0, f"{name} where nothing is counted")
    if terms.masked is not None:
        touched = sum(int((ids != batch.input_ids)[~batch.target_mask].sum()) for ids in denoiser.calls)
        yield Check(touched, 0, "tokens corrupted that are frozen or pads")
        yield Check(float((terms.masked & ~batch.target_mask).sum()), 0, "positions called masked that are not open")
    other = replace(batch, input_ids=batch.input_ids.masked_fill(~batch.attention_mask, 0))
    again = objective.loss(denoiser, other, LogLinear(), noise)
    yield Check(float((terms.nelbo != again.nelbo).sum()), 0, "values that change with what stands at a pad")


@law("objective", when=is_bound)
def cross_entropy_is_that_of_the_prediction(objective: Objective) -> Iterator[Check]:
    """The term `cross_entropy` is -log x_theta(x) at the tokens that were masked (for AR: at all), and 0 elsewhere."""
    denoiser: Any = RecordingDenoiser(denoisers(objective)[0])
    batch = Batch.of(TEXT.expand(64, -1))
    terms = objective.loss(denoiser, batch, LogLinear(), _real_noise(64, seed=4))
    if terms.masked is None:
        should = exact.left_to_right_nll(denoiser.denoiser, batch.input_ids, FREE)
    else:
        log_p = exact.log_conditionals(denoiser.denoiser, denoiser.calls[0], 0.5, mask_logit=objective.needs_mask_logit)
        should = -log_p.gather(2, batch.input_ids[..., None])[..., 0] * terms.masked
    yield Check(_most(terms.cross_entropy - should), TOLERANCE, "nats from -log x_theta(x)")


@law("objective", when=is_bound)
def terms_are_finite_with_gradients(objective: Objective) -> Iterator[Check]:
    """Every term and every gradient is finite at all times, t = 0, 1 and the first step of the grid included."""
    table = denoisers(objective)[0]
    table.logits.requires_grad_()
    t = torch.tensor([0.0, 2.0**-33, 1e-6, 0.1, 0.5, 0.999, 1.0])
    u = torch.linspace(0.001, 0.999, len(t) * L).view(L, -1).T
    for schedule in members("schedule"):
        terms = objective.loss(table, Batch.of(TEXT.expand(len(t), -1)), schedule, Noise(t, u))
        (gradient,) = torch.autograd.grad(terms.loss, table.logits)
        bad = int((~terms.nelbo.isfinite()).sum() + (~gradient.isfinite()).sum())
        yield Check(bad, 0, f"values or gradients that are not finite with {describe(schedule)}")


@law("objective", when=lambda o: is_bound(o) and not o.exact)
def real_noise_averages_to_the_bound(objective: Objective) -> Iterator[Check]:
    """With the noise of training, stratified times included, the mean is the bound within 4 standard errors (law 2)."""
    rounds, size = 24, 256
    noises = [_real_noise(size, seed=5, step=step) for step in range(rounds)]
    noise = Noise(torch.cat([n.t for n in noises]), torch.cat([n.u for n in noises]))
    for denoiser in denoisers(objective):
        terms = objective.loss(denoiser, Batch.of(TEXT.expand(rounds * size, -1)), LogLinear(), noise)
        means = terms.nelbo.double().sum(dim=1).view(rounds, size).mean(dim=1)
        value = float(average(objective, denoiser, LogLinear(), TEXT, FREE).sum())
        yield Check(deviations(means, value), 4.0, "standard errors from the exact average")


@law("objective")
def half_a_batch_is_half_of_the_batch(objective: Objective) -> Iterator[Check]:
    """A global batch of 8 has the same times, masks and values on one process and on two (law 11)."""
    denoiser = denoisers(objective)[0]

    def terms(index: Tensor) -> LossTerms:
        noise = Noise.draw(11, 7, index, draw_times(11, 7, index, 8), L)
        return objective.loss(denoiser, Batch.of(TEXT.expand(len(index), -1)), LogLinear(), noise)

    whole, first, second = terms(torch.arange(8)), terms(torch.arange(4)), terms(torch.arange(4, 8))
    for name in ("nelbo", "masked", "mask_rate"):
        if getattr(whole, name) is not None:
            halves = torch.cat([getattr(first, name), getattr(second, name)])
            yield Check(float((getattr(whole, name) != halves).sum()), 0, f"{name} that differ on two processes")


def _most(difference: Tensor) -> float:
    return float(difference.abs().max())


def _real_noise(size: int, seed: int, step: int = 0) -> Noise:
    index = torch.arange(size)
    return Noise.draw(seed, step, index, draw_times(seed, step, index, size), L)
