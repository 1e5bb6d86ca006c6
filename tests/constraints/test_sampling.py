"""The exact draw under a constraint, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.chains import completions, conditioned_chain, counts
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
    sampling,
)
from unmask.constraints.members import can_accept
from unmask.constraints.sampling import ConstrainedTokenSampler, GroupReduce, log_total
from unmask.errors import UnmaskError
from unmask.laws import exact
from unmask.laws.base import chi_square
from unmask.laws.chains import BLANK, MASK, PROMPTED, L, V
from unmask.laws.tables import ConstantDenoiser, all_canvases, canvas_index, random_table
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.token_sampling import TokenSampler

CPU = torch.device("cpu")
CONSTRAINTS: dict[str, list[Constraint]] = {
    "word": [Words([2, 3])],
    "words": [Words([3], [0, 2])],
    "no words": [NoWords([2, 2], [3])],
    "fixed": [Fixed({0: 3})],
    "allowed": [Allowed([2, 3])],
    "any": [Allowed([0, 2, 3])],
    "banned here": [Banned([0], [0, 2])],
    "word and banned here": [Words([2]), Banned([3], [1])],
    "all": [Words([2]), NoWords([0, 0]), Allowed([0, 2], [1])],
}


def automaton_of(*constraints: Constraint) -> Automaton:
    return compile_constraints(constraints, Vocabulary(None, V, MASK), [])


def constrained(*constraints: Constraint, **options) -> ConstrainedTokenSampler:
    """A token sampler under constraints; other options are those of `TokenSampler`."""
    return ConstrainedTokenSampler(TokenSampler(**options), automaton_of(*constraints), CPU)


def matches(automaton: Automaton) -> Tensor:
    """[V^L] whether each canvas is finished and accepted."""
    return torch.tensor([MASK not in z and can_accept(automaton, z, MASK) for z in all_canvases(V, L).tolist()])


@pytest.mark.parametrize("many_arcs", [0, 4096])
@pytest.mark.parametrize("steps", [1, 2, None])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_draws_follow_the_conditioned_chain(name, steps, many_arcs, monkeypatch):
    monkeypatch.setattr(sampling, "MANY_ARCS", many_arcs)
    tokens, denoiser = constrained(*CONSTRAINTS[name]), random_table()
    for start in (BLANK, PROMPTED):
        if not can_accept(tokens.automaton, start.tolist(), MASK):
            continue
        expected = conditioned_chain(steps, denoiser, start, matches(tokens.automaton))
        assert float(expected.sum()) == pytest.approx(1)
        seen = counts(sample(AncestralSampler(steps=steps), denoiser, Canvas.of(start.expand(4000, -1), MASK), tokens))
        assert seen[expected == 0].sum() == 0
        assert chi_square(seen, expected) > 1e-4


def test_confidence_is_the_unmodified_probability():
    tokens, canvas = constrained(Words([2, 3]), temperature=0.5), Canvas.of(BLANK[None], MASK, seed=3)
    for before, after in itertools.pairwise(run_sampler(AncestralSampler(), random_table(), canvas, tokens)):
        (position,) = (after.ids != before.ids)[0].nonzero()[:, 0].tolist()
        p = exact.log_conditionals(random_table(), before.ids, 1.0)[0, position].exp()
        assert float(after.confidence[0, position]) == pytest.approx(float(p[after.ids[0, position]]), rel=1e-5)


@pytest.mark.parametrize("constraint", [NoWords([2, 2], [3, 0]), Words([2])])
@pytest.mark.parametrize("many_arcs", [0, 4096])
def test_greedy_gives_the_most_likely_canvas_that_matches(constraint, many_arcs, monkeypatch):
    """Among many tables there are some in which the most likely class of tokens is not on the most likely path."""
    monkeypatch.setattr(sampling, "MANY_ARCS", many_arcs)
    tokens = constrained(constraint, temperature=0)
    for seed in range(60):
        best = completions(random_table(seed), BLANK, matches(tokens.automaton)).argmax()
        state = sample(AncestralSampler(steps=1), random_table(seed), Canvas.of(BLANK[None], MASK), tokens)
        assert int(canvas_index(state.ids[0], V)) == int(best)


ROW = torch.tensor([0.9, 0.05, 0.04, 0.01]).log()


def pairs(constraint: Constraint, rows: int = 3000, **options) -> dict[tuple[int, ...], float]:
    """How often two positions with the prediction ROW become each pair of tokens; the mask is token 1."""
    canvas = Canvas.of(torch.full((rows, 2), MASK), MASK)
    state = sample(AncestralSampler(steps=1), ConstantDenoiser(ROW, MASK), canvas, constrained(constraint, **options))
    seen = [tuple(row) for row in state.ids.tolist()]
    return {pair: seen.count(pair) / rows for pair in set(seen)}


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 0.5}, {"temperature": 0.5, "top_k": 1}, {"temperature": 2}]
)
def test_truncation_that_leaves_no_path_is_lifted_and_temperature_stays(options):
    seen = pairs(Words([3]), **options)
    a, b, c = (p ** (1 / options.get("temperature", 1)) for p in (0.9, 0.04, 0.01))
    weights = {(0, 3): a, (3, 0): a, (2, 3): b, (3, 2): b, (3, 3): c}
    assert seen.keys() <= weights.keys()
    for pair, weight in weights.items():
        assert seen.get(pair, 0.0) == pytest.approx(weight / sum(weights.values()), abs=0.04), pair


def test_truncation_that_leaves_a_path_is_kept():
    seen = pairs(Words([2]), top_k=2)
    assert set(seen) == {(0, 2), (2, 0), (2, 2)}
    assert seen[2, 2] == pytest.approx(0.04**2 / (0.04**2 + 2 * 0.04 * 0.9), abs=0.015)


def test_truncation_is_lifted_only_for_sequences_that_need_it():
    ids = torch.tensor([[3, MASK, MASK], [MASK, 0, MASK]]).repeat(200, 1)
    tokens = constrained(Words([3], [0]), top_k=1)
    state = sample(AncestralSampler(steps=1), ConstantDenoiser(ROW, MASK), Canvas.of(ids, MASK), tokens)
    assert state.ids[::2].unique(dim=0).tolist() == [[3, 0, 0]]
    assert len(state.ids[1::2].unique(dim=0)) > 2


@pytest.mark.parametrize("many_arcs", [0, 4096])
def test_paths_of_tiny_probability_are_found(many_arcs, monkeypatch):
    """A forced path of probability e^-2400, which underflows in float64."""
    monkeypatch.setattr(sampling, "MANY_ARCS", many_arcs)
    denoiser, canvas = ConstantDenoiser(torch.tensor([0.0, 0.0, -40.0, -40.0]), MASK), torch.full((2, 60), MASK)
    tokens = constrained(Allowed([2, 3]), Words([3]))
    state = sample(AncestralSampler(steps=1), denoiser, Canvas.of(canvas, MASK), tokens)
    assert set(state.ids.flatten().tolist()) == {2, 3}


class FromTable(Constraint):
    """An automaton over the tokens 0, 2 and 3 by its table."""

    def __init__(self, transitions: list[list[int]], accepting: list[bool]) -> None:
        self.transitions, self.accepting = np.array(transitions), np.array(accepting)

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return Automaton(np.array([0, -1, 1, 2]), self.transitions, self.accepting, np.ones((0, 3), dtype=bool))


def test_a_wide_range_of_probabilities_is_summed_in_logs(monkeypatch):
    """The given token leads to the one state that is e^-900 less likely to be accepted."""
    monkeypatch.setattr(sampling, "MANY_ARCS", 0)
    tokens = constrained(FromTable([[1, -1, 2], [1, 1, 1], [-1, 2, -1]], [False, True, True]))
    ids = torch.tensor([[3, MASK, MASK, MASK], [0, MASK, MASK, MASK]])
    denoiser = ConstantDenoiser(torch.tensor([0.0, 0.0, -300.0, 0.0]), MASK)
    state = sample(AncestralSampler(steps=1), denoiser, Canvas.of(ids, MASK), tokens)
    assert state.ids[0].tolist() == [3, 2, 2, 2]


@pytest.mark.parametrize(
    ("denoiser", "constraint", "start"),
    [
        (ConstantDenoiser(torch.tensor([0.0, 0.0, -torch.inf, 0.0]), MASK), Words([2]), BLANK),
        (random_table(), Banned([2], [1]), PROMPTED),
    ],
)
def test_a_network_that_excludes_every_match_is_reported(denoiser, constraint, start):
    with pytest.raises(UnmaskError, match="probability 0; relax it"):
        sample(AncestralSampler(), denoiser, Canvas.of(start[None], MASK), constrained(constraint))


def test_a_written_end_is_read_by_the_automaton_like_any_token():
    canvas, automaton = Canvas.of(BLANK.expand(64, -1), MASK), automaton_of(Words([2]))
    samplers = (ConstrainedTokenSampler(TokenSampler(), automaton, CPU, end=end) for end in (None, 2))
    one, other = (sample(AncestralSampler(), random_table(), canvas, tokens).ids for tokens in samplers)
    assert torch.equal(one, other)
    assert (one[:, -1] == 2).any()


def test_groups_of_any_size_are_reduced():
    x = torch.randn(2, 700, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    groups = [list(range(700)), [5], [], list(range(3, 40)), [5, 699]]
    group = np.array([g for g, members in enumerate(groups) for _ in members])
    member = np.array([m for members in groups for m in members])
    for greedy in (False, True):
        found = GroupReduce(group, member, len(groups), 700, CPU)(x, greedy)
        for g, members in enumerate(groups):
            expected = log_total(x[:, members], greedy) if members else x.new_full((2,), -torch.inf)
            assert torch.allclose(found[:, g], expected)
