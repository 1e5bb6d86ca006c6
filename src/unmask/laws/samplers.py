"""The laws of samplers: what they write, against the enumerated law of the Markov chain that they say they walk.

The chain is the one thing that must be known about a sampler; `unmask.laws.chains` has them.
"""

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
from unmask.constraints import Automaton, Banned, Vocabulary, Words, compile_constraints
from unmask.constraints.members import can_accept
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.laws import exact
from unmask.laws.base import Check, chi_square, law
from unmask.laws.chains import BLANK, MASK, PROMPTED, L, V, output_distribution
from unmask.laws.tables import (
    CausalTable,
    ConstantDenoiser,
    RecordingDenoiser,
    Table,
    causal_oracle,
    oracle,
    random_causal_table,
    random_joint,
    random_table,
)
from unmask.random import Purpose
from unmask.samplers.base import Canvas, Sampler, State, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

SAMPLES = 16384
UNLIKELY = 4.0
"""Counts may be as unlikely as 10^-4 under the law that they are compared with."""


def denoisers(sampler: Sampler) -> list[Table | CausalTable]:
    """Random tables of the kind that a sampler walks; of scores, those of too little and of too much mass too."""
    if sampler.causal:
        return [random_causal_table()]
    masses = (0.6, 2.5, 1.0) if sampler.needs_scores else (1.0,)
    return [*(random_table(mass=mass) for mass in masses), random_table(conditioned=True)]


@law("sampler")
def samples_follow_their_chain(sampler: Sampler) -> Iterator[Check]:
    """Finished canvases are counted and compared with the enumerated chain, for denoisers that contradict themselves,
    conditioned or not, from a blank canvas and from one with a given token (law 7)."""
    for denoiser in denoisers(sampler):
        for start in (BLANK, PROMPTED):
            should = output_distribution(sampler, denoiser, start)
            yield Check(abs(float(should.sum()) - 1), 1e-6, "the enumerated chain loses mass")
            unlikely = _surprise(_counts(sampler, denoiser, start), should)
            words = f"-log10 of the p-value with {int((start == MASK).sum())} positions to write"
            yield Check(unlikely, UNLIKELY, words + (", conditioned" if denoiser.config.conditioned else ""))


@law("sampler", when=lambda s: s.one_at_a_time)
def oracle_gives_the_data(sampler: Sampler) -> Iterator[Check]:
    """One position at a time with the true conditionals samples the law of the data itself (law 7)."""
    joint = random_joint()
    denoiser = (causal_oracle if sampler.causal else oracle)(joint, V, L, MASK)
    difference = (output_distribution(sampler, denoiser, BLANK) - joint).abs().max()
    yield Check(float(difference), 1e-9, "the enumerated chain against the law of the data")
    counts = _counts(sampler, denoiser, BLANK)
    yield Check(_surprise(counts, joint), UNLIKELY, "-log10 of the p-value against the law of the data")


@law("sampler")
def promises_are_kept(sampler: Sampler) -> Iterator[Check]:
    """Given tokens and pads never change, no mask is left, and the network is called as often as was said (law 8).

    An adaptive sampler says how often at most; what it says never grows, and is true at the end.
    """
    canvas = _ragged()
    writable = (canvas.ids == MASK) & canvas.attention_mask
    for rows in (slice(None), *(slice(b, b + 1) for b in range(len(canvas.ids)))):
        part = _rows(canvas, rows)
        denoiser = RecordingDenoiser(denoisers(sampler)[0])
        states = list(run_sampler(sampler, denoiser, part))
        first, last = states[0], states[-1]
        changed = sum(int((state.ids != part.ids)[~writable[rows]].sum()) for state in states)
        yield Check(changed, 0, "given tokens that changed")
        yield Check(float((last.ids == MASK)[part.attention_mask].sum()), 0, "masks left")
        yield Check(abs(len(denoiser.calls) - last.total), 0, "calls of the network against those promised")
        grown = max((after.total - before.total for before, after in itertools.pairwise(states)), default=0)
        yield Check(grown, 0, "calls that were promised later than others")
        if not sampler.adaptive:
            yield Check(abs(first.total - last.total), 0, "calls that were promised and taken back")
        if len(part.ids) == 1:
            own = max(abs(state.total - int(state.calls[0])) for state in (first, last))
            yield Check(own, 0, "calls of a lone sequence against its own count")
        yield Check(_unaccounted(states), 0, "tokens written that `order` does not account for")
        yield Check(float((last.order.ge(0) != writable[rows]).sum()), 0, "positions with a wrong sign of order")


