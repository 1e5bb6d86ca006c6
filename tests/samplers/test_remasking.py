"""ReMDM and the corrector: their chains against the process that they reverse, and their states."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from unmask.errors import UnmaskError
from unmask.laws.chains import output_distribution, remasking_states
from unmask.laws.tables import ConstantDenoiser, DataDistribution, RecordingDenoiser, all_canvases, random_table
from unmask.registry import build
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, State, run_sampler
from unmask.samplers.remasking import CorrectorSampler, ReMDMConfSampler, ReMDMSampler, remask_shares

V, L, MASK = 4, 3, 1
BLANK = torch.full((L,), MASK)
STRATEGIES = ("cap", "rescale", "cap_conf", "loop")


def factorised() -> torch.Tensor:
    """[V^L] a data distribution with independent positions."""
    rows = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.1, 0.0, 0.8, 0.1], [0.25, 0.0, 0.25, 0.5]], dtype=torch.float64)
    return torch.stack([rows[place, token] for place, token in enumerate(all_canvases(V, L).T)]).prod(dim=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_remasking_it_is_ancestral_sampling(strategy):
    loop = {"t_on": 0.5, "t_off": 0.5, "alpha_on": 0.5} if strategy == "loop" else {}
    for schedule in ("loglinear", "cosine") if strategy != "loop" else ("loglinear",):
        for table in (random_table(), random_table(conditioned=True)):
            sampler = ReMDMSampler(strategy=strategy, steps=4, eta=0.0, schedule=build("schedule", schedule), **loop)
            ancestral = output_distribution(AncestralSampler(steps=4, schedule=sampler.schedule), table, BLANK)
            assert torch.allclose(output_distribution(sampler, table, BLANK), ancestral, atol=1e-12)


@pytest.mark.parametrize("strategy", ["cap", "rescale", "loop"])
@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
def test_marginals_are_those_of_the_process_for_independent_positions(strategy, eta):
    """The factorised prediction is then the posterior, so z_s has the distribution of the process at every step."""
    joint = factorised()
    denoiser, canvases = DataDistribution(joint, V, L, MASK).oracle(), all_canvases(V, L)
    sampler = ReMDMSampler(strategy=strategy, steps=6, eta=eta, t_on=0.7, t_off=0.3, alpha_on=0.5)
    for rate, states in remasking_states(sampler, denoiser, BLANK):
        kept = (1 - rate) * (canvases[:, None] == canvases).double() + rate * (canvases[:, None] == MASK)
        process = torch.einsum("x,zx->z", joint, kept.prod(dim=-1))
        assert torch.allclose(states.distribution(V), process, atol=1e-12)


@pytest.mark.parametrize("fraction", [0.1, 1.0])
@pytest.mark.parametrize("steps", [1, 4, 5])
def test_corrections_keep_the_distribution_of_an_exact_denoiser(fraction, steps):
    joint = factorised()
    law = output_distribution(
        CorrectorSampler(steps=steps, fraction=fraction), DataDistribution(joint, V, L, MASK).oracle(), BLANK
    )
    assert torch.allclose(law, joint, atol=1e-12)


def test_a_loop_holds_alpha_and_remasks_only_inside():
    plan = ReMDMSampler(strategy="loop", steps=20, eta=0.02, t_on=0.55, t_off=0.05, alpha_on=0.9).plan()
    assert plan.alpha[0] == 0
    assert torch.allclose(plan.alpha[9:20], torch.tensor(0.9, dtype=torch.float64))
    assert (plan.alpha[:9].diff() > 0).all()
    assert plan.remask.tolist() == [0.0] * 9 + [0.02] * 10 + [0.0]
    assert plan.reveal[9].item() == pytest.approx(0.02 * 0.9 / 0.1)
    plan = ReMDMSampler(strategy="loop", steps=5, eta=0.02, t_on=0.7, t_off=0.3, alpha_on=0.5).plan()
    assert (plan.limit[:4] > 0.02).all()
    assert plan.remask.tolist() == [0.0, 0.0, 0.02, 0.0, 0.0], "the step from 0.4 to 0.2 leaves the loop at 0.3"


@pytest.mark.parametrize(
    "sampler",
    [
        *(ReMDMSampler(steps=30, eta=0.2, strategy=s) for s in STRATEGIES),
        ReMDMConfSampler(steps=30),
        CorrectorSampler(steps=30),
    ],
)
def test_states_stay_consistent_while_tokens_are_masked_again(sampler):
    ids = torch.full((4, 12), MASK)
    ids[1, :8], ids[2] = 3, 2
    denoiser = RecordingDenoiser(ConstantDenoiser(torch.zeros(5, dtype=torch.float64), MASK))
    states = list(run_sampler(sampler, denoiser, Canvas.of(ids, MASK)))
    assert len(denoiser.calls) == 30
    assert states[0].calls.tolist() == states[-1].calls.tolist() == [30, 30, 0, 30]
    assert (states[-1].ids != MASK).all()
    given = ids != MASK
    for state in states:
        assert torch.equal(state.ids[given], ids[given])
        assert (state.order[given] == -1).all()
        assert (state.confidence[given] == 1).all()
        assert ((state.order >= 0) == state.written).all()
        assert ((state.confidence == 0) == state.masked).all()
    rewritten = sum(int((after.masked & before.written).sum()) for before, after in itertools.pairwise(states))
    assert rewritten > 0 or isinstance(sampler, CorrectorSampler)


def test_published_remasking_by_confidence():
    """sigma_l = softmax(-psi)_l min(1, (1 - alpha_s) / alpha_t); masks are unmasked with (alpha_s - alpha_t) / (1 -
    alpha_t)."""
    plan = ReMDMConfSampler(steps=4).plan()
    assert plan.limit.tolist() == pytest.approx([1, 1, 0.5, 0])
    assert plan.reveal.tolist() == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    state = State.start(Canvas.of(torch.tensor([[MASK] * 4 + [2]]), MASK), torch.tensor([4]), 4, plan)
    state = replace(state, ids=torch.tensor([[0, 2, 3, MASK, 2]]), confidence=torch.tensor([[0.9, 0.4, 0.1, 0, 1]]))
    weights = [math.exp(-0.9), math.exp(-0.4), math.exp(-0.1)]
    assert remask_shares(state)[0].tolist() == pytest.approx([*(w / sum(weights) for w in weights), 0, 0])


def test_earlier_configs_keep_their_meaning():
    old = build("sampler", {"name": "remdm", "strategy": "conf", "steps": 8, "eta": 0.1})
    assert old == ReMDMSampler(strategy="cap_conf", steps=8, eta=0.1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "remdm", "eta": 1.5}, "eta must be .* got 1.5"),
        ({"name": "remdm", "strategy": "always"}, "strategy must be .* got 'always'"),
        ({"name": "remdm", "strategy": "loop", "alpha_on": 1.0}, "alpha_on must be .* got 1.0"),
        ({"name": "remdm", "strategy": "loop", "t_on": 0.2, "t_off": 0.4}, "t_off must not be above t_on=0.2, got 0.4"),
        ({"name": "corrector", "fraction": 0.0}, "fraction must be .* got 0.0"),
    ],
)
def test_options_out_of_range_are_refused(spec, message):
    with pytest.raises(UnmaskError, match=message):
        build("sampler", spec)
