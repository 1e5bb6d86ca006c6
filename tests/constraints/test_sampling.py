"""The exact draw under a constraint, against enumeration; and particles, against the model's law given the match."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.chains import WEIGHTS, completions, conditioned_chain, counts
from unmask.constraints import (
    Allowed,
    Automaton,
    Banned,
    Constraint,
    Fixed,
    NoWords,
    Vocabulary,
    Words,
    compile_constraints,
)
from unmask.constraints import sampling as paths
from unmask.constraints.members import can_accept
from unmask.constraints.particles import repeat_canvas, run_particles
from unmask.constraints.sampling import AutomatonPaths, ConstrainedTokenSampler, GroupReduce, logsumexp_last, max_last
from unmask.errors import UnmaskError
from unmask.laws import exact
from unmask.laws.base import chi_square
from unmask.laws.chains import BLANK, MASK, PROMPTED, L, V, output_distribution
from unmask.laws.tables import ConstantDenoiser, TableDenoiser, all_canvases, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, JointTokenSampler, ParticleWeights, Positions, State, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

CPU = torch.device("cpu")
CONSTRAINTS: dict[str, list[Constraint]] = {
    "word": [Words([2, 3])],
    "words": [Words([3], [0, 2])],
    "no words": [NoWords([2, 2], [3])],
    "fixed": [Fixed({0: 3})],
    "allowed": [Allowed([2, 3])],
    "banned here": [Banned([0], [0, 2])],
    "word and banned here": [Words([2]), Banned([3], [1])],
    "all": [Words([2]), NoWords([0, 0]), Allowed([0, 2], [1])],
}


def automaton_of(constraints: list[Constraint]) -> Automaton:
    return compile_constraints(constraints, Vocabulary(None, V, MASK), [])


def matches(automaton: Automaton) -> Tensor:
    """[V^L] the finished canvases that are accepted."""
    return torch.tensor([MASK not in z and can_accept(automaton, z, MASK) for z in all_canvases(V, L).tolist()])


@pytest.mark.parametrize("many_arcs", [0, 4096])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_filter_is_the_enumerated_chance_of_acceptance(name, many_arcs, monkeypatch):
    monkeypatch.setattr(paths, "MANY_ARCS", many_arcs)
    automaton, denoiser = automaton_of(CONSTRAINTS[name]), random_table(3)
    rule = ConstrainedTokenSampler(TokenSampler(), automaton, CPU)
    for start in (BLANK, PROMPTED):
        state = AncestralSampler().begin(Canvas.of(start[None], MASK))
        at = Positions(*state.masked.nonzero(as_tuple=True))
        rows = denoiser.hidden(state.ids)[at]
        log_m = rule._masses(denoiser.head, rows, state, at, torch.zeros(1, dtype=torch.bool))
        said = rule.paths.filter(log_m, state.canvas.attention_mask)[0, 0, 0].exp()
        p = exact.log_conditionals(denoiser, start[None], 1.0)[0].exp()
        p = torch.where((start == MASK)[:, None], p, torch.nn.functional.one_hot(start, V).double())
        true = sum(
            float(p[0, x[0]] * p[1, x[1]] * p[2, x[2]])
            for x, good in zip(all_canvases(V, L).tolist(), matches(automaton), strict=True)
            if good
        )
        assert float(said) == pytest.approx(true, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("steps", [1, 2, None])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_draws_follow_the_conditioned_chain(name, steps):
    automaton, denoiser = automaton_of(CONSTRAINTS[name]), random_table()
    for start in (BLANK, PROMPTED):
        if not can_accept(automaton, start.tolist(), MASK):
            continue
        should = conditioned_chain(steps, denoiser, start, matches(automaton))
        assert float(should.sum()) == pytest.approx(1)
        canvas = Canvas.of(start.expand(4000, -1), MASK)
        seen = counts(
            sample(
                AncestralSampler(steps=steps), denoiser, canvas, ConstrainedTokenSampler(TokenSampler(), automaton, CPU)
            )
        )
        assert seen[should == 0].sum() == 0
        assert chi_square(seen, should) > 1e-4


def test_an_automaton_that_takes_all_changes_nothing_of_the_law():
    everything = automaton_of([Allowed([0, 2, 3])])
    canvas = Canvas.of(BLANK.expand(4000, -1), MASK)
    seen = counts(
        sample(
            AncestralSampler(steps=2), random_table(), canvas, ConstrainedTokenSampler(TokenSampler(), everything, CPU)
        )
    )
    assert chi_square(seen, output_distribution(AncestralSampler(steps=2), random_table(), BLANK)) > 1e-4


def test_confidence_is_what_the_untouched_prediction_said():
    rule = ConstrainedTokenSampler(TokenSampler(temperature=0.5), automaton_of([Words([2, 3])]), CPU)
    states = list(run_sampler(AncestralSampler(), random_table(), Canvas.of(BLANK[None], MASK, seed=3), rule))
    for before, after in itertools.pairwise(states):
        (position,) = (after.ids != before.ids)[0].nonzero()[:, 0].tolist()
        p = exact.log_conditionals(random_table(), before.ids, 1.0)[0, position].exp()
        assert float(after.confidence[0, position]) == pytest.approx(float(p[after.ids[0, position]]), rel=1e-5)


def test_greedy_is_the_likeliest_canvas_that_matches():
    automaton = automaton_of([Words([2, 3])])
    for seed in range(6):
        denoiser = random_table(seed)
        best = completions(denoiser, BLANK, matches(automaton)).argmax()
        rule = ConstrainedTokenSampler(TokenSampler(temperature=0), automaton, CPU)
        state = sample(AncestralSampler(steps=1), denoiser, Canvas.of(BLANK[None], MASK), rule)
        assert int((state.ids[0] * WEIGHTS).sum()) == int(best)


ROW = torch.tensor([0.9, 0.05, 0.04, 0.01]).log()


def written(rule: TokenSampler, constraints: list[Constraint], n: int = 3000) -> list[tuple[int, ...]]:
    """What two positions with the same prediction become; the mask is token 1."""
    joint = ConstrainedTokenSampler(rule, automaton_of(constraints), CPU)
    canvas = Canvas.of(torch.full((n, 2), MASK), MASK)
    state = sample(AncestralSampler(steps=1), ConstantDenoiser(ROW, MASK), canvas, joint)
    return [tuple(row) for row in state.ids.tolist()]


@pytest.mark.parametrize("rule", [TokenSampler(top_k=1), TokenSampler(top_p=0.5)])
def test_truncation_is_lifted_where_it_leaves_no_path(rule):
    seen = written(rule, [Words([3])])
    shares = [seen.count(pair) / len(seen) for pair in ((0, 3), (3, 0), (2, 3), (3, 2), (3, 3))]
    total = 2 * 0.01 * (0.9 + 0.04) + 0.01**2
    assert sum(shares) == pytest.approx(1)
    assert shares[0] == pytest.approx(0.009 / total, abs=0.04)
    assert shares[2] == pytest.approx(0.0004 / total, abs=0.015)
    assert shares[2] > 0


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_lifting_a_truncation_leaves_the_temperature(temperature):
    seen = written(TokenSampler(temperature=temperature, top_k=1), [Words([3])])
    a, b, c = (p ** (1 / temperature) for p in (0.9, 0.04, 0.01))
    shares = {(0, 3): a, (3, 0): a, (2, 3): b, (3, 2): b, (3, 3): c}
    for pair, share in shares.items():
        assert seen.count(pair) / len(seen) == pytest.approx(share / sum(shares.values()), abs=0.04), pair


def test_truncation_stays_where_it_leaves_a_path():
    seen = written(TokenSampler(top_k=2), [Words([2])])
    assert set(seen) == {(0, 2), (2, 0), (2, 2)}
    assert seen.count((2, 2)) / len(seen) == pytest.approx(0.04**2 / (0.04**2 + 2 * 0.04 * 0.9), abs=0.015)


def test_only_the_sequences_that_need_it_have_their_truncation_lifted():
    joint = ConstrainedTokenSampler(TokenSampler(top_k=1), automaton_of([Words([3], [0])]), CPU)
    ids = torch.tensor([[3, MASK, MASK], [MASK, 0, MASK]]).repeat(200, 1)
    state = sample(AncestralSampler(steps=1), ConstantDenoiser(ROW, MASK), Canvas.of(ids, MASK), joint)
    assert state.ids[::2].unique(dim=0).tolist() == [[3, 0, 0]]
    assert len(state.ids[1::2].unique(dim=0)) > 2


def test_temperature_counts_before_the_constraint():
    seen = written(TokenSampler(temperature=0.5), [Words([2])])
    a, b = 0.9**2, 0.04**2
    assert seen.count((2, 2)) / len(seen) == pytest.approx(b / (2 * a + b + 2 * 0.01**2), abs=0.01)


@pytest.mark.parametrize("many_arcs", [0, 4096])
def test_paths_of_tiny_chance_are_found(many_arcs, monkeypatch):
    """A forced path of probability e^-2400 is drawn all the same, where plain float64 would be 0."""
    monkeypatch.setattr(paths, "MANY_ARCS", many_arcs)
    row = torch.tensor([0.0, 0.0, -40.0, -40.0])
    automaton = automaton_of([Allowed([2, 3]), Words([3])])
    state = sample(
        AncestralSampler(steps=1),
        ConstantDenoiser(row, MASK),
        Canvas.of(torch.full((2, 60), MASK), MASK),
        ConstrainedTokenSampler(TokenSampler(), automaton, CPU),
    )
    assert set(state.ids.flatten().tolist()) == {2, 3}


def test_chances_that_no_float_holds_are_summed_as_logarithms(monkeypatch):
    """Of two states one is e^-900 less likely to be accepted; it is the only one that the given token leads to."""
    row = torch.tensor([0.0, 0.0, -300.0, 0.0])
    automaton = automaton_of([Regular([[1, -1, 2], [1, 1, 1], [-1, 2, -1]], [False, True, True])])
    monkeypatch.setattr(paths, "MANY_ARCS", 0)
    ids = torch.tensor([[3, MASK, MASK, MASK], [0, MASK, MASK, MASK]])
    state = sample(
        AncestralSampler(steps=1),
        ConstantDenoiser(row, MASK),
        Canvas.of(ids, MASK),
        ConstrainedTokenSampler(TokenSampler(), automaton, CPU),
    )
    assert state.ids[0].tolist() == [3, 2, 2, 2]


class Regular(Constraint):
    """An automaton over the tokens 0, 2 and 3 by its table."""

    def __init__(self, move: list[list[int]], accepts: list[bool]) -> None:
        self.move, self.accepts = np.array(move), np.array(accepts)

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return Automaton(np.array([0, -1, 1, 2]), self.move, self.accepts, np.ones((0, 3), dtype=bool))


def test_a_network_that_excludes_every_match_is_named():
    row = torch.tensor([0.0, 0.0, -torch.inf, 0.0])
    canvas, rule = (
        Canvas.of(torch.full((1, 2), MASK), MASK),
        ConstrainedTokenSampler(TokenSampler(), automaton_of([Words([2])]), CPU),
    )
    with pytest.raises(UnmaskError, match="no chance"):
        sample(AncestralSampler(), ConstantDenoiser(row, MASK), canvas, rule)


def test_given_tokens_that_break_a_constraint_leave_no_chance():
    rule = ConstrainedTokenSampler(TokenSampler(), automaton_of([Banned([2], [1])]), CPU)
    with pytest.raises(UnmaskError, match="no chance"):
        sample(AncestralSampler(), random_table(), Canvas.of(PROMPTED[None], MASK), rule)


def test_groups_reduce_any_number_of_members():
    x = torch.randn(2, 700, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sets = [list(range(700)), [5], [], list(range(3, 40)), [5, 699]]
    owner = torch.tensor([g for g, members in enumerate(sets) for _ in members]).numpy()
    member = torch.tensor([m for members in sets for m in members]).numpy()
    for reduce in (logsumexp_last, max_last):
        found = GroupReduce(owner, member, len(sets), 700, CPU)(x, reduce)
        for g, members in enumerate(sets):
            true = reduce(x[:, members]) if members else torch.full((2,), -torch.inf, dtype=torch.float64)
            assert torch.allclose(found[:, g], true)


def test_arcs_lead_where_the_automaton_does():
    automaton = automaton_of(CONSTRAINTS["all"])
    arcs_of = AutomatonPaths(automaton, CPU)
    for state in range(automaton.states):
        for kind in range(automaton.classes):
            arcs = [
                int(end)
                for set_, end in zip(arcs_of._labels[state], arcs_of._ends[state], strict=True)
                if int(set_) < arcs_of.labels and bool(arcs_of.contains[set_, kind])
            ]
            assert arcs == [end for end in [int(automaton.transitions[state, kind])] if end >= 0]


def together(
    n: int, rows: int, steps: int | None, rule: JointTokenSampler, denoiser: TableDenoiser, start: Tensor = BLANK
) -> State:
    canvas = Canvas.of(start.expand(rows, -1), MASK, seed=500)
    *_, last = run_particles(AncestralSampler(steps=steps), denoiser, canvas, rule, n)
    return last


@pytest.mark.parametrize("steps", [2, None])
def test_particles_converge_to_the_models_law_given_the_match(steps):
    automaton, denoiser = automaton_of([Words([2, 3])]), random_table()
    law = output_distribution(AncestralSampler(steps=steps), denoiser, BLANK) * matches(automaton)
    chance = float(law.sum())
    distances = []
    for n, rows in ((1, 2000), (8, 1500), (64, 600)):
        last = together(n, rows, steps, ConstrainedTokenSampler(TokenSampler(), automaton, CPU, n), denoiser)
        assert last.particle_weights is not None
        estimate = last.particle_weights.log_weight.exp()
        error = float(estimate.std()) / rows**0.5
        assert abs(float(estimate.mean()) - chance) < 4 * error, "the estimate of the chance of a match is unbiased"
        distances.append(float((counts(last) / rows - law / chance).abs().sum()) / 2)
    assert distances[0] > distances[1] + 0.05 > distances[2] + 0.1
    many = counts(together(256, 300, steps, ConstrainedTokenSampler(TokenSampler(), automaton, CPU, 256), denoiser))
    assert chi_square(many, law / chance) > 1e-3


def test_the_chance_of_a_match_is_that_under_the_temperature():
    automaton, table = automaton_of([Words([2, 3])]), random_table()
    sharper = TableDenoiser(table.logits / 0.5, MASK)
    chance = float((output_distribution(AncestralSampler(steps=2), sharper, BLANK) * matches(automaton)).sum())
    last = together(2, 2000, 2, ConstrainedTokenSampler(TokenSampler(temperature=0.5), automaton, CPU, 2), table)
    estimate = last.particle_weights.log_weight.exp()
    assert abs(float(estimate.mean()) - chance) < 4 * float(estimate.std()) / 2000**0.5


def two_places(rule: TokenSampler, particles: int, rows: int, second: tuple[float, ...] = (0.3, 0.3, 0.4)) -> State:
    """Tokens A, B, C and the mask; the second place must be C, which is rare, and cut off, where the first is A.

    The first is A or B. `second` is the prediction of the second place, (0.5, 0.4, 0.1) behind A.
    """
    p = torch.zeros(4**2, 2, 4)
    p[:, 0, :2] = 0.5
    p[:, 1, :3] = torch.tensor(second)
    p[::4, 1, :3] = torch.tensor([0.5, 0.4, 0.1])
    automaton = compile_constraints([Fixed({1: 2})], Vocabulary(None, 4, 3), [])
    canvas = Canvas.of(torch.full((rows, 2), 3), 3, seed=11)
    joint = ConstrainedTokenSampler(rule, automaton, CPU, particles)
    *_, last = run_particles(AncestralSampler(), TableDenoiser(p.log(), 3), canvas, joint, particles)
    return last


def test_particles_converge_to_the_truncated_models_law_given_the_match():
    """In the order 0, 1 the truncated model writes C behind B alone, else it writes C with 0.4 and then A or B."""
    last = two_places(TokenSampler(top_k=2), 32, 4000)
    chance = 0.5 * 0.5 * 0.4 + 0.5 * 0.4
    assert (last.ids[:, 1] == 2).all()
    assert float((last.ids[:, 0] == 0).double().mean()) == pytest.approx(0.5 * 0.4 * 0.5 / chance, abs=0.025)
    estimate = last.particle_weights.log_weight.exp()
    assert abs(float(estimate.mean()) - chance) < 4 * float(estimate.std()) / 4000**0.5


def test_truncation_is_lifted_where_it_leaves_no_particle_a_path():
    last = two_places(TokenSampler(top_k=1), 4, 1000, second=(0.6, 0.3, 0.1))
    assert (last.ids[:, 1] == 2).all()
    assert float((last.ids[:, 0] == 0).double().mean()) == pytest.approx(0.5, abs=0.06)
    quarters = last.particle_weights.log_weight.exp() / 0.025
    assert set(quarters.round(decimals=4).tolist()) == {1.0, 2.0, 3.0, 4.0}, "all are lifted together, then some die"


def test_particles_die_where_others_that_weigh_something_have_a_path():
    rule = ConstrainedTokenSampler(TokenSampler(top_k=1), automaton_of([Words([2])]), CPU, 2)
    state = AncestralSampler().begin(Canvas.of(BLANK.expand(8, -1), MASK))
    weight = torch.tensor([0.0, 0.0, 0.0, 0.0, -torch.inf, 0.0, 0.0, 0.0])
    lost = torch.tensor([True, False, True, True, False, True, False, False])
    dead = rule._dead(replace(state, particle_weights=ParticleWeights(weight, torch.zeros(8))), lost)
    assert dead.tolist() == [True, False, False, False, False, False, False, False]


def test_an_end_that_a_constraint_does_not_speak_of_weighs_nothing():
    """The given token at the end is banned; particles are weighed as where the ban holds for the others alone."""
    canvas, last = Canvas.of(torch.tensor([[MASK, MASK, 2]] * 20), MASK), []
    for banned, end in [(Banned([2]), 2), (Banned([2], [0, 1]), None)]:
        rule = ConstrainedTokenSampler(TokenSampler(), automaton_of([banned]), CPU, particles=4, end=end)
        *_, state = run_particles(AncestralSampler(), random_table(), canvas, rule, 4)
        last.append(state)
    assert torch.equal(last[0].ids, last[1].ids)
    assert last[0].particle_weights.log_weight.isfinite().all()
    assert torch.equal(last[0].particle_weights.log_weight, last[1].particle_weights.log_weight)


def test_an_end_that_is_written_is_the_constraints_as_any_token():
    canvas = Canvas.of(BLANK.expand(64, -1), MASK)
    automaton = automaton_of([Words([2])])
    one, other = (
        sample(
            AncestralSampler(), random_table(), canvas, ConstrainedTokenSampler(TokenSampler(), automaton, CPU, end=end)
        ).ids
        for end in (None, 2)
    )
    assert torch.equal(one, other)
    assert (one[:, -1] == 2).any()


def test_the_walk_that_is_shown_is_one_walk():
    rule = ConstrainedTokenSampler(TokenSampler(), automaton_of([Words([2, 3])]), CPU, 16)
    canvas = Canvas.of(BLANK.expand(40, -1), MASK)
    states = list(run_particles(AncestralSampler(), random_table(), canvas, rule, 16))
    for before, after in itertools.pairwise(states):
        assert ((before.ids == after.ids) | (after.order == before.call)).all()
        assert ((after.ids != MASK).sum(dim=1) == after.call).all()


def test_particles_respect_given_tokens_and_company():
    automaton, denoiser = automaton_of([Words([2, 3])]), random_table()
    rule = ConstrainedTokenSampler(TokenSampler(), automaton, CPU, 5)
    ids = torch.tensor([[1, 1, 1], [1, 2, 1], [1, 1, 3], [2, 3, 0]])
    for steps in (2, None):
        *_, last = run_particles(AncestralSampler(steps=steps), denoiser, Canvas.of(ids, MASK, seed=7), rule, 5)
        for b in range(len(ids)):
            alone = Canvas.of(ids[b : b + 1], MASK, seed=7 + b)
            states = list(run_particles(AncestralSampler(steps=steps), denoiser, alone, rule, 5))
            assert torch.equal(states[-1].ids[0], last.ids[b])
            assert len(states) == states[-1].total + 1 == int(states[-1].calls[0]) + 1
            assert torch.equal(states[-1].order[0] >= 0, ids[b] == MASK)
            for before, after in itertools.pairwise(states):
                assert ((before.ids == after.ids) | (after.order == before.call)).all(), "one walk is shown, unbroken"
        assert torch.equal(last.ids[ids != MASK], ids[ids != MASK])


def test_one_particle_is_the_walk_without():
    rule = ConstrainedTokenSampler(TokenSampler(), automaton_of([Words([2, 3])]), CPU, 1)
    canvas = Canvas.of(BLANK.expand(20, -1), MASK)
    *_, last = run_particles(AncestralSampler(), random_table(), canvas, rule, 1)
    assert torch.equal(last.ids, sample(AncestralSampler(), random_table(), canvas, rule).ids)


def test_particles_have_seeds_of_their_own():
    seeds = repeat_canvas(Canvas.of(BLANK.expand(50, -1), MASK), 40).seeds
    assert len(seeds.unique()) == 2000
    assert seeds[::40].tolist() == list(range(50))
