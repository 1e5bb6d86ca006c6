"""Texts that end: the draw of an end and of what stands before it, against enumeration and against an automaton."""

from __future__ import annotations

import pytest
import torch
from tests.chains import completions, conditioned_chain, counts
from tests.conftest import make_checkpoint
from torch import Tensor

from unmask.generation import load
from unmask.laws.chains import BLANK, MASK, STARTED, L, V
from unmask.laws.statistics import chi_square
from unmask.laws.tables import Table, every_canvas, random_table
from unmask.samplers.base import Canvas, sample
from unmask.samplers.draws import TokenRule
from unmask.samplers.ending import Ending
from unmask.samplers.reveal import Reveal

EOS = 0


def ends(canvas: list[int]) -> bool:
    """Whether a finished canvas is a text and then EOS alone."""
    size = canvas.index(EOS) if EOS in canvas else len(canvas)
    return MASK not in canvas and all(token == EOS for token in canvas[size:])


def accepted() -> Tensor:
    return torch.tensor([ends(z) for z in every_canvas(V, L).tolist()])


@pytest.mark.parametrize("steps", [1, 2, None])
@pytest.mark.parametrize("start", [BLANK, STARTED, torch.tensor([MASK, EOS, MASK])], ids=["blank", "text", "end"])
def test_draws_follow_the_conditioned_chain(start, steps):
    denoiser = random_table(5)
    should = conditioned_chain(steps, denoiser, start, accepted())
    canvas = Canvas.of(start.expand(4000, -1), MASK)
    seen = counts(sample(Reveal(steps=steps), denoiser, canvas, Ending(TokenRule(), EOS)))
    assert seen[should == 0].sum() == 0
    assert chi_square(seen, should) > 1e-4


def test_temperature_shapes_the_end_too():
    denoiser, cold = random_table(5), TokenRule(temperature=0.5)
    squared = Table(2 * denoiser.logits, MASK)
    should = conditioned_chain(1, squared, BLANK, accepted())
    seen = counts(sample(Reveal(steps=1), denoiser, Canvas.of(BLANK.expand(4000, -1), MASK), Ending(cold, EOS)))
    assert chi_square(seen, should) > 1e-4


def test_greedy_is_the_likeliest_canvas_that_ends():
    for seed in range(6):
        denoiser = random_table(seed)
        best = completions(denoiser, BLANK, accepted()).argmax()
        done = sample(Reveal(steps=1), denoiser, Canvas.of(BLANK[None], MASK), Ending(TokenRule(temperature=0), EOS))
        assert counts(done).argmax() == best


def test_where_no_end_is_possible_tokens_are_drawn_each_by_itself():
    """EOS is given before a text that is given."""
    start = torch.tensor([EOS, MASK, 2])
    canvas = Canvas.of(start.expand(3000, -1), MASK)
    free = sample(Reveal(), random_table(), canvas)
    assert torch.equal(sample(Reveal(), random_table(), canvas, Ending(TokenRule(), EOS)).ids, free.ids)


def test_pads_are_no_text_and_confidence_is_the_untouched_prediction():
    """The one mask before two pads is EOS as often as predicted, wherever the row's end is."""
    ids, real = torch.tensor([[MASK, 3, 3]]), torch.tensor([[True, False, False]])
    canvas = Canvas.of(ids.expand(4000, -1), MASK, attention_mask=real.expand(4000, -1))
    done = sample(Reveal(), random_table(), canvas, Ending(TokenRule(), EOS))
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
