"""A healthy checkpoint passes every check, and each sickness is found by the check that is meant for it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask.checkpoint import CheckpointConfig
from unmask.doctor import checkpoint as likelihoods
from unmask.doctor.checkpoint import CheckpointCheck, _name, _spread, about, admit, checks, examine, random_tokens
from unmask.doctor.machine import CheckResult, at_most
from unmask.errors import UnmaskError
from unmask.laws import exact
from unmask.models.dit import DiT
from unmask.objectives.subs import MaskCount
from unmask.pipeline import MaskedDiffusionLM, load

TEXT = "some text of some tokens"


@pytest.fixture
def lm(mdlm_folder) -> MaskedDiffusionLM:
    """A model of its own for every test, to be made sick."""
    return load(mdlm_folder, device="cpu")


@pytest.fixture
def twin(ar_folder) -> MaskedDiffusionLM:
    return load(ar_folder, device="cpu")


def examined(lm: MaskedDiffusionLM, text: str | None = TEXT) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in examine(admit(lm, text))}


def failed(lm: MaskedDiffusionLM, text: str | None = TEXT) -> set[str]:
    return {name for name, finding in examined(lm, text).items() if finding.failed}


def with_card(lm: MaskedDiffusionLM, **changes: object) -> MaskedDiffusionLM:
    card = CheckpointConfig(**{**lm.config.model_dump(), **changes})
    return MaskedDiffusionLM(lm.denoiser, lm.tokenizer, card, lm.path)


@pytest.mark.parametrize("text", [TEXT, None])
@pytest.mark.parametrize("which", ["lm", "twin"])
def test_a_healthy_checkpoint_passes(which, text, request):
    found = examined(request.getfixturevalue(which), text)
    assert all(finding.passed for finding in found.values()), found
    assert len(found) == (13 if which == "lm" else 12)


def test_a_conditioned_network_is_told_the_clock(tmp_path):
    found = examined(load(make_checkpoint(tmp_path / "clock", conditioned=True, cond_dim=8), device="cpu"))
    assert all(finding.passed for finding in found.values()), found
    assert "3,072 canvases" in found["bound is above the likelihood"].words


def test_checks_are_named_as_their_functions(lm, twin):
    for model in (lm, twin):
        one = admit(model, TEXT)
        made = [check().name for check in checks(one)]
        assert made == [_name(check) for check in checks(one)]


def test_the_exact_likelihood_is_that_of_the_enumeration(lm):
    one = admit(lm, TEXT)
    assert int(one.open.sum()) == 8
    words = examined(lm)["bound is above the likelihood"].words
    nll = float(exact.any_order_nll(lm.denoiser, one.ids[None], one.open))
    bound = float(exact.continuous_bound(lm.denoiser, one.ids[None], one.open).sum())
    assert f"-log p = {nll:.4f} exactly, bound {bound:.4f} (8 positions open, 256 canvases)" in words


def test_the_estimate_counts_the_open_positions_alone(lm):
    one = admit(lm, TEXT)
    made = likelihoods.Masked(one)._estimate("mask-count", MaskCount(), seed=0)
    assert made.tokens == 8
    assert made.draws == 128


def test_an_unlucky_estimate_is_drawn_once_more(lm, monkeypatch):
    bound, seeds = likelihoods.bound, []

    def unlucky(*args, seed, **kwargs):
        seeds.append(seed)
        made = bound(*args, seed=seed, **kwargs)
        return replace(made, nats=1.0) if seed == 0 else made

    monkeypatch.setattr(likelihoods, "bound", unlucky)
    assert failed(lm) == set()
    assert seeds == [0, 1, 0, 1]


def test_weights_that_are_not_numbers_are_named(lm):
    with torch.no_grad():
        lm.denoiser.blocks[1].attn_qkv.weight[0, 0] = math.nan
    found = examined(lm)
    assert found["weights are finite"].value == 1
    assert "blocks.1.attn_qkv.weight" in found["weights are finite"].words
    assert {"logits are finite", "bound is above the likelihood", "mask count finds the bound"} <= failed(lm)
    json.dumps([finding.as_dict() for finding in found.values()], allow_nan=False)


def test_a_network_that_sees_pads_is_found(lm, monkeypatch):
    hidden = DiT.hidden
    monkeypatch.setattr(DiT, "hidden", lambda self, ids, alpha=None, attention_mask=None: hidden(self, ids, alpha))
    assert failed(lm) == {"pads do not matter"}


def test_a_network_that_mixes_its_batch_is_found(lm, monkeypatch):
    hidden = DiT.hidden

    def mixed(self, *args, **kwargs):
        rows = hidden(self, *args, **kwargs)
        return rows - rows.mean(dim=0, keepdim=True) if len(rows) > 1 else rows

    monkeypatch.setattr(DiT, "hidden", mixed)
    assert "company does not matter" in failed(lm)


def test_a_network_that_remembers_is_found(lm, monkeypatch):
    hidden, seen = DiT.hidden, [0]

    def remembering(self, ids, *args, **kwargs):
        rows = hidden(self, ids, *args, **kwargs) * (1 + seen[-1] / 1000)
        seen.append(int(ids[0, 0]))
        return rows

    monkeypatch.setattr(DiT, "hidden", remembering)
    assert "answer is the same twice" in failed(lm)


def test_a_head_that_lets_the_mask_in_is_found(lm, monkeypatch):
    head = DiT.head
    monkeypatch.setattr(DiT, "head", lambda self, rows, mask_logit=False: head(self, rows, mask_logit=True))
    assert failed(lm) == {"mask is excluded"}


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_wrong_weight_is_found(lm, monkeypatch, factor):
    loss = MaskCount.terms

    def wrong(self, *args):
        terms = loss(self, *args)
        return type(terms)(**{**vars(terms), "diffusion": factor * terms.diffusion})

    monkeypatch.setattr(MaskCount, "terms", wrong)
    below = {"estimates are above the likelihood"} if factor < 1 else set()
    assert failed(lm) == {"mask count finds the bound"} | below


def test_another_mask_token_is_found(lm):
    lm.tokenizer.mask_token = "[EOS]"
    found = examined(lm, None)
    assert found["mask token is one"].failed
    assert "tokenizer says 256, config.json 257" in found["mask token is one"].words


def test_a_tokenizer_with_more_tokens_than_rows_is_found(lm):
    lm.tokenizer.add_tokens(["unheard-of"])
    assert failed(lm) == {"vocabulary fits"}


def test_a_tokenizer_that_loses_text_is_found(lm):
    lm.tokenizer.backend_tokenizer.decoder = None
    assert failed(lm) == {"text survives the tokenizer"}


def test_a_tokenizer_that_adds_to_a_text_is_found(lm, monkeypatch):
    monkeypatch.setattr(lm.tokenizer, "decode", lambda ids, **options: TEXT + "!!")
    assert examined(lm)["text survives the tokenizer"].value == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": LENGTH + 1}, f"rows of {LENGTH + 1} tokens for a network of {LENGTH}"),
        ({"objective": "d3pm"}, "mask_logit=False for the objective d3pm"),
    ],
)
def test_a_card_of_another_network_is_found(lm, changes, words):
    found = examined(with_card(lm, **changes))
    assert found["card fits"].failed
    assert words in found["card fits"].words


def test_a_policy_without_its_end_is_found(lm):
    lm.tokenizer.eos_token = None
    assert "card fits" in failed(with_card(lm, policy="supervised_eos"))


def test_an_objective_with_the_mask_in_its_softmax_is_excused(lm):
    lm.denoiser.config.mask_logit = True
    found = examined(with_card(lm, objective="d3pm"))
    excused = {name for name, finding in found.items() if finding.passed is None}
    assert excused == {"mask is excluded", "estimates are above the likelihood"}
    assert all(finding.passed for name, finding in found.items() if name not in excused)


def test_a_bound_of_a_few_steps_is_another_process(lm):
    stepped = with_card(lm, objective={"name": "d3pm", "steps": 8, "carry_over": True, "zero_masking": True})
    found = examined(stepped)["estimates are above the likelihood"]
    assert found.passed is None
    assert "few steps" in found.words


def test_a_score_is_judged_as_it_is_printed(lm):
    """SEDD's own estimator on weights that were never normalised lies far above, and that is no fault."""
    found = examined(with_card(lm, objective="sedd"))
    assert all(finding.passed for finding in found.values()), found
    assert "sedd" in found["estimates are above the likelihood"].words


