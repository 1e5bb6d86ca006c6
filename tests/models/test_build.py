"""Networks from specs and checkpoints: sizes, LoRA adapters and absolute positions."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask import registry
from unmask.convert.exporting import published_state
from unmask.errors import UnmaskError
from unmask.models import CausalLM, CheckpointSpec, Denoiser, DiTSpec
from unmask.models.build import LoraConfig, add_lora, merged_state_dict
from unmask.pipeline import load

V, WIDTH, LAYERS = 11, 16, 2
IDS = torch.tensor([[1, 2, 10, 4, 10, 6], [10, 10, 3, 4, 5, 0]])


def network(**options: Any) -> Any:
    """A random network without dropout."""
    torch.manual_seed(0)
    shape = {"size": "nano", "hidden_size": WIDTH, "layers": LAYERS, "heads": 2, "dropout": 0.0, **options}
    net = DiTSpec(**shape).build(V, V - 1, 8).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return net


def logits(net: Any) -> torch.Tensor:
    with torch.no_grad():
        return net.head(net.hidden(IDS), mask_logit=True)


def perturb(net: Any) -> None:
    """Change the trainable parameters."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))


def test_specs_build_networks_of_their_size():
    model = registry.build("model", {"name": "dit", "size": "nano"}).build(65, 64, 32)
    assert isinstance(model, Denoiser)
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (4, 128, 4)
    assert (config.vocab_size, config.mask_token_id, config.max_length) == (65, 64, 32)
    assert (config.conditioned, config.mask_logit, config.dropout) == (False, False, 0.1)
    spec = DiTSpec(size="nano", layers=2, hidden_size=64, heads=2, dropout=0.0, conditioned=True, cond_dim=8)
    config = spec.build(65, 3, 32, mask_logit=True).config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (2, 64, 2)
    assert (config.conditioned, config.cond_dim, config.mask_logit, config.dropout) == (True, 8, True, 0.0)
    assert type(registry.build("model", {"name": "causal", "size": "nano"}).build(65, 64, 32)) is CausalLM
    with pytest.raises(UnmaskError, match="size"):
        registry.build("model", {"name": "dit", "size": "huge"})


def test_lora_changes_nothing_at_first_and_freezes_the_rest():
    plain = network()
    before = {name: parameter.clone() for name, parameter in plain.state_dict().items()}
    expected = logits(plain)
    adapted = add_lora(plain, LoraConfig(rank=3))
    assert torch.equal(logits(adapted), expected)
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in trained)
    per_layer = 3 * ((WIDTH + 3 * WIDTH) + (WIDTH + WIDTH) + 2 * (WIDTH + 4 * WIDTH))
    assert sum(p.numel() for p in trained.values()) == LAYERS * per_layer
    perturb(adapted)
    assert not torch.allclose(logits(adapted), expected, atol=1e-2)
    for name, parameter in adapted.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(parameter, before[name.replace(".base_layer", "")])


@pytest.mark.parametrize("conditioned", [False, True])
def test_merged_weights_compute_the_same_under_plain_names(conditioned):
    plain, adapted = network(conditioned=conditioned), network(conditioned=conditioned)
    assert merged_state_dict(plain).keys() == plain.state_dict().keys()
    adapted = add_lora(adapted, LoraConfig(rank=3, alpha=5.0))
    perturb(adapted)
    merged = merged_state_dict(adapted)
    assert sorted(merged) == sorted(plain.state_dict())
    plain.load_state_dict(merged)
    scale = float(logits(adapted).abs().max())
    torch.testing.assert_close(logits(plain), logits(adapted), rtol=1e-6, atol=1e-6 * scale)


def test_given_weights_are_merged_in_place_of_the_networks():
    adapted = add_lora(network(), LoraConfig(rank=2, alpha=4.0))
    state = {name: torch.randn_like(tensor) for name, tensor in adapted.state_dict().items()}
    merged = merged_state_dict(adapted, state)
    base = "blocks.1.mlp.0"
    factors = state[f"{base}.lora_B.default.weight"] @ state[f"{base}.lora_A.default.weight"]
    torch.testing.assert_close(merged[f"{base}.weight"], state[f"{base}.base_layer.weight"] + 2.0 * factors)
    assert torch.equal(merged[f"{base}.bias"], state[f"{base}.base_layer.bias"])
    assert torch.equal(merged["vocab_embed.embedding"], state["vocab_embed.embedding"])


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        (None, {"attn_qkv", "attn_out", "mlp.0", "mlp.2"}),
        (["attn_qkv"], {"attn_qkv"}),
        (["mlp.2", "adaLN_modulation"], {"mlp.2", "adaLN_modulation"}),
    ],
)
def test_targets_choose_the_matrices_of_every_block(targets, adapted):
    net = add_lora(network(conditioned=True), LoraConfig(targets=targets))
    trained = {name.partition(".lora_")[0] for name, p in net.named_parameters() if p.requires_grad}
    assert trained == {f"blocks.{block}.{name}" for block in range(LAYERS) for name in adapted}


def test_an_unknown_target_is_refused_with_a_suggestion():
    with pytest.raises(UnmaskError, match=r"no matrix 'attn_qvk' for model\.lora\.targets\. Did you mean 'attn_qkv'"):
        add_lora(network(), LoraConfig(targets=["attn_qvk"]))


def test_without_peft_the_install_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UnmaskError, match=r"needs the package peft; run: pip install 'unmask\[lora\]'"):
        add_lora(network(), LoraConfig())


def test_absolute_positions_are_added_to_a_trained_network_without_effect(tmp_path):
    folder = make_checkpoint(tmp_path / "model")
    old = load(folder, device="cpu").denoiser
    new = CheckpointSpec(path=str(folder), absolute_positions=True).build(258, 257, LENGTH)
    assert not new.position_embed.gain.any()
    ids = torch.randint(0, 258, (2, LENGTH))
    assert torch.equal(new.eval().hidden(ids), old.hidden(ids))


def test_absolute_positions_are_saved_and_cannot_be_exported(tmp_path):
    lm = load(make_checkpoint(tmp_path / "model", absolute_positions=True), device="cpu")
    assert bool(lm.denoiser.position_embed.gain.any())
    assert all(len(text) for text in lm.generate(2, length=16, steps=4))
    with pytest.raises(UnmaskError, match="absolute positions"):
        published_state(lm.denoiser)


def test_learned_positions_are_saved_and_have_a_length(tmp_path):
    folder = make_checkpoint(tmp_path / "model", learned_positions=True)
    lm = load(folder, device="cpu")
    assert lm.denoiser.learned_positions.weight.std() > 0.01
    assert all(len(text) for text in lm.generate(2, length=16, steps=4))
    with pytest.raises(UnmaskError, match="learned positions"):
        published_state(lm.denoiser)
    longer = lm.denoiser.config.max_length + 1
    with pytest.raises(UnmaskError, match=f"data.length must be at most {longer - 1}, .*got {longer}"):
        CheckpointSpec(path=str(folder)).build(258, 257, longer)
