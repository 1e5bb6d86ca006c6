"""The diffusion transformer against a re-implementation without modules, its published sizes, and its interface."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from unmask.errors import UnmaskError
from unmask.models import SIZES, DiT, DiTConfig

torch.set_num_threads(1)

V, MASK, D, HEADS, BLOCKS, L = 23, 21, 32, 4, 2, 12
VARIANTS = pytest.mark.parametrize("conditioned", [False, True], ids=["unconditioned", "conditioned"])


def make(conditioned: bool = True, seed: int = 0, **options: object) -> DiT:
    """A small network with random parameters."""
    fields = {"vocab_size": V, "mask_token_id": MASK, "hidden_size": D, "num_hidden_layers": BLOCKS}
    fields |= {"num_attention_heads": HEADS, "max_length": L, "cond_dim": 16, "conditioned": conditioned}
    model = DiT(DiTConfig(**(fields | options)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if "norm" in name and "weight" in name else 0.3 * noise)
    return model.eval()


def some_ids(batch: int = 3, length: int = L, seed: int = 1) -> Tensor:
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def reference(w: dict[str, Tensor], ids: Tensor, sigma: Tensor) -> Tensor:
    """Log-probabilities [B, L, V] of the published conditioned network, computed from its weights."""
    batch, length = ids.shape
    head = D // HEADS

    def normed(x: Tensor, name: str, shift: Tensor, scale: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"]
        return x * (1 + scale) + shift

    def modulation(name: str) -> tuple[Tensor, ...]:
        return (c @ w[f"{name}.weight"].T + w[f"{name}.bias"])[:, None].split(D, dim=-1)

    def rotated(x: Tensor) -> Tensor:
        """Positions as complex rotations of (x_i, x_{i + d/2})."""
        rate = 10_000.0 ** (-torch.arange(0, head, 2) / head)
        turn = torch.polar(torch.tensor(1.0), torch.arange(length)[:, None] * rate)[:, None]
        z = torch.complex(x[..., : head // 2], x[..., head // 2 :]) * turn
        return torch.cat((z.real, z.imag), dim=-1)

    rates = torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    features = torch.cat([(sigma[:, None] * rates).cos(), (sigma[:, None] * rates).sin()], dim=-1)
    c = F.silu(features @ w["sigma_map.mlp.0.weight"].T + w["sigma_map.mlp.0.bias"])
    c = F.silu(c @ w["sigma_map.mlp.2.weight"].T + w["sigma_map.mlp.2.bias"])
    x = w["vocab_embed.embedding"][ids]
    for i in range(BLOCKS):
        block = f"blocks.{i}"
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation(f"{block}.adaLN_modulation")
        y = normed(x, f"{block}.norm1", shift1, scale1) @ w[f"{block}.attn_qkv.weight"].T
        q, k, v = y.view(batch, length, 3, HEADS, head).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", rotated(q), rotated(k)) / math.sqrt(head)
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(batch, length, D)
        x = x + gate1 * (y @ w[f"{block}.attn_out.weight"].T)
        y = normed(x, f"{block}.norm2", shift2, scale2) @ w[f"{block}.mlp.0.weight"].T + w[f"{block}.mlp.0.bias"]
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + gate2 * (y @ w[f"{block}.mlp.2.weight"].T + w[f"{block}.mlp.2.bias"])
    shift, scale = modulation("output_layer.adaLN_modulation")
    logits = normed(x, "output_layer.norm_final", shift, scale) @ w["output_layer.linear.weight"].T
    open_tokens = torch.arange(V) != MASK
    return (logits + w["output_layer.linear.bias"]).masked_fill(~open_tokens, -math.inf).log_softmax(-1)


def test_conditioned_network_equals_the_reference() -> None:
    model, ids, alpha = make(), some_ids(), torch.tensor([0.03, 0.5, 0.98])
    sigma = -torch.log(1e-3 + (1 - 1e-3) * alpha)
    weights = dict(model.state_dict())
    for given, sigma_of in ((alpha, sigma), (None, torch.zeros(3))):
        ours = model(ids, given).logits.log_softmax(-1)
        torch.testing.assert_close(ours, reference(weights, ids, sigma_of), rtol=0, atol=1e-5)
    assert (reference(weights, ids, sigma) - reference(weights, ids, torch.zeros(3)))[..., 0].abs().max() > 0.1


def test_alpha_one_is_sigma_zero() -> None:
    model, ids = make(), some_ids()
    torch.testing.assert_close(model.hidden(ids, torch.ones(3)), model.hidden(ids), rtol=0, atol=1e-5)


def test_a_constant_modulation_folds_into_the_unconditioned_network() -> None:
    model, plain, ids = make(), make(conditioned=False, seed=5), some_ids()
    c = model._condition(None, ids.device)
    weights = dict(model.state_dict())

    def fold(norm: str, shift: Tensor, scale: Tensor) -> None:
        weights[f"{norm}.bias"], weights[f"{norm}.weight"] = shift, weights[f"{norm}.weight"] * (1 + scale)

    for i, block in enumerate(model.blocks):
        name = f"blocks.{i}"
        shift1, scale1, gate1, shift2, scale2, gate2 = block.adaLN_modulation(c)[0].chunk(6)
        fold(f"{name}.norm1", shift1, scale1)
        fold(f"{name}.norm2", shift2, scale2)
        weights[f"{name}.attn_out.weight"] = gate1[:, None] * weights[f"{name}.attn_out.weight"]
        weights[f"{name}.mlp.2.weight"] = gate2[:, None] * weights[f"{name}.mlp.2.weight"]
        weights[f"{name}.mlp.2.bias"] = gate2 * weights[f"{name}.mlp.2.bias"]
    fold("output_layer.norm_final", *model.output_layer.adaLN_modulation(c)[0].chunk(2))
    plain.load_state_dict({k: v for k, v in weights.items() if "adaLN" not in k and "sigma_map" not in k})
    torch.testing.assert_close(plain.hidden(ids), model.hidden(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "vocab_size", "parameters"),
    [
        ("small", 50_258, 169_627_218),
        ("small", 30_522, 139_290_000),
        ("small", 28, 92_420_000),
        ("medium", 50_258, 424_500_000),
        ("tiny", 50_258, 80_100_000),
    ],
)
def test_published_parameter_counts(size: str, vocab_size: int, parameters: int) -> None:
    with torch.device("meta"):
        model = DiT(DiTConfig(vocab_size=vocab_size, conditioned=True, **SIZES[size]))
    exact = sum(weight.numel() for weight in model.parameters())
    digits = len(str(parameters).rstrip("0"))
    assert float(f"{exact:.{digits - 1}e}") == parameters


def test_parameters_have_the_published_names_and_order() -> None:
    linear = ["weight", "bias"]
    block = ["norm1.weight", "attn_qkv.weight", "attn_out.weight", "norm2.weight"]
    block += [f"{part}.{kind}" for part in ("mlp.0", "mlp.2", "adaLN_modulation") for kind in linear]
    expected = ["vocab_embed.embedding", *(f"sigma_map.mlp.{i}.{kind}" for i in (0, 2) for kind in linear)]
    expected += [f"blocks.{i}.{name}" for i in range(BLOCKS) for name in block]
    expected += ["output_layer.norm_final.weight"]
    expected += [f"output_layer.{part}.{kind}" for part in ("linear", "adaLN_modulation") for kind in linear]
    assert [name for name, _ in make().named_parameters()] == expected
    assert list(make().state_dict()) == expected
    plain = [name for name in expected if "sigma_map" not in name and "adaLN" not in name]
    biases = [name.replace("weight", "bias") for name in plain if "norm" in name]
    assert sorted(name for name, _ in make(conditioned=False).named_parameters()) == sorted(plain + biases)


@VARIANTS
def test_fresh_networks_are_reproducible_and_start_at_zero_output(conditioned: bool) -> None:
    config = DiTConfig(
        vocab_size=V, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, conditioned=conditioned
    )
    torch.manual_seed(3)
    model = DiT(config).eval()
    torch.manual_seed(3)
    again = DiT(config)
    for first, second in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)
    weights = dict(model.named_parameters())
    zeros = {name for name, weight in weights.items() if not weight.any()}
    expected = {"output_layer.linear.weight", "output_layer.linear.bias"}
    if conditioned:
        expected |= {name for name in weights if "adaLN" in name}
    else:
        expected |= {name for name in weights if "attn_out" in name or "mlp.2" in name}
        expected |= {name for name in weights if "norm" in name and "bias" in name}
    assert zeros == expected
    for name, fan_in in {
        "vocab_embed.embedding": 64,
        "blocks.0.attn_qkv.weight": 64,
        "blocks.1.mlp.0.bias": 64,
    }.items():
        bound = weights[name].abs().max().item() * math.sqrt(fan_in)
        assert 0.95 < bound <= 1
    ids = some_ids()
    assert torch.equal(model.hidden(ids), model.output_layer.norm_final(model.vocab_embed(ids)))
    assert torch.equal(model(ids).logits[..., :-1], torch.zeros(3, L, V - 1))


def test_a_row_of_padding_stays_finite() -> None:
    model, ids = make(), some_ids()
    mask = torch.ones(3, L, dtype=torch.bool)
    mask[1] = False
    rows = model.hidden(ids, None, mask)
    torch.testing.assert_close(rows, model.hidden(ids), rtol=0, atol=1e-5)
    rows.sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_attention_has_no_mask_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    attention = F.scaled_dot_product_attention

    def spy(*args: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        seen.append((attn_mask is not None, is_causal))
        return attention(*args, attn_mask=attn_mask, is_causal=is_causal)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    make().hidden(some_ids())
    make().hidden(some_ids(), None, torch.ones(3, L))
    assert seen == [(False, False)] * BLOCKS + [(True, False)] * BLOCKS


def test_gradients_are_finite_and_zero_at_the_mask_token() -> None:
    model, ids = make(), some_ids()
    labels = torch.where(ids == MASK, -100, ids)
    model(ids, labels=labels).loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
    assert not model.output_layer.linear.weight.grad[MASK].any()
    assert not model.output_layer.linear.bias.grad[MASK].any()


def test_labels_of_minus_100_are_ignored() -> None:
    model, ids = make(), some_ids().clamp(max=MASK - 1)
    labels = ids.clone()
    labels[:, ::2] = -100
    output = model(ids, torch.full((3,), 0.5), labels=labels)
    picked = output.logits.log_softmax(-1)[:, 1::2].gather(-1, ids[:, 1::2, None])
    torch.testing.assert_close(output.loss, -picked.mean())
    assert model(ids).loss is None
    assert isinstance(model(ids, return_dict=False), tuple)


def test_dropout_applies_to_the_residual_branches_only() -> None:
    model, ids = make(conditioned=False, dropout=1.0).train(), some_ids()
    assert torch.equal(model.hidden(ids), model.output_layer.norm_final(model.vocab_embed(ids)))
    model = make(dropout=0.5)
    assert torch.equal(model.hidden(ids), make(dropout=0.0).hidden(ids))


@VARIANTS
def test_gradient_checkpointing_changes_no_gradient(conditioned: bool) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = make(conditioned, dropout=0.3).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert all(block.gradient_checkpointing for block in model.blocks)
        torch.manual_seed(0)
        model.hidden(some_ids(), torch.full((3,), 0.4)).square().sum().backward()
        gradients.append([w.grad for name, w in model.named_parameters() if "linear" not in name])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


@VARIANTS
def test_compiles_as_one_graph(conditioned: bool) -> None:
    model, ids, alpha = make(conditioned), some_ids(), torch.tensor([0.2, 0.4, 0.9])
    mask = torch.arange(L) < torch.tensor([[L], [7], [4]])
    torch._dynamo.reset()
    hidden = torch.compile(model.hidden, fullgraph=True, backend="eager")
    torch.testing.assert_close(hidden(ids, alpha, mask), model.hidden(ids, alpha, mask))
    torch.testing.assert_close(hidden(ids), model.hidden(ids))


def test_compiles_with_inductor() -> None:
    model, ids = make(num_hidden_layers=1), some_ids()
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model.hidden, fullgraph=True)(ids)
        torch.testing.assert_close(compiled, model.hidden(ids), rtol=0, atol=1e-5)


def test_passes_do_not_synchronise() -> None:
    """On the meta device every synchronisation (item, nonzero, a branch on data) is an error."""
    model, ids = make().to("meta"), torch.zeros(2, L, dtype=torch.long, device="meta")
    rows = model.hidden(ids, torch.ones(2, device="meta"), torch.ones(2, L, dtype=torch.bool, device="meta"))
    assert model.head(rows).shape == (2, L, V)


@VARIANTS
def test_the_residual_stream_has_the_dtype_of_autocast(conditioned: bool) -> None:
    model, ids, alpha = make(conditioned), some_ids(), torch.tensor([0.2, 0.4, 0.9])
    dtypes = set()
    norms = [module for name, module in model.named_modules() if "norm" in name]
    for norm in norms:
        norm.register_forward_hook(lambda _, inputs, output: dtypes.update({inputs[0].dtype, output.dtype}))
    exact = model(ids, alpha).logits.softmax(-1)
    assert dtypes == {torch.float32}
    dtypes.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(ids, alpha).logits
    assert len(norms) == 2 * BLOCKS + 1
    assert dtypes == {torch.bfloat16}
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float().softmax(-1), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, ids, alpha = make(), some_ids(), torch.tensor([0.2, 0.4, 0.9])
    exact = model(ids, alpha).logits.softmax(-1)
    logits = model.to(dtype)(ids, alpha).logits
    assert logits.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(logits.float().softmax(-1), exact, rtol=0, atol=tolerance)


def test_inputs_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(UnmaskError, match=rf"{L + 1} tokens.*at most {L};.*semi-autoregressive"):
        make().hidden(some_ids(length=L + 1))
    with pytest.raises(UnmaskError, match=r"attention_mask must have the shape .*got \(3, 5\)"):
        make().hidden(some_ids(), None, torch.ones(3, 5))


@VARIANTS
def test_auto_classes_load_the_same_network(conditioned: bool, tmp_path: Path) -> None:
    model, ids, alpha = make(conditioned, rope_base=500.0, dropout=0.2), some_ids(), torch.tensor([0.2, 0.4, 0.9])
    model.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert "auto_map" not in (tmp_path / "config.json").read_text()
    for auto in (AutoModelForMaskedLM, AutoModel):
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is DiT
        for name, weight in loaded.state_dict().items():
            assert torch.equal(weight, model.state_dict()[name])
        assert torch.equal(loaded(ids, alpha).logits, model(ids, alpha).logits)
    config = AutoConfig.from_pretrained(tmp_path)
    for field in ("vocab_size", "mask_token_id", "max_length", "conditioned", "cond_dim", "rope_base", "dropout"):
        assert getattr(config, field) == getattr(model.config, field)


def test_a_missing_weight_is_initialised_and_the_others_are_loaded(tmp_path: Path) -> None:
    model = make()
    weights = model.state_dict()
    missing = ["blocks.1.adaLN_modulation.weight", "blocks.0.mlp.0.bias"]
    model.save_pretrained(tmp_path, state_dict={name: w for name, w in weights.items() if name not in missing})
    loaded = DiT.from_pretrained(tmp_path).state_dict()
    for name, weight in weights.items():
        assert torch.equal(loaded[name], weight) != (name in missing)
    assert not loaded[missing[0]].any()
    assert 0 < loaded[missing[1]].abs().max() <= 1 / math.sqrt(D)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 30, "num_attention_heads": 4}, "hidden_size must be a multiple of 8 for 4 .*got 30"),
        ({"hidden_size": 12, "num_attention_heads": 4}, "hidden_size must be a multiple of 8 .*got 12"),
        ({"vocab_size": 10, "mask_token_id": 10}, "mask_token_id must be from 0 to 9 .*got 10"),
        ({"mask_token_id": -1}, "mask_token_id .*got -1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, got 0"),
        ({"dropout": 1.5}, r"dropout must be in \[0, 1\], got 1\.5"),
        ({"conditioned": True, "cond_dim": 0}, "cond_dim must be at least 1, got 0"),
    ],
)
def test_bad_configurations_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        DiTConfig(**fields)


def test_defaults_of_the_configuration() -> None:
    assert DiTConfig(vocab_size=28).mask_token_id == 27
    assert not list(make().buffers())


def test_mask_logit_and_integer_attention_masks() -> None:
    model, ids, mask = make(), some_ids(), torch.arange(L) < torch.tensor([[L], [7], [4]])
    logits = make(mask_logit=True)(ids).logits
    assert torch.equal(logits, model.head(model.hidden(ids), mask_logit=True))
    assert model(ids).logits[..., MASK].isneginf().all()
    assert torch.equal(model.hidden(ids, None, mask.long()), model.hidden(ids, None, mask))
