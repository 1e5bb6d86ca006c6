"""Text between given text: what stands behind a gap is never cut off by an end that is written into it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask.constraints import Characters
from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import Table, random_table
from unmask.pipeline import load
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.guidance import NoEosDenoiser

V, L, MASK, END = 4, 3, 1, 3


@pytest.fixture(params=["padded", "supervised_eos"])
def eager(request, tmp_path, monkeypatch):
    """A model that wants to end its text at every position."""
    lm = load(make_checkpoint(tmp_path / "eager", policy=request.param), device="cpu")
    head, eos = lm.denoiser.head, lm.tokenizer.eos_token_id
    bias = 30.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    return lm


@pytest.mark.parametrize("steps", [2, None])
def test_an_end_is_shut_out_of_the_law_where_a_text_goes_on(steps):
    table, closed = random_table(), torch.tensor([True, False, False])
    logits = table.logits.clone()
    logits[:, closed, END] = -torch.inf
    should = output_distribution(AncestralSampler(steps=steps), Table(logits, MASK), torch.full((L,), MASK))
    canvas = Canvas.of(torch.full((8000, L), MASK), MASK, seed=90)
    view = NoEosDenoiser(table, closed.expand(8000, -1), END)
    ids = sample(AncestralSampler(steps=steps), view, canvas).ids
    counts = torch.bincount((ids * V ** torch.arange(L)).sum(dim=1), minlength=V**L)
    assert counts[should == 0].sum() == 0
    assert chi_square(counts, should) > 1e-4


def test_a_row_keeps_its_own_gaps_when_others_are_finished():
    ids = torch.tensor([[2, 2, 0], [0, 2, MASK], [MASK, MASK, MASK], [2, 0, 0], [MASK, 0, 0]])
    closed = torch.zeros_like(ids, dtype=torch.bool)
    closed[2, 1:] = True
    canvas, table = Canvas.of(ids, MASK, seed=11), random_table()
    for seed in range(40):
        canvas = Canvas.of(ids, MASK, seed=10 * seed)
        together = sample(AncestralSampler(), NoEosDenoiser(table, closed, END), canvas).ids
        assert END not in together[2, 1:].tolist()
        for b in range(len(ids)):
            row = slice(b, b + 1)
            alone = sample(
                AncestralSampler(),
                NoEosDenoiser(table, closed[row], END),
                Canvas.of(ids[row], MASK, seed=10 * seed + b),
            )
            assert torch.equal(alone.ids[0], together[b])


def test_a_suffix_always_shows(eager):
    eos = eager.tokenizer.eos_token_id
    for one in eager.sample(3, prompt="def ", suffix=" end.", length=24, steps=5):
        assert one.text.startswith("def ")
        assert one.text.endswith(" end.")
        assert eos not in one.ids
        assert len(one.text.encode(errors="replace")) >= 9
    (free,) = eager.sample(1, prompt="def ", length=24)
    assert (free.text, len(free.ids)) == ("def ", 24), "without a suffix it may end"
    *_, last = eager.stream("a", suffix="z", length=12)
    assert (last.text[0], last.text[-1], last.end) == ("a", "z", 12)


def test_the_end_behind_a_suffix_is_for_the_network_alone(eager, monkeypatch):
    seen, hidden, eos = [], eager.denoiser.hidden, eager.tokenizer.eos_token_id
    monkeypatch.setattr(eager.denoiser, "hidden", lambda ids, **told: seen.append(ids.tolist()) or hidden(ids, **told))
    options = {"suffix": " end.", "length": 24, "steps": 5, "seed": 2}
    (one,) = eager.sample(1, **options, return_trajectory=True)
    behind = [eos] if eager.config.policy.name == "padded" else [eos] * (LENGTH - 24)
    assert all(row[24:] == behind for (row,) in seen)
    assert len(one.ids) == len(one.order) == len(one.confidence) == 24
    assert {len(canvas) for canvas in one.trajectory} == {24}
    frames = list(eager.stream(**options))
    assert {len(one) for frame in frames for one in (frame.ids, frame.order, frame.confidence, frame.pieces)} == {24}
    assert "".join(frames[-1].pieces) == frames[-1].text == one.text
    assert frames[-1].finished(2) == replace(one, trajectory=None)


def test_a_suffix_stands_at_the_end_of_long_texts_too(eager):
    (one,) = eager.sample(1, prompt="def ", suffix=" end.", length=3 * LENGTH, steps=4)
    assert one.text.endswith(" end.")
    assert len(one.ids) == 3 * LENGTH
    assert eager.tokenizer.eos_token_id not in one.ids


PARTICLES = {"constraint": Characters(3, 30), "particles": 3}


@pytest.mark.parametrize("options", [{}, {"constraint": Characters(3, 30)}, PARTICLES])
def test_no_blank_in_the_middle_ends_a_text(eager, options):
    lines = ["The [MASK:4] sat.", "[MASK]x[MASK:3]y and more", "ends with [MASK:3]"]
    eos = eager.tokenizer.eos_token_id
    done = eager.fill_details(lines, seed=1, **options)
    assert done[0].text.startswith("The ")
    assert done[0].text.endswith(" sat.")
    assert done[1].text.endswith("y and more")
    assert eos not in done[0].ids[:13]
    assert done[2].text == "ends with ", "the last blank may be empty"
    edited = eager.edit("some text here", spans=[(2, 6)])
    assert (edited[:2], edited[-8:]) == ("so", "ext here")
    assert eager.rewrite("some text here", keep=["text"], seed=3).count("text") == 1


def test_where_texts_are_joined_an_end_cuts_nothing_off(mdlm):
    canvas = mdlm.text_processor.canvas([[97, mdlm.text_processor.mask, 98]], 0, torch.device("cpu"))
    assert canvas.no_eos is None


def test_given_tokens_are_what_a_gap_lies_before(tmp_path):
    text_processor = load(make_checkpoint(tmp_path / "padded", policy="padded"), device="cpu").text_processor
    mask, eos = text_processor.mask, text_processor.end_token
    rows = [[97, mask, mask, 98, mask, eos], [mask, mask], [97, mask, eos]]
    canvas = text_processor.canvas(rows, 0, torch.device("cpu"))
    assert canvas.no_eos is not None
    assert canvas.no_eos.nonzero().tolist() == [[0, 1], [0, 2]]
    assert canvas.condition.nonzero().tolist() == [[0, 0], [0, 3], [2, 0]]
