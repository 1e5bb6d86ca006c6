"""Autoregressive networks as denoisers: laws, shifted targets, annealed attention, Hugging Face decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from unmask import laws
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.errors import UnmaskError
from unmask.laws.models import LENGTH, MASK, V
from unmask.models import AdaptedSpec, CausalSpec, Decoder, DecoderConfig
from unmask.models.attention import AttentionAnnealing
from unmask.models.build import load_network

SMALL = {"num_key_value_heads": 2, "intermediate_size": 24}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": SMALL,
    "qwen2": {**SMALL, "tie_word_embeddings": True},
    "qwen3": {**SMALL, "head_dim": 8},
}


def decoder_fields(kind: str, **options: Any) -> dict[str, Any]:
    shape = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 2 * LENGTH}
    return {"model_type": kind, **shape, **tokens, **KINDS[kind], **options}


def hugging_face_folder(folder: Path, kind: str, **options: Any) -> Path:
    """A random causal LM as transformers saves it."""
    torch.manual_seed(0)
    config = DecoderConfig(decoder=decoder_fields(kind, **options)).decoder_config()
    config.is_causal = True
    network = AutoModelForCausalLM.from_config(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.save_pretrained(folder)
    return folder


def causal_folder(folder: Path, **options: Any) -> Path:
    """A random causal network of this package."""
    torch.manual_seed(0)
    spec = CausalSpec(size="nano", hidden_size=16, layers=2, heads=2, dropout=0.0, **options)
    network = spec.build(V, MASK, LENGTH + 1)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_checkpoint(folder, network, None, CheckpointConfig(objective="ar", length=LENGTH))
    return folder


def make_folder(folder: Path, kind: str) -> Path:
    return causal_folder(folder, qk_norm=True) if kind == "causal" else hugging_face_folder(folder, kind)


def causal_logits(folder: Path, kind: str, text: Tensor) -> Tensor:
    """Logits of every token of a text by the causal network itself: from the begin token and the tokens before."""
    if kind == "causal":
        network = load_network(folder, causal=True)
        begin = network.config.bos_token_id
    else:
        network, begin = AutoModelForCausalLM.from_pretrained(folder), 0
    ids = torch.cat([torch.full((len(text), 1), begin), text], dim=1)
    with torch.no_grad():
        return network.eval()(ids).logits[:, :-1]


@pytest.mark.parametrize("kind", ["causal", *KINDS])
def test_adapted_networks_obey_the_laws_of_denoisers(kind: str, tmp_path: Path) -> None:
    spec = AdaptedSpec(path=str(make_folder(tmp_path / "ar", kind)), annealing_steps=0)
    for case in laws.cases_of("model", spec):
        for result in case.run():
            result.require()


@pytest.mark.parametrize("kind", ["causal", *KINDS])
def test_at_the_first_step_an_adapted_network_computes_what_the_causal_one_does(kind: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "ar", kind)
    network = AdaptedSpec(path=str(folder), annealing_steps=10).build(V, MASK, LENGTH).eval()
    text = torch.tensor([[5, 6, 7, 8, 9], [1, 2, 3, 5, 0]])
    expected = causal_logits(folder, kind, text)
    others = torch.arange(V) != MASK
    network.annealing.seek(0, 0, network.device)
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        found = network.train().head(network.hidden(text), mask_logit=True)
        padded = network.hidden(text, attention_mask=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
        bidirectional = network.eval().head(network.hidden(text), mask_logit=True)
    torch.testing.assert_close(found[..., others], expected[..., others], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(network.head(padded, True)[0, :3], found[0, :3], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(bidirectional[:, 0], found[:, 0], atol=1e-3)


def test_without_a_begin_token_position_0_is_predicted_from_its_own_row() -> None:
    torch.manual_seed(0)
    plain = Decoder(DecoderConfig(decoder=decoder_fields("llama"), mask_token_id=MASK)).eval()
    shifted = Decoder(DecoderConfig(decoder=decoder_fields("llama"), mask_token_id=MASK, shifted=True)).eval()
    shifted.load_state_dict(plain.state_dict())
    text, positions = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[3, 0, 1]])
    with torch.no_grad():
        rows = plain.hidden(text)
        torch.testing.assert_close(shifted.hidden(text), rows[:, [0, 0, 1, 2]])
        torch.testing.assert_close(shifted.hidden_at(text, positions), rows[:, [2, 0, 0]])


def test_annealing_shows_a_growing_random_share_of_later_tokens() -> None:
    annealing, length, device = AttentionAnnealing(10), 60, torch.device("cpu")
    later = torch.ones(length, length, dtype=torch.bool).triu(1)

    def seen(step: int, seed: int = 3) -> Tensor:
        annealing.seek(step, seed, device)
        mask = annealing.mask(length, None).mask
        assert mask is not None
        assert mask[0, 0][~later].all()
        return mask[0, 0][later]

    assert not seen(0).any()
    for step in (2, 5, 9):
        assert abs(seen(step).float().mean() - step / 10) < 0.05
        assert torch.equal(seen(step), seen(step))
        assert not torch.equal(seen(step), seen(step, seed=4))
    assert not torch.equal(seen(5)[:100], seen(5).roll(1)[:100])
    annealing.seek(10, 3, device)
    assert annealing.mask(length, None).mask is None


def test_annealed_attention_never_sees_padding() -> None:
    annealing = AttentionAnnealing(10)
    annealing.seek(5, 0, torch.device("cpu"))
    attention = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    mask = annealing.mask(5, attention).mask
    assert mask is not None
    assert not mask[0, 0, :3, 3:].any()
    assert mask.any(dim=-1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_decoder_opens_with_the_auto_classes(kind: str, tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path / "ar", kind)
    network = AdaptedSpec(path=str(folder)).build(V + 1, V, LENGTH).eval()
    assert (network.config.vocab_size, network.config.mask_token_id) == (V + 1, V)
    save_checkpoint(tmp_path / "saved", network, None, CheckpointConfig(length=LENGTH))
    text = torch.tensor([[5, V, 7, V]])
    for opened in (AutoModelForMaskedLM.from_pretrained(tmp_path / "saved"), load_network(tmp_path / "saved", False)):
        with torch.no_grad():
            torch.testing.assert_close(opened.eval()(text).logits, network(text).logits)
    assert network(text, labels=text).loss.isinf()  # the mask token has no probability
    assert network(text, labels=text.masked_fill(text == V, -100)).loss.isfinite()


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    folder = causal_folder(tmp_path / "ar")
    with pytest.raises(UnmaskError, match="use the tokenizer of the checkpoint"):
        AdaptedSpec(path=str(folder)).build(V + 1, V, LENGTH)
    with pytest.raises(UnmaskError, match=r"data\.length must be at most 15, the positions of"):
        AdaptedSpec(path=str(hugging_face_folder(tmp_path / "gpt2", "gpt2"))).build(V, MASK, 16)
    with pytest.raises(UnmaskError, match=r"decoder\.model_type must be one of gpt2, llama"):
        DecoderConfig(decoder={"model_type": "bert"})
    with pytest.raises(UnmaskError, match=f"mask_token_id must be from 0 to {V - 1}, got 99"):
        DecoderConfig(decoder=decoder_fields("llama"), mask_token_id=99)
    network = Decoder(DecoderConfig(decoder=decoder_fields("llama"), mask_token_id=MASK))
    with pytest.raises(UnmaskError, match="takes at most 16"):
        network.hidden(torch.zeros(1, 17, dtype=torch.long))
