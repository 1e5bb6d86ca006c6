"""Pieces of texts: a network that has learnt rows to their end sees masks behind what it is given, and writes none."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import LENGTH, make_checkpoint

from unmask.generation import load
from unmask.samplers.views import GoesOn


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    return load(make_checkpoint(tmp_path_factory.mktemp("learnt") / "model", policy="supervised_eos"), device="cpu")


def test_rows_are_shown_with_masks_behind_them(learnt):
    view, mask = GoesOn(learnt.denoiser, LENGTH), learnt.scribe.mask
    ids = torch.randint(0, 200, (2, 7))
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    shown = torch.full((2, LENGTH), mask)
    shown[0, :7], shown[1, :4] = ids[0], ids[1, :4]
    expected = learnt.denoiser.hidden(shown)[:, :7]
    assert torch.equal(view.hidden(ids, attention_mask=real), expected)
    assert torch.equal(view.of_rows(torch.tensor([1])).hidden(ids[1:], attention_mask=real[1:]), expected[1:])
    assert torch.equal(view.head(expected), learnt.denoiser.head(expected))


def test_a_blank_is_filled_as_in_a_canvas_whose_rest_is_masked(learnt):
    (one,) = learnt.fill_details(["The [MASK:3] sat"], seed=4, steps=1)
    assert len(one.ids) == len("The ") + 3 + len(" sat")
    assert one.calls == 1
    row = learnt.scribe.blank_ids(learnt.scribe.parts("The [MASK:3] sat"))
    z = torch.tensor([row + [learnt.scribe.mask] * (LENGTH - len(row))])
    logits = learnt.denoiser.head(learnt.denoiser.hidden(z)).detach()[0]
    logits[:, learnt.tokenizer.eos_token_id] = -torch.inf  # no end before a text that is known
    p = logits.softmax(-1)
    for place in range(4, 7):
        assert one.confidence[place] == pytest.approx(float(p[place, one.ids[place]]), rel=1e-4)


@pytest.mark.parametrize("write", ["fill", "edit"])
def test_every_verb_on_pieces_of_text_looks_at_the_masks(learnt, monkeypatch, write):
    widths = []
    hidden = learnt.denoiser.hidden
    monkeypatch.setattr(learnt.denoiser, "hidden", lambda ids, **kw: widths.append(ids.shape[1]) or hidden(ids, **kw))
    if write == "fill":
        learnt.fill(["a [MASK:2-4] b", "a [MASK]"])
    else:
        learnt.edit("the cat sat", strength=0.5)
    assert set(widths) == {LENGTH}
