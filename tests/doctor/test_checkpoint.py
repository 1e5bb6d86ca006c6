"""An intact checkpoint passes every check, and each defect is found by its check."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask.checkpoint import CheckpointConfig
from unmask.config import read_recipe
from unmask.doctor import CheckResult, checkpoint
from unmask.doctor.checkpoint import CheckpointCheck, describe_checkpoint
from unmask.errors import UnmaskError
from unmask.laws import exact
from unmask.models.dit import DiT
from unmask.objectives.subs import MaskCount
from unmask.pipeline import MaskedDiffusionLM, build_pipeline, load
from unmask.training import train

TEXT = "some text of some tokens"


@pytest.fixture
def lm(mdlm_folder) -> MaskedDiffusionLM:
    """A model that the test may damage."""
    return load(mdlm_folder, device="cpu")


@pytest.fixture
def causal(ar_folder) -> MaskedDiffusionLM:
    return load(ar_folder, device="cpu")


def check(lm: MaskedDiffusionLM, text: str | None = TEXT) -> dict[str, CheckResult]:
    return {result.name: result for result in CheckpointCheck(lm, text).run()}


def failed(lm: MaskedDiffusionLM, text: str | None = TEXT) -> set[str]:
    return {name for name, result in check(lm, text).items() if result.passed is False}


def not_applicable(results: dict[str, CheckResult]) -> set[str]:
    return {name for name, result in results.items() if result.passed is None}


def with_card(lm: MaskedDiffusionLM, **changes: object) -> MaskedDiffusionLM:
    card = CheckpointConfig(**{**lm.config.model_dump(), **changes})
    return build_pipeline(lm.denoiser, lm.tokenizer, card, lm.path)


def assert_passed(found: dict[str, CheckResult]) -> None:
    assert all(result.passed for result in found.values()), found


@pytest.mark.parametrize("text", [TEXT, None])
@pytest.mark.parametrize("which", ["lm", "causal"])
def test_an_intact_checkpoint_passes(which, text, request):
    found = check(request.getfixturevalue(which), text)
    assert_passed(found)
    assert len(found) == (13 if which == "lm" else 12)


def test_conditioned_and_half_precision_networks_pass(lm, tmp_path):
    found = check(load(make_checkpoint(tmp_path / "clock", conditioned=True, cond_dim=8), device="cpu"))
    assert_passed(found)
    assert "3,072 canvases" in found["bound is above the likelihood"].words
    lm.denoiser.to(torch.bfloat16)
    found = check(lm)
    assert_passed(found)
    assert found["logits do not depend on the batch"].limit >= 0.1


def test_likelihood_and_bound_are_enumerated(lm):
    checks = CheckpointCheck(lm, TEXT)
    assert checks.open.nonzero()[:, 0].tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    assert torch.equal(checks.canvas == 257, checks.open)
    assert torch.equal(checks.canvas[~checks.open], checks.ids[~checks.open])
    nll = float(exact.any_order(lm.denoiser, checks.ids[None], checks.open).nll)
    bound = float(exact.continuous_bound(lm.denoiser, checks.ids[None], checks.open).sum())
    result = check(lm)["bound is above the likelihood"]
    assert f"-log p = {nll:.4f} exactly, bound {bound:.4f} (8 positions open, 256 canvases)" in result.words
    assert result.value == pytest.approx(nll - bound, abs=1e-6)
    assert "in 128 draws" in check(lm)["mask-count estimate agrees"].words


def test_an_unlucky_estimate_is_drawn_once_more(lm, monkeypatch):
    bound, seeds = checkpoint.estimate_bound, []

    def unlucky(*args, seed, **kwargs):
        seeds.append(seed)
        made = bound(*args, seed=seed, **kwargs)
        return replace(made, nats=1.0) if seed == 0 else made

    monkeypatch.setattr(checkpoint, "estimate_bound", unlucky)
    assert failed(lm) == set()
    assert seeds == [0, 1, 0, 1]


def test_weights_that_are_not_finite_are_named(lm):
    with torch.no_grad():
        lm.denoiser.blocks[1].attn_qkv.weight[0, 0] = math.nan
    found = check(lm)
    assert found["weights are finite"].value == 1
    assert "blocks.1.attn_qkv.weight" in found["weights are finite"].words
    assert failed(lm) == {"weights are finite"}
    assert found["mask-count estimate agrees"].words == "the weights are damaged"
    json.dumps([result.as_dict() for result in found.values()], allow_nan=False)


def ignore_padding(hidden):
    return lambda self, ids, alpha=None, attention_mask=None: hidden(self, ids, alpha)


def mix_the_batch(hidden):
    def mixed(self, *args, **kwargs):
        rows = hidden(self, *args, **kwargs)
        return rows - rows.mean(dim=0, keepdim=True) if len(rows) > 1 else rows

    return mixed


def keep_state(hidden):
    seen = [0]

    def remembering(self, ids, *args, **kwargs):
        rows = hidden(self, ids, *args, **kwargs) * (1 + seen[-1] / 1000)
        seen.append(int(ids[0, 0]))
        return rows

    return remembering


def predict_the_mask(head):
    return lambda self, rows, mask_logit=False: head(self, rows, mask_logit=True)


@pytest.mark.parametrize(
    ("method", "damage", "name"),
    [
        ("hidden", ignore_padding, "logits do not depend on padding"),
        ("hidden", mix_the_batch, "logits do not depend on the batch"),
        ("hidden", keep_state, "logits are reproducible"),
        ("head", predict_the_mask, "mask has probability zero"),
    ],
)
def test_a_damaged_network_is_found(lm, monkeypatch, method, damage, name):
    monkeypatch.setattr(DiT, method, damage(getattr(DiT, method)))
    found = failed(lm)
    assert name in found
    assert found == {name} or method == "hidden"


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_wrong_weight_is_found(lm, monkeypatch, factor):
    loss = MaskCount.terms

    def wrong(self, *args):
        terms = loss(self, *args)
        return type(terms)(**{**vars(terms), "diffusion": factor * terms.diffusion})

    monkeypatch.setattr(MaskCount, "terms", wrong)
    below = {"estimates are above the likelihood"} if factor < 1 else set()
    assert failed(lm) == {"mask-count estimate agrees"} | below


def test_another_tokenizer_is_found(lm):
    lm.tokenizer.add_tokens(["unheard-of"])
    assert failed(lm) == {"vocabulary fits"}
    lm.tokenizer.mask_token = "[EOS]"
    found = check(lm, None)["mask tokens agree"]
    assert found.passed is False
    assert found.words == "256 in the tokenizer, 257 in config.json"


def test_a_tokenizer_that_changes_the_text_is_found(lm, monkeypatch):
    monkeypatch.setattr(lm.tokenizer, "decode", lambda ids, **options: TEXT + "!!")
    assert check(lm)["tokenizer round trip"].value == 2
    monkeypatch.undo()
    lm.tokenizer.backend_tokenizer.decoder = None
    assert failed(lm) == {"tokenizer round trip"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": LENGTH + 1}, f"rows of {LENGTH + 1} tokens for a network of {LENGTH}"),
        ({"objective": "d3pm"}, "mask_logit=False for the objective d3pm"),
        ({"policy": "supervised_eos"}, "the policy supervised_eos for a tokenizer without EOS"),
    ],
)
def test_a_config_of_another_network_is_found(lm, changes, words):
    lm.tokenizer.eos_token = None
    result = check(with_card(lm, **changes))["unmask.json fits"]
    assert (result.passed, result.words) == (False, words)


def test_objectives_of_another_process_are_not_compared(lm):
    """SEDD's bound of unnormalised scores is far above the likelihood, which is correct."""
    stepped = with_card(lm, objective={"name": "d3pm", "steps": 8, "carry_over": True, "zero_masking": True})
    result = check(stepped)["estimates are above the likelihood"]
    assert result.passed is None
    assert "few steps" in result.words
    found = check(with_card(lm, objective="sedd"))
    assert_passed(found)
    assert "sedd" in found["estimates are above the likelihood"].words
    lm.denoiser.config.mask_logit = True
    found = check(with_card(lm, objective="d3pm"))
    assert not_applicable(found) == {"mask has probability zero", "estimates are above the likelihood"}
    assert not any(result.passed is False for result in found.values())


