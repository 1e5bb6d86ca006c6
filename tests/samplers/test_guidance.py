"""Guidance by the prompt and by any score, against the laws that they promise."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.conftest import LENGTH
from unmask.constraints.particles import ScoredTokenSampler, run_particles
from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import RecordingDenoiser, TableDenoiser, all_canvases, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.ending import EosTokenSampler
from unmask.samplers.guidance import GuidedDenoiser
from unmask.samplers.options import SamplingOptions, configure_sampler
from unmask.samplers.token_sampling import TokenSampler

V, L, MASK = 4, 3, 1
CPU = torch.device("cpu")
WEIGHTS = V ** torch.arange(L)
PROMPTED = torch.tensor([2, MASK, MASK])


def counts(ids):
    return torch.bincount((ids * WEIGHTS).sum(dim=1), minlength=V**L)


def guided_table(table: TableDenoiser, weight: float) -> TableDenoiser:
    """The table that holds (1 + w) log p(with the first token) - w log p(without it)."""
    log_p = table.head(table.hidden(all_canvases(V, L))).log_softmax(-1)
    without = all_canvases(V, L)
    without[:, 0] = MASK
    log_q = table.head(table.hidden(without)).log_softmax(-1)
    logits = (1 + weight) * log_p - weight * log_q
    return TableDenoiser(torch.where(log_p.isneginf(), torch.zeros_like(logits), logits), MASK)


@pytest.mark.parametrize("steps", [1, 2, None])
def test_guided_walks_follow_the_guided_chain(steps):
    table, condition = random_table(), torch.tensor([True, False, False])
    canvas = Canvas.of(PROMPTED.expand(8000, -1), MASK, seed=20)
    ids = sample(AncestralSampler(steps=steps), GuidedDenoiser(table, condition.expand(8000, -1), 1.5), canvas).ids
    should = output_distribution(AncestralSampler(steps=steps), guided_table(table, 1.5), PROMPTED)
    assert chi_square(counts(ids), should) > 1e-4
    plain = output_distribution(AncestralSampler(steps=steps), table, PROMPTED)
    assert chi_square(counts(ids), plain) < 1e-6, "the test can tell them apart"


def test_guidance_is_one_call_of_two_rows_a_sequence():
    denoiser = RecordingDenoiser(random_table())
    canvas = Canvas.of(PROMPTED.expand(5, -1), MASK)
    sample(AncestralSampler(), GuidedDenoiser(denoiser, (canvas.ids != MASK), 1.0), canvas)
    assert [len(ids) for ids in denoiser.calls] == [10, 10]
    for ids in denoiser.calls:
        assert ids[:5, 0].tolist() == [2] * 5
        assert ids[5:, 0].tolist() == [MASK] * 5
        assert torch.equal(ids[:5, 1:], ids[5:, 1:])


def test_weight_zero_is_exactly_the_plain_sampler(mdlm):
    canvas = Canvas.of(PROMPTED.expand(50, -1), MASK)
    through = sample(AncestralSampler(), GuidedDenoiser(random_table(), canvas.ids != MASK, 0.0), canvas)
    plain = sample(AncestralSampler(), random_table(), canvas)
    assert torch.equal(through.ids, plain.ids)
    assert torch.equal(through.confidence, plain.confidence)
    options = {"prompt": "def f", "length": 20, "steps": 5, "seed": 3}
    assert mdlm.generate(2, guidance=0.0, **options) == mdlm.generate(2, **options)
    assert mdlm.sample(1, guidance=2.0, **options)[0].confidence != mdlm.sample(1, **options)[0].confidence


def test_guided_rows_of_any_prompt_do_not_depend_on_their_neighbours(mdlm):
    prompts = ["a", "def f(", "x" * 19, ""]
    options = {"length": 20, "steps": 5, "guidance": 1.0}
    with pytest.raises(Exception, match="needs a prompt"):
        mdlm.sample(1, prompts=prompts, **options)
    together = mdlm.sample(1, prompts=prompts[:3], seed=7, **options)
    for i, one in enumerate(together):
        alone = mdlm.sample(1, prompt=prompts[i], seed=7 + i, **options)[0]
        assert (alone.ids, alone.calls) == (one.ids, one.calls)
        assert one.text.startswith(prompts[i])


def test_guidance_holds_in_the_windows_that_see_the_prompt(mdlm, monkeypatch):
    rows, run = [], mdlm.denoiser._run
    monkeypatch.setattr(mdlm.denoiser, "_run", lambda ids, *a, **k: rows.append(len(ids)) or run(ids, *a, **k))
    (one,) = mdlm.sample(1, prompt="def", length=2 * LENGTH, steps=3, guidance=1.0)
    assert rows == sorted(rows, reverse=True)
    assert set(rows) == {1, 2}
    assert len(rows) == one.calls


def test_guided_particles_do_not_depend_on_their_neighbours(mdlm):
    prompts, options = ["a", "def f("], {"length": 12, "steps": 4, "guidance": 1.0, "particles": 3, "score": letters}
    together = mdlm.sample(1, prompts=prompts, seed=7, **options)
    for i, one in enumerate(together):
        assert mdlm.sample(1, prompt=prompts[i], seed=7 + i, **options)[0].ids == one.ids
        assert one.text.startswith(prompts[i])


def score_of(ids):
    """Counts token 2, and dislikes 3 at the end."""
    return (ids == 2).sum(dim=-1).double() * 1.2 - (ids[..., -1] == 3).double()


@pytest.mark.parametrize("steps", [2, None])
def test_scored_particles_converge_to_the_tilted_law(steps):
    denoiser, start = random_table(), torch.full((L,), MASK)
    law = output_distribution(AncestralSampler(steps=steps), denoiser, start) * score_of(all_canvases(V, L)).exp()
    z = float(law.sum())
    rule, distances = ScoredTokenSampler(TokenSampler(), lambda ids, real: score_of(ids)), []
    for n, rows in ((1, 2000), (8, 1500), (64, 600)):
        canvas = Canvas.of(start.expand(rows, -1), MASK, seed=500)
        *_, last = run_particles(AncestralSampler(steps=steps), denoiser, canvas, rule, n)
        weight = last.particle_weights.log_weight.exp()
        assert abs(float(weight.mean()) - z) < 4 * float(weight.std()) / rows**0.5, "the mean weight is unbiased for Z"
        distances.append(float((counts(last.ids) / rows - law / z).abs().sum()) / 2)
    assert distances[0] > distances[1] + 0.05 > distances[2]
    canvas = Canvas.of(start.expand(400, -1), MASK, seed=900)
    *_, last = run_particles(AncestralSampler(steps=steps), denoiser, canvas, rule, 256)
    assert chi_square(counts(last.ids), law / z) > 1e-3


@pytest.mark.parametrize(
    "rule", [TokenSampler(), TokenSampler(greedy_tail=0.5), EosTokenSampler(TokenSampler(), eos=3)]
)
def test_a_single_scored_walk_is_the_plain_one(rule):
    canvas = Canvas.of(torch.full((40, L), MASK), MASK)
    for steps in (2, None):
        plain = sample(AncestralSampler(steps=steps), random_table(), canvas, rule)
        scored = sample(
            AncestralSampler(steps=steps),
            random_table(),
            canvas,
            ScoredTokenSampler(rule, lambda ids, real: ids.sum(1)),
        )
        assert torch.equal(plain.ids, scored.ids)
        assert torch.equal(plain.confidence, scored.confidence)


def test_scored_canvases_are_finished_and_keep_what_is_given():
    seen = []
    control = SamplingOptions(particles=4, score=lambda ids, real: seen.append(ids) or ids.sum(dim=1))
    ids = torch.tensor([[1, 1, 1], [1, 2, 1], [2, 3, 0]])
    states = list(configure_sampler(AncestralSampler(), control, CPU)(random_table(), Canvas.of(ids, MASK, seed=7)))
    assert all((canvas != MASK).all() for canvas in seen)
    assert torch.equal(states[-1].ids[ids != MASK], ids[ids != MASK])
    for before, after in itertools.pairwise(states):
        assert ((before.ids == after.ids) | (after.order == before.call)).all(), "one walk is shown, unbroken"


def letters(text: str) -> float:
    return float(sum(letter.isalpha() for letter in text))


def test_the_best_of_several_has_the_highest_score(mdlm):
    options = {"length": 16, "steps": 4, "seed": 5}
    plain = mdlm.sample(3, **options)
    best = mdlm.sample(3, best_of=6, score=letters, **options)
    assert [one.seed for one in best] == [5, 6, 7]
    for one, own in zip(best, plain, strict=True):
        assert letters(one.text) >= letters(own.text), "the sequence's own text is among them"
    assert sum(letters(one.text) for one in best) > sum(letters(one.text) for one in plain)
    again = mdlm.sample(1, best_of=6, score=letters, **(options | {"seed": 6}))[0]
    assert again.ids == best[1].ids, "whatever is drawn beside it"
    worst = mdlm.sample(3, best_of=6, score=lambda text: -letters(text), **options)
    assert all(letters(a.text) <= letters(b.text) for a, b in zip(worst, best, strict=True))


def test_particles_weighed_by_a_score_hold_to_it(mdlm):
    options = {"length": 16, "steps": 8, "seed": 5}
    plain = sum(map(letters, mdlm.generate(6, **options)))
    weighed = sum(map(letters, mdlm.generate(6, particles=8, score=lambda text: 2 * letters(text), **options)))
    assert weighed > plain + 6
