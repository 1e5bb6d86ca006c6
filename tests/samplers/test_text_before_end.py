"""Orders that look at the network, where texts end: what they make of a foreseen end, and what they write before it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.chains import counts
from unmask.constraints import Banned
from unmask.constraints.members import compile_constraints
from unmask.constraints.particles import ScoredTokenSampler
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.constraints.vocabulary import Vocabulary
from unmask.laws.base import chi_square
from unmask.laws.chains import MASK, L, V
from unmask.laws.tables import ConstantDenoiser, all_canvases, oracle, planner_log_odds, random_table
from unmask.samplers import token_sampling as draws
from unmask.samplers.base import Canvas, JointTokenSampler, State, predict_masked, sample
from unmask.samplers.ending import EosTokenSampler
from unmask.samplers.options import SamplingOptions, configure_sampler
from unmask.samplers.ordered import (
    EntropyBoundedSampler,
    OrderedSampler,
    ThresholdSampler,
    fraction_written,
    position_scores,
)
from unmask.samplers.token_sampling import TokenSampler

EOS = 0
CPU = torch.device("cpu")
ENDING = EosTokenSampler(TokenSampler(), EOS)
KINDS = ("confidence", "margin", "entropy", "planner")


def scores(kind: str, rule: TokenSampler | JointTokenSampler) -> Tensor:
    """[V^L, L] of all canvases, as a random table sees them."""
    table, canvas = random_table(3), Canvas.of(all_canvases(V, L), MASK)
    state = State.start(canvas, canvas.masked.sum(dim=1), L, None)
    return position_scores(table, state, predict_masked(table, state, fraction_written(state)), kind, rule)


def case_of(z: list[int], place: int) -> str:
    """What is known of a position of a canvas."""
    last_text = max((i for i in range(L) if z[i] not in (MASK, EOS)), default=-1)
    first_end = min((i for i in range(L) if z[i] == EOS), default=L)
    if last_text > first_end:
        return "torn"
    return "over" if place > first_end else "text" if place < last_text else "open"


def altered(p: list[float], case: str) -> list[float]:
    """A prediction as an order sees it."""
    if case == "torn":
        return p
    if case == "over":
        return [float(token == EOS) for token in range(V)]
    words = [0.0 if token == EOS else chance for token, chance in enumerate(p)]
    return [w / sum(words) for w in words] if case == "text" else [w + p[EOS] / V for w in words]


def worth(kind: str, p: list[float], case: str) -> float:
    seen = sorted(altered(p, case))
    if kind == "planner":
        right = float(planner_log_odds(torch.tensor(p).double()).sigmoid())
        return {"over": 1.0, "open": (1 - p[EOS]) * right}.get(case, right)
    entropy = -sum(chance * math.log(chance) for chance in seen if chance)
    return {"confidence": seen[-1], "margin": seen[-1] - seen[-2], "entropy": -entropy}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_altered_prediction(kind):
    found, cases = scores(kind, ENDING), set()
    canvases = all_canvases(V, L)
    p = random_table(3).head(random_table(3).hidden(canvases)).softmax(-1)
    for z, row, chances in zip(canvases.tolist(), found.tolist(), p.tolist(), strict=True):
        for place in range(L):
            case = case_of(z, place)
            should = worth(kind, chances[place], case) if z[place] == MASK else -math.inf
            assert row[place] == pytest.approx(should, abs=1e-5), (z, place, case)
            cases |= {case} if z[place] == MASK else set()
    assert cases == {"torn", "over", "text", "open"}


@pytest.mark.parametrize("kind", KINDS)
def test_other_rules_leave_predictions_alone(kind):
    scored = ScoredTokenSampler(TokenSampler(), lambda ids, real: ids.sum(dim=1))
    assert torch.equal(scores(kind, scored), scores(kind, TokenSampler()))
    assert not torch.allclose(scores(kind, ENDING), scores(kind, TokenSampler()))


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_score_or_a_constraint_texts_end_as_well(kind):
    free = compile_constraints([Banned([2], [0])], Vocabulary(None, V, MASK), [])
    for rule in (
        ScoredTokenSampler(ENDING, lambda ids, real: ids.sum(dim=1)),
        ConstrainedTokenSampler(TokenSampler(), free, CPU, eos=EOS),
    ):
        assert torch.equal(scores(kind, rule), scores(kind, ENDING))


@pytest.mark.parametrize("order", KINDS)
def test_one_at_a_time_a_consistent_network_still_writes_the_law_of_its_data(order):
    """An order decides where, by the canvas alone, and not what: rows that end keep their law."""
    weight = torch.rand(V**L, generator=torch.Generator().manual_seed(0)).double()
    law = weight * torch.tensor([float(MASK not in z and is_row(z)) for z in all_canvases(V, L).tolist()])
    law = law / law.sum()
    canvas = Canvas.of(torch.full((10_000, L), MASK), MASK)
    done = sample(OrderedSampler(order=order), oracle(law, V, L, MASK), canvas, ENDING)
    assert chi_square(counts(done), law) > 1e-4


def is_row(z: list[int]) -> bool:
    """Whether nothing but EOS stands behind EOS."""
    return EOS not in z or set(z[z.index(EOS) :]) == {EOS}


class Flooding(ConstantDenoiser):
    """Sure of EOS towards the end of its row, surer still before EOS; of text it thinks 3 likely, then 2 and 4."""

    ends = torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99])

    def __init__(self) -> None:
        super().__init__(torch.zeros(5), MASK)

    def hidden(self, input_ids: Tensor, *args, **kwargs) -> Tensor:
        before_end = torch.nn.functional.pad(input_ids[:, 1:] == EOS, (0, 1))
        end = self.ends[: input_ids.shape[1]].expand(input_ids.shape).masked_fill(before_end, 0.999)
        words = (1 - end)[..., None] * torch.tensor([0.0, 0.0, 0.3, 0.6, 0.1])
        return (words + end[..., None] * torch.tensor([1.0, 0, 0, 0, 0])).log()


SAMPLERS = [
    *(OrderedSampler(order=order, steps=steps) for order in KINDS for steps in (None, 6)),
    ThresholdSampler(above=0.7),
    ThresholdSampler(above=0.7, by="planner"),
    EntropyBoundedSampler(gamma=1.0),
]
SIZE = 12


def lengths(ids: Tensor) -> Tensor:
    """[B] tokens of texts, behind which nothing but EOS may stand."""
    is_end = (ids == EOS).long()
    assert bool((is_end.diff(dim=1) >= 0).all())
    return (1 - is_end).sum(dim=1)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_network_that_floods_writes_text_before_its_end(sampler, temperature):
    canvas = Canvas.of(torch.full((100, SIZE), MASK), MASK)
    done = sample(sampler, Flooding(), canvas, EosTokenSampler(TokenSampler(temperature=temperature), EOS))
    size = lengths(done.ids)
    assert not bool(done.masked.any())
    assert int((size == 0).sum()) <= 5
    assert 4 < float(size.double().mean()) < 9


@pytest.mark.parametrize("order", KINDS[:3])
def test_a_score_or_a_constraint_does_not_bring_the_flood_back(order):
    beginning = compile_constraints([Banned([4], [0])], Vocabulary(None, 5, MASK), [])
    canvas = Canvas.of(torch.full((100, SIZE), MASK), MASK)
    asked = {"constraint": {"automaton": beginning}, "score": {"score": lambda ids, real: (ids == 4).sum(dim=1)}}
    for name, wish in asked.items():
        control = SamplingOptions(eos=EOS, eos_padding=True, particles=2, **wish)
        *_, done = configure_sampler(OrderedSampler(order=order), control, CPU)(Flooding(), canvas)
        before_end = (done.ids == EOS).long().cummax(dim=1).values == 0
        assert int((before_end.sum(dim=1) == 0).sum()) <= 5, name
        assert not (name == "constraint" and bool((done.ids[:, 0] == 4).any()))


@pytest.mark.parametrize("order", KINDS[:3])
def test_by_its_predictions_alone_it_would_write_none(order):
    canvas, unaware = Canvas.of(torch.full((100, SIZE), MASK), MASK), EosTokenSampler(TokenSampler(), EOS)
    unaware.sample_jointly = EosTokenSampler(TokenSampler(), EOS).sample_jointly
    unaware.eos = None
    done = sample(OrderedSampler(order=order), Flooding(), canvas, unaware)
    assert int((lengths(done.ids) == 0).sum()) > 80


@pytest.mark.parametrize("sampler", [ThresholdSampler(above=0.999), EntropyBoundedSampler(gamma=0.0)], ids=repr)
def test_what_is_behind_an_end_is_written_in_one_call(sampler):
    ids = torch.tensor([[2, 3, EOS] + [MASK] * (SIZE - 3)])
    done = sample(sampler, Flooding(), Canvas.of(ids, MASK), ENDING)
    assert done.ids[0].tolist() == [2, 3] + [EOS] * (SIZE - 2)
    assert done.total == 1


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_rows_do_not_depend_on_their_neighbours(sampler, monkeypatch):
    ids = torch.full((5, SIZE), MASK)
    ids[1, :3], ids[2, 7], ids[3, 5] = 2, 3, EOS
    real = torch.ones_like(ids, dtype=torch.bool)
    real[4, 8:] = False
    canvas = Canvas.of(ids, MASK, seed=11, attention_mask=real)
    together = sample(sampler, Flooding(), canvas, ENDING)
    monkeypatch.setattr(draws, "ENTRIES_PER_CHUNK", {"cpu": 3 * 5})
    for row in range(5):
        alone = sample(sampler, Flooding(), canvas.select(torch.tensor([row])), ENDING)
        assert torch.equal(alone.ids[0], together.ids[row])
        assert torch.equal(alone.order[0], together.order[row])


def test_no_more_than_a_chunk_of_logits_is_held(monkeypatch):
    seen = []
    head = Flooding.head
    monkeypatch.setattr(Flooding, "head", lambda self, rows, *args: seen.append(len(rows)) or head(self, rows, *args))
    monkeypatch.setattr(draws, "ENTRIES_PER_CHUNK", {"cpu": 4 * 5})
    sample(OrderedSampler(order="entropy"), Flooding(), Canvas.of(torch.full((2, SIZE), MASK), MASK), ENDING)
    assert max(seen) == 4
