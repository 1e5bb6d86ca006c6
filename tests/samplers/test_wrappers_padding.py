"""Pieces of texts: a network that has learnt rows to their end sees masks behind what it is given, and writes none."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask.pipeline import load
from unmask.samplers.guidance import MaskPaddedDenoiser


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    return load(make_checkpoint(tmp_path_factory.mktemp("learnt") / "model", policy="supervised_eos"), device="cpu")


def test_rows_are_shown_with_masks_behind_them(learnt):
    view, mask = MaskPaddedDenoiser(learnt.denoiser, LENGTH), learnt.text_processor.mask_token_id
    ids = torch.randint(0, 200, (2, 7))
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    shown = torch.full((2, LENGTH), mask)
    shown[0, :7], shown[1, :4] = ids[0], ids[1, :4]
    expected = learnt.denoiser.hidden(shown)[:, :7]
    assert torch.equal(view.hidden(ids, attention_mask=real), expected)
    assert torch.equal(view.select_sequences(torch.tensor([1])).hidden(ids[1:], attention_mask=real[1:]), expected[1:])
    assert torch.equal(view.head(expected), learnt.denoiser.head(expected))


def test_a_blank_is_filled_as_in_a_canvas_whose_rest_is_masked(learnt):
    (one,) = learnt.fill_details(["The [MASK:3] sat"], seed=4, steps=1)
    assert len(one.ids) == len("The ") + 3 + len(" sat")
    assert one.calls == 1
    row = learnt.text_processor.join(learnt.text_processor.parse("The [MASK:3] sat"))
    z = torch.tensor([row + [learnt.text_processor.mask_token_id] * (LENGTH - len(row))])
    logits = learnt.denoiser.head(learnt.denoiser.hidden(z)).detach()[0]
    logits[:, learnt.tokenizer.eos_token_id] = -torch.inf  # no end before a text that is known
    p = logits.softmax(-1)
    for place in range(4, 7):
        assert one.confidence[place] == pytest.approx(float(p[place, one.ids[place]]), rel=1e-4)


WRITE = {
    "fill": lambda lm: lm.fill(["a [MASK:2-4] b", "a [MASK]"]),
    "edit": lambda lm: lm.edit("the cat sat", strength=0.5),
    "short": lambda lm: lm.generate(2, prompt="The", length=12, steps=3),
    "whole": lambda lm: lm.generate(2, steps=3),
    "suffix": lambda lm: lm.generate(2, length=12, suffix="end", steps=3),
    "stream": lambda lm: list(lm.stream("The", length=12, steps=3)),
}


@pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)
def test_whoever_writes_looks_at_rows_of_the_length_that_was_learnt(learnt, monkeypatch, write):
    widths, run = [], learnt.denoiser._run
    monkeypatch.setattr(learnt.denoiser, "_run", lambda ids, *a, **k: widths.append(ids.shape[1]) or run(ids, *a, **k))
    write(learnt)
    assert set(widths) == {LENGTH}


def test_a_short_canvas_is_the_beginning_of_a_row(learnt):
    """What stands behind it is masked and stays so: one call gives the first tokens what a whole canvas gives them."""
    (short,) = learnt.sample(1, length=12, steps=1, seed=3)
    z = torch.full((1, LENGTH), learnt.text_processor.mask_token_id)
    p = learnt.denoiser.head(learnt.denoiser.hidden(z)).detach()[0].softmax(-1)
    assert len(short.ids) == 12
    for place, token in enumerate(short.ids):
        assert short.confidence[place] == pytest.approx(float(p[place, token]), rel=1e-4)