def test_a_causal_network_that_sees_ahead_is_found(causal, monkeypatch):
    from unmask.models import causal as module
    from unmask.models.attention import bidirectional_mask

    monkeypatch.setattr(
        module, "causal_mask", lambda length, past, attention_mask, device: bidirectional_mask(attention_mask)
    )
    assert "score is the sum of conditionals" in failed(causal)


def test_a_cache_with_wrong_positions_is_found(causal, monkeypatch):
    from unmask.models.attention import StaticCache

    seek = StaticCache.seek
    monkeypatch.setattr(StaticCache, "seek", lambda self, position, length: seek(self, 0, length))
    assert failed(causal) == {"generation agrees with score"}


def test_a_check_that_raises_has_failed(lm, monkeypatch):
    def broken(self, rows, mask_logit=False):
        raise RuntimeError("no kernel for this\nmore of it")

    monkeypatch.setattr(DiT, "head", broken)
    found = check(lm)
    assert found["logits are finite"].passed is False
    assert found["logits are finite"].words == "the check raised RuntimeError: no kernel for this"
    assert found["weights are finite"].passed


def test_random_tokens_are_used_without_a_tokenizer(lm):
    bare = MaskedDiffusionLM(lm.denoiser, None, lm.config)
    checks = CheckpointCheck(bare)
    assert checks.text is None
    assert lm.denoiser.config.mask_token_id not in checks.ids
    assert not_applicable(check(bare, None)) == {"tokenizer round trip", "mask tokens agree", "vocabulary fits"}
    with pytest.raises(UnmaskError, match="tokenizer"):
        CheckpointCheck(bare, TEXT)
    lm.denoiser.config.mask_token_id = 100
    drawn = checks._random_tokens(100, LENGTH, seed=0).unique().tolist()
    assert drawn == [token for token in range(258) if token != 100]