def test_a_causal_network_that_sees_ahead_is_found(twin, monkeypatch):
    from unmask.models import causal
    from unmask.models.attention import bidirectional_mask

    monkeypatch.setattr(
        causal, "causal_mask", lambda length, past, attention_mask, device: bidirectional_mask(attention_mask)
    )
    assert "score is the sum of conditionals" in failed(twin)


def test_a_cache_that_forgets_its_length_is_found(twin, monkeypatch):
    from unmask.models.attention import StaticCache

    seek = StaticCache.seek
    monkeypatch.setattr(StaticCache, "seek", lambda self, position, length: seek(self, 0, length))
    assert failed(twin) == {"generation agrees with score"}


def test_a_check_that_breaks_off_is_a_failure(lm, monkeypatch):
    def broken(self, rows, mask_logit=False):
        raise RuntimeError("no kernel for this\nmore of it")

    monkeypatch.setattr(DiT, "head", broken)
    found = {finding.name: finding for finding in examine(CheckpointCheck(lm, *_tokens(), None))}
    assert found["logits are finite"].failed
    assert found["logits are finite"].words == "the check broke off with RuntimeError: no kernel for this"
    assert found["weights are finite"].passed


def _tokens():
    ids = torch.arange(10)
    return ids, ids < 8


def test_without_a_tokenizer_random_tokens_are_examined(lm):
    bare = MaskedDiffusionLM(lm.denoiser, None, lm.config)
    one = admit(bare)
    assert one.text is None
    assert lm.denoiser.config.mask_token_id not in one.ids
    found = examined(bare, None)
    excused = {name for name, finding in found.items() if finding.passed is None}
    assert excused == {"text survives the tokenizer", "mask token is one", "vocabulary fits"}
    with pytest.raises(UnmaskError, match="tokenizer"):
        admit(bare, TEXT)


