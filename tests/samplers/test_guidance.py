"""Denoiser wrappers: guidance against its enumerated chain, no EOS before text, and masks behind short rows."""

from __future__ import annotations

import json

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask.errors import UnmaskError
from unmask.laws.base import chi_square
from unmask.laws.chains import output_distribution
from unmask.laws.tables import RecordingDenoiser, TableDenoiser, all_canvases, random_table
from unmask.models import DiTSpec
from unmask.pipeline import load
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample
from unmask.samplers.eos import EosTokenSampler
from unmask.samplers.guidance import BosDenoiser, GuidedDenoiser, MaskPaddedDenoiser, NoEosDenoiser
from unmask.samplers.token_sampling import TokenSampler

V, L, B, EOS = 11, 16, 3, 0
MASK = V - 1
NO_EOS = torch.arange(B * L).view(B, L) % 3 == 0
CONDITION = torch.arange(B * L).view(B, L) // 2 % 3 == 0
WRAPPERS = {
    "padded": lambda net, rows: MaskPaddedDenoiser(net, L + 4),
    "no eos": lambda net, rows: NoEosDenoiser(net, NO_EOS[rows], EOS),
    "begun": lambda net, rows: BosDenoiser(net, 3, L + 4),
    "guided": lambda net, rows: GuidedDenoiser(net, CONDITION[rows], 1.5),
    "all": lambda net, rows: NoEosDenoiser(
        GuidedDenoiser(MaskPaddedDenoiser(net, L + 4), CONDITION[rows], 0.5), NO_EOS[rows], EOS
    ),
}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    net = DiTSpec(hidden_size=16, layers=2, heads=2, dropout=0.0, conditioned=True).build(V, MASK, L + 4)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


class HiddenOnly:
    """The same denoiser without `hidden_at`."""

    def __init__(self, denoiser):
        self.config, self.hidden, self.head = denoiser.config, denoiser.hidden, denoiser.head


@pytest.mark.parametrize("tokens", [TokenSampler(), EosTokenSampler(TokenSampler(), EOS)], ids=["each", "eos"])
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize(("steps", "slots"), [(None, 1), (5, 8)])
def test_ancestral_sampling_computes_only_the_rows_it_writes(network, wrap, tokens, steps, slots, monkeypatch):
    """Compared with whole passes for each sequence alone; two sequences end early and are left out of later calls."""
    sampler, ids = AncestralSampler(steps=steps), torch.full((B, L), MASK)
    ids[0, 2:], ids[1, 1:] = 3, 4
    real = torch.arange(L) < torch.tensor([[L], [L], [L - 3]])
    alone = [
        sample(
            sampler,
            HiddenOnly(wrap(network, [b])),
            Canvas.of(ids[[b]], MASK, seed=b, attention_mask=real[[b]]),
            tokens,
        )
        for b in range(B)
    ]
    widths, own = [], network.hidden_at
    monkeypatch.setattr(network, "hidden_at", lambda ids, at, **kw: widths.append(at.shape) or own(ids, at, **kw))
    canvas = Canvas.of(ids, MASK, attention_mask=real)
    done = sample(sampler, wrap(network, slice(None)), canvas, tokens)
    assert {width for _, width in widths} == {slots}
    assert len({rows for rows, _ in widths}) == 2
    assert torch.equal(done.ids, torch.cat([one.ids for one in alone]))
    assert torch.allclose(done.confidence, torch.cat([one.confidence for one in alone]), atol=1e-5)


# ---- guidance


PROMPTED = torch.tensor([2, 1, 1])


@pytest.mark.parametrize("steps", [1, 2, None])
def test_guided_samples_follow_the_guided_chain(steps):
    """The chain of a table that holds (1 + w) log p(with the first token) - w log p(without it)."""
    table, weight, without = random_table(), 1.5, all_canvases(4, 3)
    log_p = table.head(table.hidden(all_canvases(4, 3))).log_softmax(-1)
    without[:, 0] = 1
    log_q = table.head(table.hidden(without)).log_softmax(-1)
    logits = ((1 + weight) * log_p - weight * log_q).where(~log_p.isneginf(), 0.0)
    canvas = Canvas.of(PROMPTED.expand(8000, -1), 1, seed=20)
    ids = sample(AncestralSampler(steps=steps), GuidedDenoiser(table, canvas.ids != 1, weight), canvas).ids
    counts = torch.bincount((ids * 4 ** torch.arange(3)).sum(dim=1), minlength=64)
    assert (
        chi_square(counts, output_distribution(AncestralSampler(steps=steps), TableDenoiser(logits, 1), PROMPTED))
        > 1e-4
    )
    plain = output_distribution(AncestralSampler(steps=steps), table, PROMPTED)
    assert chi_square(counts, plain) < 1e-6, "the test tells them apart"


