"""The laws of samplers: their output against the enumerated Markov chain in `unmask.laws.chains`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from unmask import random
from unmask.constraints.members import Banned, Words, can_accept, compile_constraints
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.constraints.vocabulary import Vocabulary
from unmask.laws import exact
from unmask.laws.base import Check, chi_square, law, max_abs
from unmask.laws.chains import BLANK, MASK, PROMPTED, L, V, output_distribution
from unmask.laws.tables import (
    CausalTableDenoiser,
    ConstantDenoiser,
    RecordingDenoiser,
    TableDenoiser,
    canvas_index,
    random_causal_table,
    random_data,
    random_table,
)
from unmask.random import Purpose
from unmask.samplers.base import Canvas, Sampler, State, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

SAMPLES = 16384
MAX_LOG_P = 4.0
"""The largest -log10 of a p-value of observed counts."""
TAIL_BITS, AIM_BITS = 27, 24


def denoisers(sampler: Sampler) -> list[TableDenoiser | CausalTableDenoiser]:
    """Random tables of the kind that a sampler needs; for scores also with too little and too much mass."""
    if sampler.causal:
        return [random_causal_table()]
    masses = (0.6, 2.5, 1.0) if sampler.needs_scores else (1.0,)
    return [*(random_table(mass=mass) for mass in masses), random_table(conditioned=True)]


@law("sampler")
def samples_follow_the_enumerated_chain(sampler: Sampler) -> Iterator[Check]:
    """Counts of finished canvases fit the enumerated chain, for inconsistent denoisers, conditioned or not, from a
    blank canvas and from one with a given token (law 7)."""
    for denoiser in denoisers(sampler):
        for start in (BLANK, PROMPTED):
            expected = output_distribution(sampler, denoiser, start)
            yield Check(abs(float(expected.sum()) - 1), 1e-6, "mass lost by the enumerated chain")
            log_p = _log_p(sampler, denoiser, start, expected)
            description = f"-log10 of the p-value with {int((start == MASK).sum())} masked positions"
            yield Check(log_p, MAX_LOG_P, description + (", conditioned" if denoiser.config.conditioned else ""))


@law("sampler", when=lambda s: s.one_at_a_time)
def oracle_samples_follow_the_data_distribution(sampler: Sampler) -> Iterator[Check]:
    """One position at a time with the true conditionals samples the data distribution (law 7)."""
    data = random_data()
    denoiser = data.causal_oracle() if sampler.causal else data.oracle()
    difference = max_abs(output_distribution(sampler, denoiser, BLANK) - data.joint)
    yield Check(difference, 1e-9, "the enumerated chain against the data distribution")
    log_p = _log_p(sampler, denoiser, BLANK, data.joint)
    yield Check(log_p, MAX_LOG_P, "-log10 of the p-value against the data distribution")


@law("sampler")
def given_tokens_stay_and_calls_are_as_promised(sampler: Sampler) -> Iterator[Check]:
    """Given tokens and padding never change, no mask is left, and the number of network calls is as promised (law 8).

    An adaptive sampler promises a maximum, which never grows and is exact at the end.
    """
    canvas = _ragged_canvas()
    every = torch.arange(len(canvas.ids))
    for rows in (every, *every.split(1)):
        part = canvas.select(rows)
        denoiser = RecordingDenoiser(denoisers(sampler)[0])
        states = list(run_sampler(sampler, denoiser, part))
        first, last = states[0], states[-1]
        changed = sum(int((state.ids != part.ids)[~part.masked].sum()) for state in states)
        yield Check(changed, 0, "given tokens that change")
        yield Check(float((last.ids == MASK)[part.attention_mask].sum()), 0, "masks left")
        yield Check(abs(len(denoiser.calls) - last.total), 0, "network calls against the promised number")
        growth = max((after.total - before.total for before, after in itertools.pairwise(states)), default=0)
        yield Check(growth, 0, "growth of the promised number of calls")
        if not sampler.adaptive:
            yield Check(abs(first.total - last.total), 0, "change of the promised number of calls")
        if len(part.ids) == 1:
            difference = max(abs(state.total - int(state.calls[0])) for state in (first, last))
            yield Check(difference, 0, "total calls against the calls of a single sequence")
        yield Check(_unordered_changes(states), 0, "written tokens that `order` does not attribute to their call")
        yield Check(float((last.order.ge(0) != part.masked).sum()), 0, "positions with a wrong sign of order")


def _unordered_changes(states: list[State]) -> int:
    """The number of changes between states for which `order` is not the index of that call."""
    count = 0
    for before, after in itertools.pairwise(states):
        by_this_call = (after.order == before.calls_made[:, None]) | (after.masked & (after.order == -1))
        count += int(((after.ids != before.ids) & ~by_this_call).sum())
    return count


@law("sampler")
def confidence_is_the_probability_of_the_token(sampler: Sampler) -> Iterator[Check]:
    """The confidence of a written token is its probability given the canvas before; that of a given token is 1."""
    table = denoisers(sampler)[-1]
    worst = 0.0
    for seed in range(8):
        denoiser = RecordingDenoiser(table)
        states = list(run_sampler(sampler, denoiser, Canvas.of(PROMPTED[None], MASK, seed)))
        last = states[-1]
        expected = torch.ones(L, dtype=torch.float64)
        for call in range(len(states) - 1):
            alpha, written = denoiser.alphas[call], last.order[0] == call
            if alpha is None:
                p = (-exact.left_to_right_nll(table, last.ids, last.ids[0] >= 0)[0]).exp()
            else:
                log_p = exact.log_conditionals(table, denoiser.calls[call], alpha.double())
                p = log_p[0].gather(1, last.ids[0, :, None])[:, 0].exp()
            expected[written] = p[written]
        worst = max(worst, max_abs(last.confidence[0] - expected))
    yield Check(worst, 1e-6, "confidence against the probability")


@law("sampler")
def samples_do_not_depend_on_batch_or_padding(sampler: Sampler) -> Iterator[Check]:
    """A sequence is bit-identical alone, in a batch, and with padding."""
    canvas = _ragged_canvas()
    for denoiser in denoisers(sampler):
        together = sample(sampler, denoiser, canvas)
        for b in range(len(canvas.ids)):
            length = int(canvas.attention_mask[b].sum())
            alone = sample(sampler, denoiser, canvas.select(torch.tensor([b]), slice(length)))
            yield Check(float((alone.ids != together.ids[b, :length]).sum()), 0, "tokens that differ in a batch")
            differ = alone.confidence != together.confidence[b, :length]
            yield Check(float(differ.sum()), 0, "confidences that differ in a batch")


@law("sampler", when=lambda s: s.can_join)
def sequences_that_join_a_batch_do_not_depend_on_it(sampler: Sampler) -> Iterator[Check]:
    """Sequences that join a running batch, and those they join, are bit-identical alone, as is their number of calls
    (law 8)."""
    canvas, rule = _ragged_canvas(), TokenSampler(greedy_tail=0.3)
    for denoiser in denoisers(sampler):
        found: dict[int, State] = {}
        state, waiting = None, list(range(len(canvas.ids)))
        running: list[int] = []
        while waiting or running:
            joining, waiting = waiting[:2], waiting[2:]
            if joining:
                new = sampler.begin(canvas.select(torch.tensor(joining)))
                state = new if state is None else sampler.join([state, new])
                running += joining
            assert state is not None
            left = state.calls - torch.as_tensor(state.own_call)
            for place in (left <= 0).nonzero()[:, 0].tolist():
                found[running[place]] = sampler.keep(state, torch.tensor([place]))
            keep = (left > 0).nonzero()[:, 0]
            running = [running[place] for place in keep.tolist()]
            state = sampler.step(denoiser, sampler.keep(state, keep), rule) if running else None
        for b, joined in found.items():
            alone = sample(sampler, denoiser, canvas.select(torch.tensor([b])), rule)
            for name in ("ids", "confidence", "order", "calls"):
                differ = getattr(alone, name) != getattr(joined, name)
                yield Check(float(differ.sum()), 0, f"{name} that differ in a batch joined later")


@law("sampler", when=lambda s: not s.causal)
def constraints_are_satisfied(sampler: Sampler) -> Iterator[Check]:
    """Sequences satisfy a constraint whatever is given, with as many calls as without it, and each is bit-identical
    alone and in a batch (laws 7 and 8)."""
    canvas, denoiser = _ragged_canvas(), denoisers(sampler)[-1]
    # token 2 directly before token 3 somewhere, and no token 0 at the start
    automaton = compile_constraints([Words([2, 3]), Banned([0], [0])], Vocabulary(None, V, MASK), [])
    rule = ConstrainedTokenSampler(TokenSampler(), automaton, canvas.ids.device)

    def accepts(canvas: Canvas, b: int) -> bool:
        return can_accept(rule.automaton, canvas.ids[b][canvas.attention_mask[b]].tolist(), MASK)

    rows = [b for b in range(len(canvas.ids)) if accepts(canvas, b)]
    yield Check(abs(len(rows) - 5), 0, "sequences that can satisfy the constraint, against five")
    some = canvas.select(torch.tensor(rows))
    together = sample(sampler, denoiser, some, rule)
    if not sampler.adaptive:
        yield Check(abs(together.total - sampler.begin(some).total), 0, "calls added by the constraint")
    for b in range(len(rows)):
        alone = sample(sampler, denoiser, some.select(torch.tensor([b])), rule)
        yield Check(float((alone.ids[0] != together.ids[b]).sum()), 0, "tokens that differ in a batch")
        satisfied = accepts(replace(some, ids=together.ids), b)
        yield Check(float(not satisfied), 0, "sequences that violate the constraint")
        changed = (together.ids[b] != some.ids[b]) & ~some.masked[b]
        yield Check(float(changed.sum()), 0, "given tokens that change")


@law("sampler")
def rare_tokens_are_drawn_at_their_rate(sampler: Sampler) -> Iterator[Check]:
    """A token of probability 2^-27 is drawn at its rate, which a float32 Gumbel draw cannot achieve (law 7).

    To see it in a few thousand draws, the random bits of that token are restricted to the lowest 2^8 of the 2^32
    numbers, the only ones with which it can win. The frequency of a win is then known exactly.
    """
    tail, head = 2.0**-TAIL_BITS, 1.0 - 2.0**-TAIL_BITS
    denoiser = ConstantDenoiser(torch.tensor([head, tail, 0.1], dtype=torch.float64).log(), mask_token_id=2)
    original = random.bits

    def restricted(seed: Any, purpose: Purpose, *args: Any, **kwargs: Any) -> Tensor:
        """The original bits, with low numbers for token 1; tokens are the last dimension."""
        cell = original(seed, purpose, *args, **kwargs)
        if purpose is not Purpose.TOKEN:
            return cell
        return torch.where(torch.arange(cell.shape[-1]) == 1, cell >> AIM_BITS, cell)

    with mock.patch.object(random, "bits", restricted):
        canvas = Canvas.of(torch.full((SAMPLES, 1), 2), mask_token_id=2)
        observed = float((sample(sampler, denoiser, canvas).ids == 1).double().mean())
    cell = torch.arange(1 << (32 - AIM_BITS), dtype=torch.float64)
    expected = torch.exp(torch.log1p(-(2 * cell + 1) * 2.0**-33) * head / tail).mean()
    error = math.sqrt(float(expected * (1 - expected)) / SAMPLES)
    yield Check(abs(observed - float(expected)) / error, 4.0, "standard errors from the mass of the tail")


def _ragged_canvas() -> Canvas:
    """Sequences with some given tokens, some with padding, and one without masks."""
    ids = torch.tensor([[1, 1, 1], [1, 2, 1], [3, 1, 1], [1, 1, 1], [0, 2, 3], [1, 1, 0], [1, 0, 1]])
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[3, 2] = False
    attention[6, 1:] = False
    return Canvas.of(ids, MASK, seed=40, attention_mask=attention)


def _log_p(sampler: Sampler, denoiser: Any, start: Tensor, expected: Tensor) -> float:
    """-log10 of the p-value of the counts of finished canvases [V^L] in `SAMPLES` sequences."""
    canvas = Canvas.of(start.expand(SAMPLES, -1), MASK, seed=1000)
    counts = torch.bincount(canvas_index(sample(sampler, denoiser, canvas).ids, V), minlength=V**L)
    return -math.log10(max(chi_square(counts, expected), 1e-300))
