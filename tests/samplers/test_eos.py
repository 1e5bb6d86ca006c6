"""Rows of a text and then EOS: the draw of the end against enumeration, and orders that write text before its end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.chains import counts, ending_chain
from tests.conftest import make_checkpoint
from unmask.constraints import Banned, Vocabulary, compile_constraints
from unmask.constraints.particles import ScoredTokenSampler
from unmask.constraints.sampling import ConstrainedTokenSampler
from unmask.laws.base import chi_square
from unmask.laws.chains import BLANK, MASK, PROMPTED, L, V
from unmask.laws.tables import (
    ConstantDenoiser,
    DataDistribution,
    TableDenoiser,
    all_canvases,
    planner_log_odds,
    random_table,
)
from unmask.pipeline import load
from unmask.samplers import token_sampling
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import AnyTokenSampler, Canvas, State, predict_masked, sample
from unmask.samplers.eos import EosTokenSampler
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
EOS_SAMPLER = EosTokenSampler(TokenSampler(), EOS)
STARTS = {
    "blank": BLANK,
    "text": PROMPTED,
    "end": torch.tensor([MASK, EOS, MASK]),
    "first": torch.tensor([2, MASK, MASK]),
}
SCORES = ("confidence", "margin", "entropy", "planner")


def blank(rows: int, length: int = L) -> Canvas:
    return Canvas.of(torch.full((rows, length), MASK), MASK)


def is_text_then_eos(ids: list[int]) -> bool:
    return EOS not in ids or set(ids[ids.index(EOS) :]) == {EOS}


def data_of_texts_with_ends() -> Tensor:
    """[V^L] a random distribution over rows of a text and then EOS."""
    weight = torch.rand(V**L, generator=torch.Generator().manual_seed(0)).double()
    law = weight * torch.tensor([float(MASK not in z and is_text_then_eos(z)) for z in all_canvases(V, L).tolist()])
    return law / law.sum()


@pytest.mark.parametrize("steps", [1, 2, None])
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_draws_follow_the_enumerated_chain(start, steps):
    denoiser = random_table(5)
    expected = ending_chain(steps, denoiser, start, EOS)
    done = sample(AncestralSampler(steps=steps), denoiser, Canvas.of(start.expand(6000, -1), MASK), EOS_SAMPLER)
    assert abs(expected.sum() - 1) < 1e-9
    assert counts(done)[expected == 0].sum() == 0
    assert chi_square(counts(done), expected) > 1e-4


def test_temperature_applies_to_the_end_too():
    denoiser = random_table(5)
    expected = ending_chain(1, TableDenoiser(2 * denoiser.logits, MASK), BLANK, EOS)
    cold = EosTokenSampler(TokenSampler(temperature=0.5), EOS)
    assert chi_square(counts(sample(AncestralSampler(steps=1), denoiser, blank(4000), cold)), expected) > 1e-4


@pytest.mark.parametrize("sampler", [AncestralSampler(), *(OrderedSampler(order=score) for score in SCORES)], ids=repr)
def test_true_conditionals_give_the_data_distribution_in_every_order(sampler):
    law = data_of_texts_with_ends()
    done = sample(sampler, DataDistribution(law, V, L, MASK).oracle(), blank(10_000), EOS_SAMPLER)
    assert chi_square(counts(done), law) > 1e-4


@pytest.mark.parametrize(("p_eos", "text"), [([0.2, 0.45, 0.6], 2), ([0.2, 0.3, 0.4], 3), ([0.9, 0.3, 0.4], 0)])
def test_greedy_ends_where_an_end_is_more_likely_than_not(p_eos, text):
    """Although EOS may be the single most likely token earlier."""
    logits = torch.stack([torch.tensor([p, 0.0, 0.51 * (1 - p), 0.49 * (1 - p)]) for p in p_eos]).log()
    greedy = EosTokenSampler(TokenSampler(temperature=0), EOS)
    done = sample(AncestralSampler(steps=1), TableDenoiser(logits.expand(V**L, -1, -1), MASK), blank(1), greedy)
    assert done.ids[0].tolist() == [2] * text + [EOS] * (L - text)


def test_positions_are_independent_where_text_is_given_behind_eos():
    canvas = Canvas.of(torch.tensor([EOS, MASK, 2]).expand(3000, -1), MASK)
    plain = sample(AncestralSampler(), random_table(), canvas)
    assert torch.equal(sample(AncestralSampler(), random_table(), canvas, EOS_SAMPLER).ids, plain.ids)


def test_pads_are_no_text_and_confidence_is_the_unmodified_probability():
    ids, real = torch.tensor([[MASK, 3, 3]]), torch.tensor([[True, False, False]])
    canvas = Canvas.of(ids.expand(4000, -1), MASK, attention_mask=real.expand(4000, -1))
    done = sample(AncestralSampler(), random_table(), canvas, EOS_SAMPLER)
    p = random_table().head(random_table().hidden(ids, attention_mask=real)[0, 0]).double().softmax(-1)
    assert chi_square(torch.bincount(done.ids[:, 0], minlength=V), p) > 1e-4
    assert torch.allclose(done.confidence[:, 0], p[done.ids[:, 0]].float(), rtol=1e-5)


@pytest.mark.parametrize("policy", ["padded", "supervised_eos"])
def test_the_length_policy_decides_whether_eos_fills_rows(tmp_path, policy, monkeypatch):
    lm = load(make_checkpoint(tmp_path / "model", policy=policy), device="cpu")
    head, eos = lm.denoiser.head, lm.tokenizer.eos_token_id
    bias = 5.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    for steps in (3, None):
        canvases = [one.ids for one in lm.sample(6, steps=steps, seed=1)]
        tails = [set(ids[ids.index(eos) :]) for ids in canvases if eos in ids]
        assert tails
        assert all(tail == {eos} for tail in tails) == (policy == "supervised_eos")


def test_without_the_rule_tokens_are_drawn_as_predicted(tmp_path, monkeypatch):
    """Networks with the same logits, with and without learned padding, then generate the same."""
    rows = {}
    for policy in ("padded", "supervised_eos"):
        lm = load(make_checkpoint(tmp_path / policy, policy=policy), device="cpu")
        head, eos = lm.denoiser.head, lm.tokenizer.eos_token_id
        bias = 5.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
        monkeypatch.setattr(lm.denoiser, "head", lambda *args, head=head, bias=bias: head(*args) + bias)
        rows[policy] = [lm.sample(6, steps=steps, seed=1, eos_rule=False) for steps in (3, None)]
    assert rows["padded"] == rows["supervised_eos"]


def scores_of_all_canvases(score: str, tokens: AnyTokenSampler) -> Tensor:
    """[V^L, L] the scores of a random table."""
    table, canvas = random_table(3), Canvas.of(all_canvases(V, L), MASK)
    state = State.start(canvas, canvas.masked.sum(dim=1), L, None)
    return position_scores(table, state, predict_masked(table, state, fraction_written(state)), score, tokens)


def expected_score(score: str, p: list[float], z: list[int], position: int) -> float:
    """The score of a prediction p at a position of a canvas z."""
    last_text = max((i for i in range(L) if z[i] not in (MASK, EOS)), default=-1)
    first_eos = min((i for i in range(L) if z[i] == EOS), default=L)
    correct = float(planner_log_odds(torch.tensor(p).double()).sigmoid())
    text = [0.0 if token == EOS else x for token, x in enumerate(p)]
    if last_text > first_eos:
        adjusted = p
    elif position > first_eos:
        adjusted, correct = [float(token == EOS) for token in range(V)], 1.0
    elif position < last_text:
        adjusted = [x / sum(text) for x in text]
    else:
        adjusted, correct = [x + p[EOS] / V for x in text], (1 - p[EOS]) * correct
    top = sorted(adjusted)
    entropy = -sum(x * math.log(x) for x in adjusted if x)
    return {"confidence": top[-1], "margin": top[-1] - top[-2], "entropy": -entropy, "planner": correct}[score]


BANNED = compile_constraints([Banned([2], [0])], Vocabulary(None, V, MASK), [])
WITH_EOS = {
    "eos": EOS_SAMPLER,
    "scored": ScoredTokenSampler(EOS_SAMPLER, lambda ids, real: ids.sum(dim=1)),
    "constrained": ConstrainedTokenSampler(TokenSampler(), BANNED, CPU, eos=EOS),
}


@pytest.mark.parametrize("tokens", WITH_EOS.values(), ids=WITH_EOS)
@pytest.mark.parametrize("score", SCORES)
def test_scores_do_not_count_an_uncertain_end_as_certain(score, tokens):
    found, canvases = scores_of_all_canvases(score, tokens), all_canvases(V, L)
    p = random_table(3).head(random_table(3).hidden(canvases)).softmax(-1)
    for z, row, rows in zip(canvases.tolist(), found.tolist(), p.tolist(), strict=True):
        for position in range(L):
            expected = expected_score(score, rows[position], z, position) if z[position] == MASK else -math.inf
            assert row[position] == pytest.approx(expected, abs=1e-5), (z, position)


class CertainOfEos(ConstantDenoiser):
    """Certain of EOS towards the end of a row, and before EOS; of text tokens 3 is the most likely."""

    p_eos = torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99])

    def __init__(self) -> None:
        super().__init__(torch.zeros(5), MASK)

    def hidden(self, input_ids: Tensor, *args, **kwargs) -> Tensor:
        before_eos = torch.nn.functional.pad(input_ids[:, 1:] == EOS, (0, 1))
        p = self.p_eos[: input_ids.shape[1]].expand(input_ids.shape).masked_fill(before_eos, 0.999)
        text = (1 - p)[..., None] * torch.tensor([0.0, 0.0, 0.3, 0.6, 0.1])
        return (text + p[..., None] * torch.tensor([1.0, 0, 0, 0, 0])).log()


SIZE = len(CertainOfEos.p_eos)
SAMPLERS = [
    *(OrderedSampler(order=score, steps=steps) for score in SCORES for steps in (None, 6)),
    ThresholdSampler(above=0.7),
    ThresholdSampler(above=0.7, by="planner"),
    EntropyBoundedSampler(gamma=1.0),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_written_before_its_end(sampler, temperature):
    tokens = EosTokenSampler(TokenSampler(temperature=temperature), EOS)
    done = sample(sampler, CertainOfEos(), blank(100, SIZE), tokens)
    assert all(is_text_then_eos(row) and MASK not in row for row in done.ids.tolist())
    size = (done.ids != EOS).sum(dim=1)
    assert int((size == 0).sum()) <= 5
    assert 4 < float(size.double().mean()) < 9


@pytest.mark.parametrize("sampler", [ThresholdSampler(above=0.999), EntropyBoundedSampler(gamma=0.0)], ids=repr)
def test_everything_behind_eos_is_written_in_one_call(sampler):
    ids = torch.tensor([[2, 3, EOS] + [MASK] * (SIZE - 3)])
    done = sample(sampler, CertainOfEos(), Canvas.of(ids, MASK), EOS_SAMPLER)
    assert done.ids[0].tolist() == [2, 3] + [EOS] * (SIZE - 2)
    assert done.total == 1


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_sequences_do_not_depend_on_each_other_or_on_chunks(sampler, monkeypatch):
    ids = torch.full((5, SIZE), MASK)
    ids[1, :3], ids[2, 7], ids[3, 5] = 2, 3, EOS
    real = torch.ones_like(ids, dtype=torch.bool)
    real[4, 8:] = False
    canvas = Canvas.of(ids, MASK, seed=11, attention_mask=real)
    together = sample(sampler, CertainOfEos(), canvas, EOS_SAMPLER)
    monkeypatch.setattr(token_sampling, "ENTRIES_PER_CHUNK", {"cpu": 3 * 5})
    for row in range(5):
        alone = sample(sampler, CertainOfEos(), canvas.select(torch.tensor([row])), EOS_SAMPLER)
        assert torch.equal(alone.ids[0], together.ids[row])
        assert torch.equal(alone.order[0], together.order[row])