def test_guidance_is_one_call_on_two_rows_per_sequence():
    denoiser = RecordingDenoiser(random_table())
    canvas = Canvas.of(PROMPTED.expand(5, -1), 1)
    sample(AncestralSampler(), GuidedDenoiser(denoiser, (canvas.ids != 1), 1.0), canvas)
    assert [len(ids) for ids in denoiser.calls] == [10, 10]
    for ids in denoiser.calls:
        assert ids[:5, 0].tolist() == [2] * 5
        assert ids[5:, 0].tolist() == [1] * 5
        assert torch.equal(ids[:5, 1:], ids[5:, 1:])


def test_weight_zero_is_no_guidance(mdlm):
    canvas = Canvas.of(PROMPTED.expand(50, -1), 1)
    wrapped = sample(AncestralSampler(), GuidedDenoiser(random_table(), canvas.ids != 1, 0.0), canvas)
    plain = sample(AncestralSampler(), random_table(), canvas)
    assert torch.equal(wrapped.ids, plain.ids)
    assert torch.equal(wrapped.confidence, plain.confidence)
    options = {"prompt": "def f", "length": 20, "steps": 5, "seed": 3}
    assert mdlm.generate(2, guidance=0.0, **options) == mdlm.generate(2, **options)
    assert mdlm.sample(1, guidance=2.0, **options)[0].confidence != mdlm.sample(1, **options)[0].confidence


def letters(text: str) -> float:
    return float(sum(letter.isalpha() for letter in text))


@pytest.mark.parametrize("more", [{}, {"particles": 3, "score": letters}], ids=["plain", "particles"])
def test_guided_sequences_do_not_depend_on_each_other(mdlm, more):
    prompts, options = ["a", "def f(", "x" * 11], {"length": 12, "steps": 4, "guidance": 1.0, **more}
    for i, one in enumerate(mdlm.sample(1, prompts=prompts, seed=7, **options)):
        alone = mdlm.sample(1, prompt=prompts[i], seed=7 + i, **options)[0]
        assert (alone.ids, alone.calls) == (one.ids, one.calls)
        assert one.text.startswith(prompts[i])
    with pytest.raises(UnmaskError, match="prompt"):
        mdlm.sample(1, prompts=["a", ""], **options)


def test_guidance_applies_in_the_windows_that_see_the_prompt(mdlm, monkeypatch):
    rows, run = [], mdlm.denoiser._run
    monkeypatch.setattr(mdlm.denoiser, "_run", lambda ids, *a, **k: rows.append(len(ids)) or run(ids, *a, **k))
    (one,) = mdlm.sample(1, prompt="def", length=2 * LENGTH, steps=3, guidance=1.0)
    assert rows == sorted(rows, reverse=True)
    assert set(rows) == {1, 2}
    assert len(rows) == one.calls


# ---- no EOS before text


@pytest.mark.parametrize("steps", [2, None])
def test_eos_is_excluded_where_no_eos_is_set(steps):
    table, no_eos, eos = random_table(), torch.tensor([True, False, False]), 3
    logits = table.logits.clone()
    logits[:, no_eos, eos] = -torch.inf
    expected = output_distribution(AncestralSampler(steps=steps), TableDenoiser(logits, 1), torch.full((3,), 1))
    canvas = Canvas.of(torch.full((8000, 3), 1), 1, seed=90)
    ids = sample(AncestralSampler(steps=steps), NoEosDenoiser(table, no_eos.expand(8000, -1), eos), canvas).ids
    counts = torch.bincount((ids * 4 ** torch.arange(3)).sum(dim=1), minlength=64)
    assert counts[expected == 0].sum() == 0
    assert chi_square(counts, expected) > 1e-4


# ---- masks behind short rows


@pytest.fixture(scope="module")
def supervised(tmp_path_factory):
    """A model that was trained on rows up to their end, so a short row may go on."""
    return load(make_checkpoint(tmp_path_factory.mktemp("eos") / "model", policy="supervised_eos"), device="cpu")


def test_short_rows_and_pads_are_shown_as_masks(supervised):
    wrapped, mask = MaskPaddedDenoiser(supervised.denoiser, LENGTH), supervised.text_processor.mask_token_id
    ids = torch.randint(0, 200, (2, 7))
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    shown = torch.full((2, LENGTH), mask)
    shown[0, :7], shown[1, :4] = ids[0], ids[1, :4]
    expected = supervised.denoiser.hidden(shown)[:, :7]
    assert torch.equal(wrapped.hidden(ids, attention_mask=real), expected)
    assert torch.equal(wrapped.head(expected), supervised.denoiser.head(expected))


