"""Texts that end: the draw of an end and of what stands before it, against enumeration and against an automaton."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.chains import counts, ending_chain
from tests.conftest import make_checkpoint
from unmask.laws.base import chi_square
from unmask.laws.chains import BLANK, MASK, PROMPTED, L, V
from unmask.laws.tables import TableDenoiser, all_canvases, oracle, random_table
from unmask.pipeline import load
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.ending import EosTokenSampler
from unmask.samplers.token_sampling import TokenSampler

EOS = 0
ENDING = EosTokenSampler(TokenSampler(), EOS)


STARTS = {
    "blank": BLANK,
    "text": PROMPTED,
    "end": torch.tensor([MASK, EOS, MASK]),
    "first": torch.tensor([2, MASK, MASK]),
}


@pytest.mark.parametrize("steps", [1, 2, None])
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_draws_follow_the_enumerated_chain(start, steps):
    denoiser = random_table(5)
    should = ending_chain(steps, denoiser, start, EOS)
    canvas = Canvas.of(start.expand(6000, -1), MASK)
    seen = counts(sample(AncestralSampler(steps=steps), denoiser, canvas, EosTokenSampler(TokenSampler(), EOS)))
    assert abs(should.sum() - 1) < 1e-9
    assert seen[should == 0].sum() == 0
    assert chi_square(seen, should) > 1e-4


@pytest.mark.parametrize("steps", [1, 2, None])
def test_a_text_is_followed_by_nothing_but_its_end(steps):
    for seed in range(4):
        done = sample(AncestralSampler(steps=steps), random_table(seed), Canvas.of(BLANK.expand(500, -1), MASK), ENDING)
        is_end = (done.ids == EOS).long()
        assert bool((is_end.diff(dim=1) >= 0).all())
        assert 0 < int(is_end.sum()) < is_end.numel()


def test_every_position_ends_with_the_chance_it_was_given():
    """Where chances rise along the row, all positions at once have the law of each alone."""
    p_end = torch.tensor([0.1, 0.3, 0.8])
    logits = torch.stack([torch.tensor([p, 0.0, (1 - p) / 4, 3 * (1 - p) / 4]) for p in p_end]).log()
    done = sample(AncestralSampler(steps=1), rows(logits), Canvas.of(BLANK.expand(20_000, -1), MASK), ENDING)
    for position in range(L):
        assert chi_square(torch.bincount(done.ids[:, position], minlength=V), logits[position].double().exp()) > 1e-4


def test_one_at_a_time_a_consistent_network_writes_the_law_of_its_data():
    """A data law of rows that end: the true conditionals, in uniform order, give it back."""
    weight = torch.rand(V**L, generator=torch.Generator().manual_seed(0)).double()
    law = weight * torch.tensor([float(MASK not in z and ends(z)) for z in all_canvases(V, L).tolist()])
    law = law / law.sum()
    done = sample(AncestralSampler(), oracle(law, V, L, MASK), Canvas.of(BLANK.expand(20_000, -1), MASK), ENDING)
    assert chi_square(counts(done), law) > 1e-4


def rows(logits: Tensor) -> TableDenoiser:
    """A denoiser that predicts the same rows [L, V] whatever the canvas."""
    return TableDenoiser(logits.expand(V**L, -1, -1), MASK)


def ends(canvas: list[int]) -> bool:
    size = canvas.index(EOS) if EOS in canvas else len(canvas)
    return all(token == EOS for token in canvas[size:])


def test_temperature_shapes_the_end_too():
    denoiser, cold = random_table(5), TokenSampler(temperature=0.5)
    should = ending_chain(1, TableDenoiser(2 * denoiser.logits, MASK), BLANK, EOS)
    seen = counts(
        sample(AncestralSampler(steps=1), denoiser, Canvas.of(BLANK.expand(4000, -1), MASK), EosTokenSampler(cold, EOS))
    )
    assert chi_square(seen, should) > 1e-4


@pytest.mark.parametrize(("p_end", "text"), [([0.2, 0.45, 0.6], 2), ([0.2, 0.3, 0.4], 3), ([0.9, 0.3, 0.4], 0)])
def test_greedy_ends_where_an_end_is_likelier_than_not(p_end, text):
    """Though EOS is the likeliest single token much earlier, and a lone high chance is weighed with those behind it."""
    logits = torch.stack([torch.tensor([p, 0.0, 0.51 * (1 - p), 0.49 * (1 - p)]) for p in p_end]).log()
    done = sample(
        AncestralSampler(steps=1),
        rows(logits),
        Canvas.of(BLANK[None], MASK),
        EosTokenSampler(TokenSampler(temperature=0), EOS),
    )
    assert done.ids[0].tolist() == [2] * text + [EOS] * (L - text)


def test_where_no_end_is_possible_tokens_are_drawn_each_by_itself():
    """EOS is given before a text that is given."""
    start = torch.tensor([EOS, MASK, 2])
    canvas = Canvas.of(start.expand(3000, -1), MASK)
    free = sample(AncestralSampler(), random_table(), canvas)
    assert torch.equal(
        sample(AncestralSampler(), random_table(), canvas, EosTokenSampler(TokenSampler(), EOS)).ids, free.ids
    )


def test_pads_are_no_text_and_confidence_is_the_untouched_prediction():
    """The one mask before two pads is EOS as often as predicted, wherever the row's end is."""
    ids, real = torch.tensor([[MASK, 3, 3]]), torch.tensor([[True, False, False]])
    canvas = Canvas.of(ids.expand(4000, -1), MASK, attention_mask=real.expand(4000, -1))
    done = sample(AncestralSampler(), random_table(), canvas, EosTokenSampler(TokenSampler(), EOS))
    p = random_table().head(random_table().hidden(ids, attention_mask=real)[0, 0]).double().softmax(-1)
    assert chi_square(torch.bincount(done.ids[:, 0], minlength=V), p) > 1e-4
    assert torch.allclose(done.confidence[:, 0], p[done.ids[:, 0]].float(), rtol=1e-5)


@pytest.mark.parametrize("policy", ["padded", "supervised_eos"])
def test_texts_of_a_model_that_learnt_ends_have_one_and_others_are_left_alone(tmp_path, policy, monkeypatch):
    lm = load(make_checkpoint(tmp_path / "model", policy=policy), device="cpu")
    head, eos = lm.denoiser.head, lm.tokenizer.eos_token_id
    bias = 5.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    for steps in (3, None):
        canvases = [one.ids for one in lm.sample(6, steps=steps, seed=1)]
        tails = [set(ids[ids.index(eos) :]) for ids in canvases if eos in ids]
        assert tails
        assert all(tail == {eos} for tail in tails) == (policy == "supervised_eos")
