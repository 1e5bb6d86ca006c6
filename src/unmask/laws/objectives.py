"""The laws of objectives: the exact expectation of each over its noise, against the enumerated bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.base import STEPS, Check, LawBroken, describe, law, max_abs, members, z_score
from unmask.laws.tables import (
    RecordingDenoiser,
    all_canvases,
    canvas_index,
    markov_data,
    planner_log_odds,
    random_causal_table,
    random_data,
    random_table,
)
from unmask.objectives.autoregressive import AR
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.objectives.d3pm import D3PM
from unmask.objectives.mlm import MLM
from unmask.objectives.sedd import SEDD, log_score
from unmask.objectives.subs import ContinuousSubs, MaskCount, Subs
from unmask.process import Batch
from unmask.schedules import LogLinear, Schedule, draw_times

V, L, MASK = 4, 3, 1
TOLERANCE = 1e-5
TEXT = torch.tensor([2, 0, 3])
FREE, GIVEN = torch.tensor([True, True, True]), torch.tensor([True, False, True])
RANDOM, MARKOV = random_data(), markov_data()


def denoisers(objective: Objective) -> list[Any]:
    """Random tables of the kind that an objective needs."""
    if objective.causal:
        return [random_causal_table(), random_causal_table(begin=False)]
    return [random_table(), random_table(conditioned=True)]


# ---- exact expectations over the noise ------------------------------------------------------------------------------


EnumeratedNoise = tuple[Noise, Tensor]
"""All cases of the noise and their probabilities [N]."""


@singledispatch
def enumerate_noise(objective: Objective, schedule: Schedule, target_mask: Tensor) -> EnumeratedNoise:
    """All cases of the noise of an objective and their probabilities, for the target positions [L]."""
    raise LawBroken(
        f"The noise of {describe(objective)} cannot be enumerated: write a function (objective, schedule, target_mask) "
        f"-> (noise, probability) and decorate it with @enumerate_noise.register({type(objective).__name__}), as in "
        "unmask.laws.objectives."
    )


@enumerate_noise.register(Subs)
@enumerate_noise.register(D3PM)
@enumerate_noise.register(SEDD)
def threshold_noise(objective: Objective, schedule: Schedule, target_mask: Tensor) -> EnumeratedNoise:
    """Positions with u < 1 - alpha(t) are masked, t uniform or on the grid i/T: all t with all sets of small u."""
    steps = getattr(objective, "steps", None)
    if steps is None:
        t, weight = exact.time_quadrature(schedule.breakpoints())
        rate = t.square() if isinstance(objective, ContinuousSubs) else schedule.mask_rate(t)
    else:
        t = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps  # one time inside every step
        weight = torch.full_like(t, 1 / steps)
        rate = schedule.mask_rate(torch.ceil(t * steps) / steps)
    small = all_canvases(2, len(target_mask)).bool()
    u = torch.where(small, 0.5 * rate[:, None, None], 0.5 + 0.5 * rate[:, None, None])
    probability = torch.where(small, rate[:, None, None], 1.0 - rate[:, None, None]).prod(dim=-1)
    noise = Noise(t.repeat_interleave(len(small)), u.flatten(0, 1))
    return noise, (weight[:, None] * probability).flatten()


@enumerate_noise.register(MaskCount)
def count_noise(objective: Objective, schedule: Schedule, target_mask: Tensor) -> EnumeratedNoise:
    """The targets with the n = ceil(t L) smallest u may be any set; the n-th smallest u is Beta(n, L - n + 1).

    Other positions get even smaller numbers, which must not matter.
    """
    length = int(target_mask.sum())
    small = all_canvases(2, len(target_mask)).bool()
    small = small[(small & ~target_mask).sum(dim=1).eq(0) & small.any(dim=1)]
    n = small.sum(dim=1)
    node, weight = exact.gauss_legendre(16)
    sets = torch.tensor([math.comb(length, int(k)) for k in n], dtype=torch.float64)
    density = n[:, None] * sets[:, None] * node ** (n[:, None] - 1) * (1.0 - node) ** (length - n[:, None])
    probability = density * weight / sets[:, None] / length
    # 1 for the first member of each set, smaller numbers for the others
    descending = torch.where(small, 1.0 / small.long().cumsum(dim=1).clamp_min(1), 1.0).double()
    u = torch.where(small[:, None], node[:, None] * descending[:, None], 0.5 + 0.5 * node[:, None])
    u = torch.where(target_mask, u, 1e-6)
    t = ((n - 0.5) / length)[:, None].expand_as(probability)
    return Noise(t.flatten(), u.flatten(0, 1)), probability.flatten()


@enumerate_noise.register(AR)
def no_noise(objective: Objective, schedule: Schedule, target_mask: Tensor) -> EnumeratedNoise:
    """A single case with probability 1: nothing is random."""
    one = torch.ones(1, dtype=torch.float64)
    return Noise(0.5 * one, torch.full((1, len(target_mask)), 0.5, dtype=torch.float64)), one


def expected_nelbo(
    objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, target_mask: Tensor
) -> Tensor:
    """[L] the exact expectation over the noise of the nats at each position of a text [L]."""
    noise, probability = enumerate_noise(objective, schedule, target_mask)
    count = len(probability)
    batch = Batch.of(text.expand(count, -1), frozen=(~target_mask).expand(count, -1))
    with torch.no_grad():
        terms = objective.loss(denoiser, batch, schedule, noise)
    return (probability[:, None] * terms.nelbo.double()).sum(dim=0)


def enumerated_bound(
    objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, target_mask: Tensor
) -> Tensor:
    """[L] the nats at each position of the bound that the fields of the objective describe."""
    if objective.causal:
        return exact.left_to_right_nll(denoiser, text[None], target_mask)[0]
    steps = getattr(objective, "steps", None)
    if steps is None:
        return exact.continuous_bound(denoiser, text[None], target_mask)[0]
    rates, carry_over = exact.grid_rates(schedule, steps), not objective.needs_visible_rows
    return exact.step_bound(denoiser, text[None], target_mask, rates, objective.needs_mask_logit, carry_over)[0]


def enumerated_nll(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, target_mask: Tensor) -> float:
    """-log p(text) of the generative process that the objective bounds."""
    if objective.causal:
        return float(exact.left_to_right_nll(denoiser, text[None], target_mask).sum())
    steps = getattr(objective, "steps", None)
    if steps is None:
        return float(exact.any_order(denoiser, text[None], target_mask).nll)
    start = text.masked_fill(target_mask, denoiser.config.mask_token_id)
    probability = exact.step_distribution(
        denoiser, start, exact.grid_rates(schedule, steps), objective.needs_mask_logit
    )
    if objective.needs_visible_rows:
        probability = exact.rewritten_distribution(denoiser, probability, target_mask, objective.needs_mask_logit)
    return -math.log(float(probability[canvas_index(text, denoiser.config.vocab_size)]))


# ---- laws of bounds -------------------------------------------------------------------------------------------------


@law("objective", when=lambda o: o.is_bound)
def expectation_equals_the_bound(objective: Objective) -> Iterator[Check]:
    """The expectation of an objective is its bound, for every schedule, conditioned or not (laws 2, 3, 4, 5): in
    continuous time the same number for all schedules, in T steps the divergences from transition matrices."""
    for schedule in members("schedule"):
        worst = 0.0
        for denoiser in denoisers(objective):
            for targets in (FREE, GIVEN):
                difference = expected_nelbo(objective, denoiser, schedule, TEXT, targets)
                difference -= enumerated_bound(objective, denoiser, schedule, TEXT, targets)
                worst = max(worst, max_abs(difference))
        yield Check(worst, TOLERANCE, f"nats from the enumerated bound with {describe(schedule)}")


@law("objective", when=lambda o: o.is_bound)
def bound_is_not_below_the_negative_log_likelihood(objective: Objective) -> Iterator[Check]:
    """The bound is at least the enumerated -log p of the process that it bounds (law 1)."""
    gaps = []
    for schedule in members("schedule"):
        for denoiser in denoisers(objective)[: 1 if objective.causal else None]:
            for targets in (FREE, GIVEN):
                nats = float(expected_nelbo(objective, denoiser, schedule, TEXT, targets).sum())
                gaps.append(nats - enumerated_nll(objective, denoiser, schedule, TEXT, targets))
    yield Check(-min(gaps), TOLERANCE, "nats by which the bound is below -log p")
    if objective.exact:
        yield Check(abs(min(gaps)), TOLERANCE, "nats between an exact objective and -log p")


@law("objective", when=lambda o: o.is_bound and getattr(o, "steps", None) is None)
def bound_is_tight_for_an_oracle(objective: Objective) -> Iterator[Check]:
    """With the true conditionals the bound equals -log p, for a random distribution and a Markov chain, with and
    without given tokens (law 1)."""
    for data in (RANDOM, MARKOV):
        denoiser = data.causal_oracle() if objective.causal else data.oracle()
        for given in (0, 1):
            targets = torch.arange(data.length) >= given
            gaps = [
                float(expected_nelbo(objective, denoiser, LogLinear(), text, targets).sum()) - data.nll(text, targets)
                for text in data.texts()[::5]
            ]
            yield Check(max(map(abs, gaps)), TOLERANCE, f"nats between bound and -log p with an oracle, {given} given")


@law("objective", when=lambda o: getattr(o, "steps", None) is not None)
def more_steps_lower_the_bound_of_an_oracle(objective: Any) -> Iterator[Check]:
    """With the true conditionals the T-step bound, averaged over the data, falls along T, 2T, 4T towards the entropy of
    the data, but not below it (law 3)."""
    denoiser = RANDOM.oracle()
    for given in (0, 1):
        targets = torch.arange(L) >= given
        entropy = RANDOM.mean([RANDOM.nll(text, targets) for text in RANDOM.texts()])
        nats = []
        for steps in (objective.steps, 2 * objective.steps, 4 * objective.steps):
            finer = objective.model_copy(update={"steps": steps})
            each = [expected_nelbo(finer, denoiser, LogLinear(), text, targets).sum() for text in RANDOM.texts()]
            nats.append(RANDOM.mean(each))
        rise = max(after - before for before, after in itertools.pairwise(nats))
        yield Check(rise, -1e-3, "rise along T, 2T, 4T with an oracle")
        yield Check(entropy - nats[-1], TOLERANCE, "nats by which the bound is below the entropy of the data")


def _is_subs_in_few_steps(objective: Any) -> bool:
    in_steps = "steps" in type(objective).model_fields and objective.steps == STEPS[0]
    return in_steps and not (objective.needs_mask_logit or objective.needs_visible_rows)


@law("objective", when=_is_subs_in_few_steps)
def bound_converges_to_continuous_time(objective: Objective) -> Iterator[Check]:
    """The T-step bound approaches the continuous one as 1/T, for an inconsistent denoiser (law 3)."""
    for schedule in members("schedule"):
        for denoiser in denoisers(objective):
            limit = float(exact.continuous_bound(denoiser, TEXT[None], FREE).sum())
            gaps = []
            for steps in (128, 256):
                finer = objective.model_copy(update={"steps": steps})
                gaps.append(float(expected_nelbo(finer, denoiser, schedule, TEXT, FREE).sum()) - limit)
            yield Check(abs(gaps[1]), 0.05, f"nats from the continuous bound at T = 256 with {describe(schedule)}")
            yield Check(abs(2 * gaps[1] - gaps[0]), 0.01, "nats left after extrapolating 1/T to 0")


@law("objective", when=lambda o: o.is_bound)
def estimators_agree(objective: Objective) -> Iterator[Check]:
    """All estimators of an objective have the same expectation (law 2)."""
    for denoiser in denoisers(objective):
        for targets in (FREE, GIVEN):
            estimators = objective.estimators().values()
            nats = [expected_nelbo(e, denoiser, LogLinear(), TEXT, targets).sum() for e in estimators]
            yield Check(float(max(nats) - min(nats)), TOLERANCE, "nats between the estimators")


@law("objective")
def frozen_and_padding_tokens_are_ignored(objective: Objective) -> Iterator[Check]:
    """Frozen tokens and padding are never corrupted, predicted or counted, and ids at padding do not matter."""
    denoiser: Any = RecordingDenoiser(denoisers(objective)[0])
    # a frozen token, a target and padding
    attention, frozen = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    batch = Batch.of(TEXT.expand(64, -1), attention.expand(64, -1), frozen.expand(64, -1))
    noise = _training_noise(64, seed=3)
    terms = objective.loss(denoiser, batch, LogLinear(), noise)
    ignored = ~batch.target_mask
    wrong = terms.counted == ignored if objective.is_bound else terms.counted & ignored
    yield Check(float(wrong.sum()), 0, "counted positions that are not targets, or for a bound the reverse")
    for name in ("diffusion", "reconstruction", "prior", "cross_entropy"):
        yield Check(float(getattr(terms, name)[ignored].abs().sum()), 0, f"{name} at positions that are not counted")
    if terms.masked is not None:
        corrupted = sum(int((ids != batch.input_ids)[ignored].sum()) for ids in denoiser.calls)
        yield Check(corrupted, 0, "frozen or padding tokens that are corrupted")
        yield Check(float((terms.masked & ignored).sum()), 0, "masked positions that are not targets")
    other = replace(batch, input_ids=batch.input_ids.masked_fill(~batch.attention_mask, 0))
    again = objective.loss(denoiser, other, LogLinear(), noise)
    yield Check(float((terms.nelbo != again.nelbo).sum()), 0, "values that change with the ids at padding")


@law("objective", when=lambda o: not o.trains_planner)
def cross_entropy_is_that_of_x_theta(objective: Objective) -> Iterator[Check]:
    """The term `cross_entropy` is -log x_theta(x) at masked tokens (for AR: at all) and 0 elsewhere."""
    denoiser: Any = RecordingDenoiser(denoisers(objective)[0])
    batch = Batch.of(TEXT.expand(64, -1))
    terms = objective.loss(denoiser, batch, LogLinear(), _training_noise(64, seed=4))
    if terms.masked is None:
        expected = exact.left_to_right_nll(denoiser.denoiser, batch.input_ids, FREE)
    else:
        log_p = exact.log_conditionals(denoiser.denoiser, denoiser.calls[0], 0.5, mask_logit=objective.needs_mask_logit)
        expected = -log_p.gather(2, batch.input_ids[..., None])[..., 0] * terms.masked
    yield Check(max_abs(terms.cross_entropy - expected), TOLERANCE, "nats from -log x_theta(x)")


@law("objective", when=lambda o: not o.trains_planner)
def terms_and_gradients_are_finite(objective: Objective) -> Iterator[Check]:
    """Every term and gradient is finite at all times, including t = 0, t = 1 and the first step of the grid."""
    table = denoisers(objective)[0]
    table.logits.requires_grad_()
    t = torch.tensor([0.0, 2.0**-33, 1e-6, 0.1, 0.5, 0.999, 1.0])
    u = torch.linspace(0.001, 0.999, len(t) * L).view(L, -1).T
    for schedule in members("schedule"):
        terms = objective.loss(table, Batch.of(TEXT.expand(len(t), -1)), schedule, Noise(t, u))
        (gradient,) = torch.autograd.grad(terms.loss, table.logits)
        bad = int((~terms.nelbo.isfinite()).sum() + (~gradient.isfinite()).sum())
        yield Check(bad, 0, f"values or gradients that are not finite with {describe(schedule)}")


@law("objective", when=lambda o: o.is_bound and not o.exact)
def training_noise_averages_to_the_bound(objective: Objective) -> Iterator[Check]:
    """With the noise of training, low-discrepancy times included, the mean is within 4 standard errors (law 2)."""
    rounds, size = 24, 256
    noises = [_training_noise(size, seed=5, step=step) for step in range(rounds)]
    noise = Noise(torch.cat([n.t for n in noises]), torch.cat([n.u for n in noises]))
    for denoiser in denoisers(objective):
        terms = objective.loss(denoiser, Batch.of(TEXT.expand(rounds * size, -1)), LogLinear(), noise)
        means = terms.nelbo.double().sum(dim=1).view(rounds, size).mean(dim=1)
        value = float(expected_nelbo(objective, denoiser, LogLinear(), TEXT, FREE).sum())
        yield Check(z_score(means, value), 4.0, "standard errors from the exact expectation")


@law("objective")
def values_do_not_depend_on_the_number_of_processes(objective: Objective) -> Iterator[Check]:
    """A global batch of 8 has the same times, masks and values on one process and on two (law 11)."""
    denoiser = denoisers(objective)[0]

    def terms(index: Tensor) -> LossTerms:
        noise = Noise.draw(11, 7, index, draw_times(11, 7, index, 8), L)
        return objective.loss(denoiser, Batch.of(TEXT.expand(len(index), -1)), LogLinear(), noise)

    whole, first, second = terms(torch.arange(8)), terms(torch.arange(4)), terms(torch.arange(4, 8))
    for name in ("nelbo", "masked", "mask_rate"):
        if getattr(whole, name) is not None:
            halves = torch.cat([getattr(first, name), getattr(second, name)])
            yield Check(float((getattr(whole, name) != halves).sum()), 0, f"{name} that differs on two processes")


# ---- laws of scores -------------------------------------------------------------------------------------------------


@law("objective", when=lambda o: isinstance(o, SEDD))
def unnormalised_score_costs_its_excess_mass(objective: SEDD) -> Iterator[Check]:
    """A score of total mass S alpha/(1 - alpha) costs w(t) (S - 1 - log S) more at every masked token (law 5)."""
    schedule = LogLinear()
    noise = Noise(torch.tensor([0.4, 0.9]).double(), torch.tensor([[0.2, 0.3, 0.95]] * 2).double())
    batch, masked = Batch.of(TEXT.expand(2, -1)), torch.tensor([[True, True, False]] * 2)
    normalised = objective.loss(random_table(), batch, schedule, noise).nelbo
    subs = Subs().loss(random_table(), batch, schedule, noise).nelbo
    yield Check(max_abs(normalised - subs), TOLERANCE, "nats between a normalised score and SUBS at a z_t")
    for mass in (0.3, 2.5):
        table = random_table(mass=mass)
        free = objective.loss(table, batch, schedule, noise).nelbo
        cost = schedule.weight(noise.t)[:, None] * (mass - 1 - math.log(mass)) * masked
        yield Check(max_abs(free - normalised - cost), TOLERANCE, f"cost of a score of mass {mass}")
        formula = _score_entropy(table, batch, schedule, noise.t, masked)
        yield Check(max_abs(free - formula), TOLERANCE, f"against the formula as published, mass {mass}")


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
def raw_outputs_are_scores(objective: SEDD) -> Iterator[Check]:
    """A raw output of mass V - 1 is the score s = alpha/(1 - alpha) x_theta."""
    table, alpha = random_table(), torch.tensor(0.3, dtype=torch.float64)
    log_x = exact.log_conditionals(table, TEXT[None].masked_fill(FREE, MASK), 0.3)
    f = table.head(table.hidden(TEXT[None].masked_fill(FREE, MASK)))
    yield Check(max_abs(log_score(f, alpha, V).exp() - log_x.exp() * 0.3 / 0.7), 1e-12, "score of a raw output")


# ---- laws of masked language modelling ------------------------------------------------------------------------------


@law("objective", when=lambda o: isinstance(o, MLM))
def corruption_has_the_shares_of_bert(objective: MLM) -> Iterator[Check]:
    """Tokens are masked, replaced and kept with the objective's probabilities, and every token is as likely as another
    to replace one. The cases are a grid of times and uniforms, so their shares are probabilities."""
    size, config = 400, random_table().config
    t = ((torch.arange(size) + 0.5) / size).double()
    u = objective.rate * ((torch.arange(size) + 0.5) / size).double()[:, None].expand(-1, L)
    batch = Batch.of(TEXT.expand(size * size, -1))
    noise = Noise(t.repeat_interleave(size), u.repeat(size, 1))
    corruption = objective.corrupt(batch, LogLinear(), noise, config)
    yield Check(float((~corruption.predicted).sum()), 0, "tokens with u below the rate that are not predicted")
    assert corruption.z is not None
    kept = 1 - objective.masked - objective.random
    for token in range(V):
        expected = kept * float(TEXT.eq(token).double().mean()) + objective.random / V
        expected += objective.masked * (token == MASK)
        share = float((corruption.z == token).double().mean())
        yield Check(abs(share - expected), 1e-9, f"distance of the share of token {token} from {expected:.4f}")
    above = Noise(noise.t, noise.u + objective.rate)
    clean = objective.corrupt(batch, LogLinear(), above, config)
    yield Check(float(clean.predicted.sum()), 0, "tokens with u above the rate that are predicted")
    terms = objective.loss(random_table(), batch, LogLinear(), noise)
    difference = max_abs(terms.nelbo * objective.rate - terms.cross_entropy)
    yield Check(difference, TOLERANCE, "nats between the loss and the cross-entropy per chosen token")
    yield Check(
        abs(float(terms.loss - terms.total) / float(terms.total)), TOLERANCE, "loss against its terms, relative"
    )


# ---- laws of planners -----------------------------------------------------------------------------------------------

PLANNER_NOISE = Noise(
    torch.tensor([0.0, 2.0**-33, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]), torch.linspace(0.001, 0.999, 24).view(3, 8).T
)


@law("objective", when=lambda o: o.trains_planner)
def planner_loss_is_a_binary_cross_entropy(objective: Objective) -> Iterator[Check]:
    """At a masked position the loss is -log of the probability that the planner gives to the outcome: the most likely
    token is the true one, or it is not. Nothing else is counted."""
    for schedule in members("schedule"):
        for conditioned in (False, True):
            denoiser: Any = RecordingDenoiser(random_table(conditioned=conditioned))
            terms = objective.loss(denoiser, Batch.of(TEXT.expand(8, -1)), schedule, PLANNER_NOISE)
            z, alpha = denoiser.calls[0], denoiser.alphas[0]
            p = exact.log_conditionals(denoiser.denoiser, z, alpha.double()).exp()
            right = p.argmax(dim=-1) == TEXT
            odds = torch.sigmoid(planner_log_odds(p))
            expected = -torch.where(right, odds, 1 - odds).log() * (z == MASK)
            difference = max_abs(terms.nelbo - expected)
            yield Check(difference, 1e-5, f"nats from the enumerated loss with {describe(schedule)}")
            wrong = int((terms.counted != (z == MASK)).sum())
            yield Check(wrong, 0, "counted positions that are not masked, or the reverse")
            yield Check(abs(float(terms.loss - expected.sum())), 1e-4, "nats between the training loss and the terms")


@law("objective", when=lambda o: o.trains_planner)
def planner_loss_has_no_gradient_for_the_denoiser(objective: Objective) -> Iterator[Check]:
    """The planner has finite, non-zero gradients and the denoiser has none."""
    table = random_table()
    table.logits.requires_grad_()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    plan = table.plan
    table.plan = lambda rows, log_top: scale * plan(rows, log_top)  # type: ignore[method-assign]
    terms = objective.loss(table, Batch.of(TEXT.expand(8, -1)), LogLinear(), PLANNER_NOISE)
    denoiser, planner = torch.autograd.grad(terms.loss, [table.logits, scale], allow_unused=True)
    yield Check(float(denoiser is not None), 0, "gradients that reach the denoiser")
    yield Check(float(not (planner.isfinite() and planner != 0)), 0, "planners without a finite gradient")


def _training_noise(size: int, seed: int, step: int = 0) -> Noise:
    index = torch.arange(size)
    return Noise.draw(seed, step, index, draw_times(seed, step, index, size), L)
