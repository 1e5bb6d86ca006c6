"""Particles: convergence to the model's distribution given a match or weighted by a score, and unbiased weights."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from tests.chains import counts
from tests.constraints.test_sampling import CPU, automaton_of, matches
from unmask.constraints import Banned, Fixed, Vocabulary, Words, compile_constraints
from unmask.constraints.particles import ScoredTokenSampler, _resample, run_particles
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.generation_config import SamplingOptions, configure_sampler
from unmask.laws.base import chi_square
from unmask.laws.chains import BLANK, MASK, output_distribution
from unmask.laws.tables import TableDenoiser, all_canvases, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, JointTokenSampler, ParticleWeights, State, sample
from unmask.samplers.eos import EosTokenSampler
from unmask.samplers.token_sampling import TokenSampler


def score_of(ids: torch.Tensor) -> torch.Tensor:
    """Counts token 2, and dislikes 3 at the end."""
    return (ids == 2).sum(dim=-1).double() * 1.2 - (ids[..., -1] == 3).double()


def last_state(n: int, rows: int, steps: int | None, tokens: JointTokenSampler, denoiser: TableDenoiser) -> State:
    canvas = Canvas.of(BLANK.expand(rows, -1), MASK, seed=500)
    *_, last = run_particles(AncestralSampler(steps=steps), denoiser, canvas, tokens, n)
    return last


def unbiased(state: State, expected: float) -> bool:
    """Whether the mean weight is within four standard errors of its expectation."""
    weight = state.particle_weights.log_weight.exp()
    return abs(float(weight.mean()) - expected) < 4 * float(weight.std()) / len(weight) ** 0.5


@pytest.mark.parametrize("steps", [2, None])
@pytest.mark.parametrize("kind", ["constraint", "score"])
def test_particles_converge_to_the_weighted_distribution(kind, steps):
    denoiser, automaton = random_table(), automaton_of(Words([2, 3]))
    law = output_distribution(AncestralSampler(steps=steps), denoiser, BLANK)
    law = law * (matches(automaton) if kind == "constraint" else score_of(all_canvases(4, 3)).exp())

    def tokens(n: int) -> JointTokenSampler:
        if kind == "constraint":
            return ConstrainedTokenSampler(TokenSampler(), automaton, CPU, n)
        return ScoredTokenSampler(TokenSampler(), lambda ids, real: score_of(ids))

    distances = []
    for n, rows in ((1, 2000), (8, 1500), (64, 600)):
        last = last_state(n, rows, steps, tokens(n), denoiser)
        assert unbiased(last, float(law.sum()))
        distances.append(float((counts(last) / rows - law / law.sum()).abs().sum()) / 2)
    assert distances[0] > distances[1] + 0.05 > distances[2]
    many = counts(last_state(256, 400, steps, tokens(256), denoiser))
    assert chi_square(many, law / law.sum()) > 1e-3


def test_weights_are_those_of_the_model_at_its_temperature():
    automaton, table = automaton_of(Words([2, 3])), random_table()
    law = output_distribution(AncestralSampler(steps=2), TableDenoiser(table.logits / 0.5, MASK), BLANK) * matches(
        automaton
    )
    tokens = ConstrainedTokenSampler(TokenSampler(temperature=0.5), automaton, CPU, 2)
    assert unbiased(last_state(2, 2000, 2, tokens, table), float(law.sum()))


def two_positions(
    tokens: TokenSampler, particles: int, rows: int, second: tuple[float, ...] = (0.3, 0.3, 0.4)
) -> State:
    """Tokens A, B, C and the mask. The first position is A or B; the second must be C.

    The second position is predicted as `second`, or as (0.5, 0.4, 0.1) behind A, where truncation cuts C off.
    """
    p = torch.zeros(4**2, 2, 4)
    p[:, 0, :2] = 0.5
    p[:, 1, :3] = torch.tensor(second)
    p[::4, 1, :3] = torch.tensor([0.5, 0.4, 0.1])
    automaton = compile_constraints([Fixed({1: 2})], Vocabulary(None, 4, 3), [])
    canvas = Canvas.of(torch.full((rows, 2), 3), 3, seed=11)
    joint = ConstrainedTokenSampler(tokens, automaton, CPU, particles)
    *_, last = run_particles(AncestralSampler(), TableDenoiser(p.log(), 3), canvas, joint, particles)
    assert (last.ids[:, 1] == 2).all()
    return last


def test_particles_converge_to_the_truncated_distribution_given_the_match():
    """In the order 0, 1 the truncated model writes C only behind B; otherwise C with 0.4 and then A or B."""
    last, match = two_positions(TokenSampler(top_k=2), 32, 4000), 0.5 * 0.5 * 0.4 + 0.5 * 0.4
    assert float((last.ids[:, 0] == 0).double().mean()) == pytest.approx(0.5 * 0.4 * 0.5 / match, abs=0.025)
    assert unbiased(last, match)


def test_truncation_that_leaves_no_particle_a_path_is_lifted():
    last = two_positions(TokenSampler(top_k=1), 4, 1000, second=(0.6, 0.3, 0.1))
    assert float((last.ids[:, 0] == 0).double().mean()) == pytest.approx(0.5, abs=0.06)
    quarters = last.particle_weights.log_weight.exp() / 0.025
    assert set(quarters.round(decimals=4).tolist()) == {1.0, 2.0, 3.0, 4.0}, "particles without a path get weight 0"


def test_a_given_end_is_not_weighted():
    """The given last token is banned, but as the end of the text it is not read."""
    canvas, last = Canvas.of(torch.tensor([[MASK, MASK, 2]] * 20), MASK), []
    for banned, end in [(Banned([2]), 2), (Banned([2], [0, 1]), None)]:
        tokens = ConstrainedTokenSampler(TokenSampler(), automaton_of(banned), CPU, particles=4, end=end)
        *_, state = run_particles(AncestralSampler(), random_table(), canvas, tokens, 4)
        last.append(state)
    assert torch.equal(last[0].ids, last[1].ids)
    weights = [state.particle_weights.log_weight for state in last]
    assert weights[0].isfinite().all()
    assert torch.equal(*weights)


@pytest.mark.parametrize("steps", [2, None])
def test_the_states_are_those_of_one_particle_and_sequences_are_independent(steps):
    ids = torch.tensor([[1, 1, 1], [1, 2, 1], [1, 1, 3], [2, 3, 0]])
    for n in (5, 16):
        tokens = ConstrainedTokenSampler(TokenSampler(), automaton_of(Words([2, 3])), CPU, n)
        sampler, denoiser = AncestralSampler(steps=steps), random_table()
        *_, last = run_particles(sampler, denoiser, Canvas.of(ids, MASK, seed=7), tokens, n)
        assert torch.equal(last.ids[ids != MASK], ids[ids != MASK])
        for b in range(len(ids)):
            alone = Canvas.of(ids[b : b + 1], MASK, seed=7 + b)
            states = list(run_particles(sampler, denoiser, alone, tokens, n))
            assert torch.equal(states[-1].ids[0], last.ids[b])
            assert len(states) == states[-1].total + 1 == int(states[-1].calls[0]) + 1
            assert torch.equal(states[-1].order[0] >= 0, ids[b] == MASK)
            for before, after in itertools.pairwise(states):
                assert ((before.ids == after.ids) | (after.order == before.call)).all()


@pytest.mark.parametrize(
    ("log_weight", "parents"), [([0.0, -9.0, -9.0, -9.0], [0] * 4), ([0.0, -0.1, 0.0, 0.1], [0, 1, 2, 3])]
)
def test_only_uneven_particles_are_resampled(log_weight, parents):
    sampler, weight = AncestralSampler(), torch.tensor(log_weight, dtype=torch.float64)
    state = sampler.begin(Canvas.of(BLANK.expand(4, -1), MASK))
    state = replace(state, particle_weights=ParticleWeights(weight, torch.zeros(4)))
    resampled, rows = _resample(sampler, state, torch.tensor([0]))
    assert rows.tolist() == parents
    assert float(resampled.particle_weights.log_weight.logsumexp(0)) == pytest.approx(float(weight.logsumexp(0)))


@pytest.mark.parametrize(
    "tokens", [TokenSampler(), TokenSampler(greedy_tail=0.5), EosTokenSampler(TokenSampler(), eos=3)]
)
@pytest.mark.parametrize("steps", [2, None])
def test_a_score_does_not_change_the_tokens_of_a_single_particle(tokens, steps):
    canvas, sampler = Canvas.of(BLANK.expand(40, -1), MASK), AncestralSampler(steps=steps)
    plain = sample(sampler, random_table(), canvas, tokens)
    scored = sample(sampler, random_table(), canvas, ScoredTokenSampler(tokens, lambda ids, real: ids.sum(1)))
    assert torch.equal(plain.ids, scored.ids)
    assert torch.equal(plain.confidence, scored.confidence)


def test_scores_are_of_finished_canvases_with_the_given_tokens():
    seen, ids = [], torch.tensor([[1, 1, 1], [1, 2, 1], [2, 3, 0]])
    options = SamplingOptions(particles=4, score=lambda ids, real: seen.append(ids) or ids.sum(dim=1))
    *_, last = configure_sampler(AncestralSampler(), options, CPU)(random_table(), Canvas.of(ids, MASK, seed=7))
    given = ids.repeat_interleave(4, dim=0)
    for canvas in seen:
        assert (canvas != MASK).all()
        assert torch.equal(canvas[given != MASK], given[given != MASK])
    assert torch.equal(last.ids[ids != MASK], ids[ids != MASK])


def letters(text: str) -> float:
    return float(sum(letter.isalpha() for letter in text))


def test_the_best_of_several_texts_has_the_highest_score(mdlm):
    options = {"length": 16, "steps": 4, "seed": 5}
    plain = mdlm.sample(3, **options)
    best = mdlm.sample(3, best_of=6, score=letters, **options)
    worst = mdlm.sample(3, best_of=6, score=lambda text: -letters(text), **options)
    assert [one.seed for one in best] == [5, 6, 7]
    for low, own, high in zip(worst, plain, best, strict=True):
        assert letters(low.text) <= letters(own.text) <= letters(high.text), "the plain text is among them"
    assert sum(letters(one.text) for one in best) > sum(letters(one.text) for one in plain)
    assert mdlm.sample(1, best_of=6, score=letters, **(options | {"seed": 6}))[0].ids == best[1].ids