def test_a_text_that_fills_the_network_leaves_no_room_for_pads(lm):
    assert examined(lm, "x" * LENGTH)["pads do not matter"].passed is None
    assert "2 pads" in examined(lm, "x" * (LENGTH - 2))["pads do not matter"].words


def test_a_short_text_is_open_everywhere(lm, twin):
    assert "(3 positions open, 8 canvases)" in examined(lm, "abc")["bound is above the likelihood"].words
    assert examined(twin, "a")["generation agrees with score"].passed is None
    assert examined(twin, "a")["score is the sum of conditionals"].passed


def test_a_twin_without_begin_token_is_not_asked_for_the_first(tmp_path):
    model = load(make_checkpoint(tmp_path / "bare", model="causal"), device="cpu")
    model.denoiser.config.bos_token_id = None
    found = examined(model)
    assert all(finding.passed for finding in found.values()), found
    assert "(7 positions open)" in found["score is the sum of conditionals"].words
    assert admit(model).text is None


@pytest.mark.parametrize(("text", "words"), [("", "no tokens"), ("x" * (LENGTH + 1), "shorten it")])
def test_a_text_that_cannot_be_examined_is_one_sentence(lm, text, words):
    with pytest.raises(UnmaskError, match=words):
        admit(lm, text)


def test_a_masked_network_is_shown_masks_and_a_causal_one_the_text(lm, twin):
    one, other = admit(lm, TEXT), admit(twin, TEXT)
    assert torch.equal(one.canvas == 257, one.open)
    assert torch.equal(one.canvas[~one.open], one.ids[~one.open])
    assert torch.equal(other.canvas, other.ids)


def test_random_tokens_are_all_but_the_mask(lm):
    lm.denoiser.config.mask_token_id = 100
    drawn = random_tokens(lm, 100, LENGTH).unique().tolist()
    assert drawn == [token for token in range(258) if token != 100]


def test_open_positions_are_spread():
    assert _spread(32).nonzero()[:, 0].tolist() == [0, 4, 8, 12, 16, 20, 24, 28]
    assert _spread(5).all()


def test_half_precision_is_judged_by_its_own_tolerance(lm):
    lm.denoiser.to(torch.bfloat16)
    found = examined(lm)
    assert all(finding.passed for finding in found.values()), found
    assert found["company does not matter"].limit >= 0.1


def test_what_a_checkpoint_is(lm, tmp_path):
    told = about(lm)
    assert told["network"] == "DiT"
    assert told["parameters"] == sum(parameter.numel() for parameter in lm.denoiser.parameters())
    assert (told["schedule"], told["objective"], told["policy"]) == ("loglinear", "subs", "packed")
    assert (told["vocabulary"], told["mask_token_id"], told["length"]) == (258, 257, LENGTH)
    assert told["tokenizer"]["eos_token_id"] == 256
    assert told["steps"] is None


def test_a_run_knows_its_steps(tmp_path):
    from unmask.config import parse_recipe
    from unmask.training import train

    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 60)
    recipe = parse_recipe(
        {
            "data": {"source": {"name": "text", "paths": [str(text)]}, "length": 16},
            "model": {"name": "dit", "size": "nano", "hidden_size": 16, "layers": 1, "heads": 1},
            "training": {"steps": 3, "batch_size": 2, "validation_rows": 2},
        }
    )
    train(recipe, tmp_path / "run")
    assert about(load(tmp_path / "run", device="cpu"))["steps"] == 3


def test_a_figure_that_is_no_number_fails():
    assert at_most("name", math.nan, 1.0, "words", "remedy").failed
    assert at_most("name", math.inf, 1.0, "words", "remedy").as_dict()["value"] is None
    assert at_most("name", 1.0, 1.0, "words", "remedy").passed