def _unaccounted(states: list[State]) -> int:
    """How many changes between states are not those of that call of their sequence which `order` names."""
    count = 0
    for before, after in itertools.pairwise(states):
        by_this_call = (after.order == before.calls_made[:, None]) | (after.masked & (after.order == -1))
        count += int(((after.ids != before.ids) & ~by_this_call).sum())
    return count


@law("sampler")
def confidence_is_the_probability(sampler: Sampler) -> Iterator[Check]:
    """The confidence of a written token is its probability on the canvas before it was written; of a given one, 1."""
    table = denoisers(sampler)[-1]
    worst = 0.0
    for seed in range(8):
        denoiser = RecordingDenoiser(table)
        states = list(run_sampler(sampler, denoiser, Canvas.of(PROMPTED[None], MASK, seed)))
        said = torch.ones(L, dtype=torch.float64)
        for call in range(len(states) - 1):
            written = states[-1].order[0] == call
            said[written] = _probability(denoiser, states[-1].ids, call)[written]
        worst = max(worst, float((states[-1].confidence[0] - said).abs().max()))
    yield Check(worst, 1e-6, "confidence against the probability")


def _probability(denoiser: RecordingDenoiser, written: Tensor, call: int) -> Tensor:
    """[L] the probability that call number `call` gave to the written tokens [1, L]."""
    alpha = denoiser.alphas[call]
    if alpha is None:
        return (-exact.left_to_right_nll(denoiser.denoiser, written, written[0] >= 0)[0]).exp()
    log_p = exact.log_conditionals(denoiser.denoiser, denoiser.calls[call], alpha.double())
    return log_p[0].gather(1, written[0, :, None])[:, 0].exp()


@law("sampler")
def company_does_not_matter(sampler: Sampler) -> Iterator[Check]:
    """A sequence is written bit for bit the same alone, among others, and with pads behind it."""
    canvas = _ragged()
    for denoiser in denoisers(sampler):
        together = sample(sampler, denoiser, canvas)
        for b in range(len(canvas.ids)):
            length = int(canvas.attention_mask[b].sum())
            lone = Canvas(
                canvas.ids[b : b + 1, :length], canvas.attention_mask[b : b + 1, :length], canvas.seeds[b : b + 1], MASK
            )
            alone = sample(sampler, denoiser, lone)
            yield Check(float((alone.ids != together.ids[b, :length]).sum()), 0, "tokens that differ in company")
            differ = alone.confidence != together.confidence[b, :length]
            yield Check(float(differ.sum()), 0, "confidences that differ in company")


@law("sampler", when=lambda s: not s.causal)
def constraints_are_kept(sampler: Sampler) -> Iterator[Check]:
    """What is written satisfies a constraint, whatever is given, in as many calls as without one, and every sequence is
    bit for bit the same in company and alone (laws 7 and 8)."""
    canvas, denoiser = _ragged(), denoisers(sampler)[-1]
    rule = ConstrainedTokenSampler(TokenSampler(), _two_then_three(), canvas.ids.device)
    rows = [b for b in range(len(canvas.ids)) if can_accept(rule.automaton, _own(canvas, b), MASK)]
    some = _rows(canvas, rows)
    together = sample(sampler, denoiser, some, rule)
    yield Check(abs(len(rows) - 5), 0, "sequences that can satisfy the constraint, against five")
    if not sampler.adaptive:
        yield Check(abs(together.total - sampler.begin(some).total), 0, "calls that the constraint costs")
    for b in range(len(rows)):
        alone = sample(sampler, denoiser, _rows(some, [b]), rule)
        yield Check(float((alone.ids[0] != together.ids[b]).sum()), 0, "tokens that differ in company")
        written = _own(replace(some, ids=together.ids), b)
        yield Check(float(not can_accept(rule.automaton, written, MASK)), 0, "sequences that break the constraint")
        changed = (together.ids[b] != some.ids[b]) & ~some.masked[b]
        yield Check(float(changed.sum()), 0, "given tokens that changed")