def test_texts_of_every_length_are_checked(lm, causal):
    assert check(lm, "x" * LENGTH)["logits do not depend on padding"].passed is None
    assert "2 pads" in check(lm, "x" * (LENGTH - 2))["logits do not depend on padding"].words
    assert "(3 positions open, 8 canvases)" in check(lm, "abc")["bound is above the likelihood"].words
    assert check(causal, "a")["generation agrees with score"].passed is None
    assert check(causal, "a")["score is the sum of conditionals"].passed


def test_without_a_begin_token_the_first_position_is_not_counted(tmp_path):
    model = load(make_checkpoint(tmp_path / "bare", model="causal"), device="cpu")
    model.denoiser.config.bos_token_id = None
    found = check(model)
    assert_passed(found)
    assert "(7 positions open)" in found["score is the sum of conditionals"].words
    assert CheckpointCheck(model).text is None


def test_a_checkpoint_is_described(lm, tmp_path):
    found = describe_checkpoint(lm)
    assert found["network"] == "DiT"
    assert found["parameters"] == sum(parameter.numel() for parameter in lm.denoiser.parameters())
    assert (found["schedule"], found["objective"], found["policy"]) == ("loglinear", "subs", "packed")
    assert (found["vocabulary"], found["mask_token_id"], found["length"]) == (258, 257, LENGTH)
    assert found["tokenizer"]["eos_token_id"] == 256
    assert found["steps"] is None
    small = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=16", "training.validation_rows=2"]
    source = "data.source={name: markov, count: 60}"
    train(read_recipe("demo", [*small, source, "training.steps=3", "training.batch_size=2"]), tmp_path / "run")
    assert describe_checkpoint(load(tmp_path / "run", device="cpu"))["steps"] == 3
