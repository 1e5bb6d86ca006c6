"""LoRA: at first it changes nothing, then its factors alone learn, and merged weights are the same function."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from unmask.errors import UnmaskError
from unmask.models import DiTSpec
from unmask.models.build import LoraConfig, add_lora, merged_state_dict

VOCABULARY, WIDTH, LAYERS = 11, 16, 2
IDS = torch.tensor([[1, 2, 10, 4, 10, 6], [10, 10, 3, 4, 5, 0]])


def network(**options: Any) -> Any:
    """A network that says something, without dropout."""
    torch.manual_seed(0)
    shape = {"size": "nano", "hidden_size": WIDTH, "layers": LAYERS, "heads": 2, "dropout": 0.0, **options}
    net = DiTSpec(**shape).build(VOCABULARY, VOCABULARY - 1, 8).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return net


def logits(net: Any) -> torch.Tensor:
    with torch.no_grad():
        return net.head(net.hidden(IDS), mask_logit=True)


def disturb(net: Any) -> None:
    """Move what learns."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))


def test_factors_change_nothing_at_first_and_learn_alone() -> None:
    plain = network()
    before = {name: parameter.clone() for name, parameter in plain.state_dict().items()}
    expected = logits(plain)
    adapted = add_lora(plain, LoraConfig(rank=3))
    assert torch.equal(logits(adapted), expected)
    learning = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in learning)
    per_layer = 3 * ((WIDTH + 3 * WIDTH) + (WIDTH + WIDTH) + 2 * (WIDTH + 4 * WIDTH))
    assert sum(p.numel() for p in learning.values()) == LAYERS * per_layer
    disturb(adapted)
    assert not torch.allclose(logits(adapted), expected, atol=1e-2)
    for name, parameter in adapted.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(parameter, before[name.replace(".base_layer", "")])


@pytest.mark.parametrize("conditioned", [False, True])
def test_merged_weights_are_the_same_function_under_plain_names(conditioned: bool) -> None:
    names = list(network(conditioned=conditioned).state_dict())
    adapted = add_lora(network(conditioned=conditioned), LoraConfig(rank=3, alpha=5.0))
    disturb(adapted)
    merged = merged_state_dict(adapted)
    assert sorted(merged) == sorted(names)
    plain = network(conditioned=conditioned)
    plain.load_state_dict(merged)
    torch.testing.assert_close(
        logits(plain), logits(adapted), rtol=1e-6, atol=1e-6 * float(logits(adapted).abs().max())
    )


def test_merging_takes_weights_from_elsewhere() -> None:
    adapted = add_lora(network(), LoraConfig(rank=2, alpha=4.0))
    state = {name: torch.randn_like(tensor) for name, tensor in adapted.state_dict().items()}
    merged = merged_state_dict(adapted, state)
    base = "blocks.1.mlp.0"
    factors = state[f"{base}.lora_B.default.weight"] @ state[f"{base}.lora_A.default.weight"]
    torch.testing.assert_close(merged[f"{base}.weight"], state[f"{base}.base_layer.weight"] + 2.0 * factors)
    assert torch.equal(merged[f"{base}.bias"], state[f"{base}.base_layer.bias"])
    assert torch.equal(merged["vocab_embed.embedding"], state["vocab_embed.embedding"])


def test_a_network_without_factors_is_merged_already() -> None:
    net = network()
    merged = merged_state_dict(net)
    assert merged.keys() == net.state_dict().keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(
    ("targets", "touched"),
    [
        (None, {"attn_qkv", "attn_out", "mlp.0", "mlp.2"}),
        (["attn_qkv"], {"attn_qkv"}),
        (["mlp.2", "adaLN_modulation"], {"mlp.2", "adaLN_modulation"}),
    ],
)
def test_targets_choose_the_matrices_of_every_block(targets: list[str] | None, touched: set[str]) -> None:
    adapted = add_lora(network(conditioned=True), LoraConfig(targets=targets))
    learning = {name.partition(".lora_")[0] for name, p in adapted.named_parameters() if p.requires_grad}
    assert learning == {f"blocks.{block}.{name}" for block in range(LAYERS) for name in touched}


def test_an_unknown_target_is_answered_with_the_near_one() -> None:
    with pytest.raises(UnmaskError, match=r"no matrix 'attn_qvk' for model\.lora\.targets\. Did you mean 'attn_qkv'"):
        add_lora(network(), LoraConfig(targets=["attn_qvk"]))


def test_without_peft_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnmaskError, match=r"needs the package peft; install it with pip install 'unmask\[lora\]'"):
        add_lora(network(), LoraConfig())