def _two_then_three() -> Automaton:
    """Token 2 directly before token 3 somewhere, and no token 0 at the beginning."""
    vocabulary = Vocabulary(None, V, MASK)
    return compile_constraints([Words([2, 3]), Banned([0], [0])], vocabulary, [])


def _own(canvas: Canvas, row: int) -> list[int]:
    """The tokens of a sequence without pads."""
    return canvas.ids[row][canvas.attention_mask[row]].tolist()


AIM, TAIL_BITS = 24, 27


@law("sampler")
def rare_tokens_are_drawn_at_their_rate(sampler: Sampler) -> Iterator[Check]:
    """A token of probability 2^-27 is drawn as often as it should be, which a float32 Gumbel draw cannot do (law 7).

    To see it within a few thousand draws, the random bits of that token are aimed: it gets one of the lowest 2^8 of the
    2^32 numbers, where alone it can win. How often it then wins is known exactly.
    """
    tail, head = 2.0**-TAIL_BITS, 1.0 - 2.0**-TAIL_BITS
    denoiser = ConstantDenoiser(torch.tensor([head, tail, 0.1], dtype=torch.float64).log(), mask_token_id=2)
    with mock.patch.object(random, "bits", _aimed):
        canvas = Canvas.of(torch.full((SAMPLES, 1), 2), mask_token_id=2)
        won = float((sample(sampler, denoiser, canvas).ids == 1).double().mean())
    cell = torch.arange(1 << (32 - AIM), dtype=torch.float64)
    wins = torch.exp(torch.log1p(-(2 * cell + 1) * 2.0**-33) * head / tail).mean()
    error = math.sqrt(float(wins * (1 - wins)) / SAMPLES)
    yield Check(abs(won - float(wins)) / error, 4.0, "standard errors from the mass of the tail")


_random_bits = random.bits


def _aimed(seed: Any, purpose: Purpose, *args: Any, **kwargs: Any) -> Tensor:
    """The true bits, but token 1 is only dealt the lowest numbers. Tokens are the last dimension of what is drawn."""
    cell = _random_bits(seed, purpose, *args, **kwargs)
    if purpose is not Purpose.TOKEN:
        return cell
    return torch.where(torch.arange(cell.shape[-1]) == 1, cell >> AIM, cell)


def _ragged() -> Canvas:
    """Sequences with something given here and there, one with a pad behind it and one with nothing to write."""
    ids = torch.tensor([[1, 1, 1], [1, 2, 1], [3, 1, 1], [1, 1, 1], [0, 2, 3], [1, 1, 0], [1, 0, 1]])
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[3, 2] = False
    attention[6, 1:] = False
    return Canvas.of(ids, MASK, seed=40, attention_mask=attention)


def _rows(canvas: Canvas, rows: slice | list[int]) -> Canvas:
    return Canvas(canvas.ids[rows], canvas.attention_mask[rows], canvas.seeds[rows], canvas.mask_token_id)


def _counts(sampler: Sampler, denoiser: Any, start: Tensor) -> Tensor:
    """[V^L] how often each finished canvas comes out of `SAMPLES` sequences."""
    canvas = Canvas.of(start.expand(SAMPLES, -1), MASK, seed=1000)
    codes = (sample(sampler, denoiser, canvas).ids * V ** torch.arange(L)).sum(dim=1)
    return torch.bincount(codes, minlength=V**L)


def _surprise(counts: Tensor, should: Tensor) -> float:
    return -math.log10(max(chi_square(counts, should), 1e-300))