def confidence_matches(one, logits: torch.Tensor, positions: range) -> bool:
    p = logits.softmax(-1)
    return all(one.confidence[i] == pytest.approx(float(p[i, one.ids[i]]), rel=1e-4) for i in positions)


def test_short_texts_are_predicted_as_the_start_of_a_row(supervised):
    mask, eos = supervised.text_processor.mask_token_id, supervised.tokenizer.eos_token_id
    (short,) = supervised.sample(1, length=12, steps=1, seed=3)
    logits = supervised.denoiser.head(supervised.denoiser.hidden(torch.full((1, LENGTH), mask))).detach()[0]
    assert len(short.ids) == 12
    assert confidence_matches(short, logits, range(12))
    (filled,) = supervised.fill_details(["The [MASK:3] sat"], seed=4, steps=1)
    row = [*b"The ", *[mask] * 3, *b" sat"]
    assert len(filled.ids) == len(row)
    z = torch.tensor([row + [mask] * (LENGTH - len(row))])
    logits = supervised.denoiser.head(supervised.denoiser.hidden(z)).detach()[0]
    logits[:, eos] = -torch.inf  # no end before given text
    assert confidence_matches(filled, logits, range(4, 7))


WRITE = {
    "fill": lambda lm: lm.fill(["a [MASK:2-4] b", "a [MASK]"]),
    "edit": lambda lm: lm.edit("the cat sat", strength=0.5),
    "short": lambda lm: lm.generate(2, prompt="The", length=12, steps=3),
    "whole": lambda lm: lm.generate(2, steps=3),
    "suffix": lambda lm: lm.generate(2, length=12, suffix="end", steps=3),
    "stream": lambda lm: list(lm.stream("The", length=12, steps=3)),
}


@pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)
def test_the_network_always_sees_rows_of_its_training_length(supervised, monkeypatch, write):
    widths, run = [], supervised.denoiser._run
    monkeypatch.setattr(
        supervised.denoiser, "_run", lambda ids, *a, **k: widths.append(ids.shape[1]) or run(ids, *a, **k)
    )
    write(supervised)
    assert set(widths) == {LENGTH}


# ---- BOS before rows


@pytest.mark.parametrize(("tokenizer", "bos"), [("plain", 256), ("with bos", 65)])
def test_a_framed_model_sees_bos_before_prompts(tmp_path, tokenizer, bos):
    folder = make_checkpoint(tmp_path / "framed", policy={"name": "packed", "framed": True})
    if tokenizer == "with bos":
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "A"}))
        (folder / "checksums.json").unlink()
    lm = load(folder, device="cpu")
    mask = lm.text_processor.mask_token_id
    (one,) = lm.sample(1, prompt="abc", length=9, temperature=0.0, steps=1)
    shown = torch.tensor([[bos, *b"abc", *[mask] * 6]])
    logits = lm.denoiser.head(lm.denoiser.hidden(shown))[0, 1:].detach()
    assert one.ids == [*b"abc", *logits[3:].argmax(-1).tolist()]
    assert confidence_matches(one, logits, range(3, 9))
    (default,) = lm.sample(1, prompt="abc", steps=1)
    assert len(default.ids) == LENGTH - 1, "BOS is part of the row"
    assert len(lm.sample(1, length=LENGTH, steps=1)[0].ids) == LENGTH
    rows = lm.text_processor.scored_rows(["de"], "abc")
    assert rows[0].input_ids[0, :6].tolist() == [bos, *b"abcde"]
    assert rows[0].frozen[0, :6].tolist() == [True] * 4 + [False] * 2


def test_an_autoregressive_model_with_learned_padding_writes_short_canvases_as_long_ones(tmp_path):
    lm = load(make_checkpoint(tmp_path / "ar", model="causal", policy="supervised_eos"), device="cpu")
    for prompt in ("", "ab"):
        short, whole = (lm.sample(2, prompt=prompt, length=length, seed=3) for length in (10, LENGTH))
        for one, other in zip(short, whole, strict=True):
            assert one.ids == other.ids[:10]
            assert one.confidence == pytest.approx(other.confidence[:10], rel=1e-4)
            assert one.text == other.text[: len(one.text)]
    assert lm.fill("ab[MASK:3]", seed=3) == lm.generate(1, prompt="ab", length=5, seed=3)[0]
