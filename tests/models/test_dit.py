"""The diffusion transformer: equal to the published network, its sizes, and its Hugging Face interface."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig

from tests.published import HEADS, published_forward, randomise
from unmask.errors import UnmaskError
from unmask.models import SIZES, DiT, DiTConfig

torch.set_num_threads(1)

V, MASK, D, BLOCKS, L = 23, 21, 32, 2, 12
VARIANTS = pytest.mark.parametrize("conditioned", [False, True], ids=["unconditioned", "conditioned"])


def make(conditioned: bool = True, **options: object) -> DiT:
    """A small network with random parameters."""
    fields = {"vocab_size": V, "mask_token_id": MASK, "hidden_size": D, "num_hidden_layers": BLOCKS}
    fields |= {"num_attention_heads": HEADS, "max_length": L, "cond_dim": 16, "conditioned": conditioned}
    return randomise(DiT(DiTConfig(**(fields | options))))


def some_ids(length: int = L) -> Tensor:
    return torch.randint(0, V, (3, length), generator=torch.Generator().manual_seed(1))


def test_conditioned_network_equals_the_published_one() -> None:
    model, ids, alpha = make(), some_ids(), torch.tensor([0.03, 0.5, 0.98])
    sigma = -torch.log(1e-3 + (1 - 1e-3) * alpha)
    weights = dict(model.state_dict())
    for given, sigma_of in ((alpha, sigma), (None, torch.zeros(3))):
        ours = model(ids, given).logits.log_softmax(-1).double()
        torch.testing.assert_close(ours, published_forward(weights, ids, MASK, sigma_of), rtol=0, atol=5e-5)
    difference = published_forward(weights, ids, MASK, sigma) - published_forward(weights, ids, MASK)
    assert difference[..., 0].abs().max() > 0.1
    modulated = make(conditioned=False, modulated=True)
    ours = modulated(ids, alpha).logits.log_softmax(-1).double()
    expected = published_forward(dict(modulated.state_dict()), ids, MASK, torch.zeros(3))
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-5)


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
    weights = dict(model.named_parameters())
    torch.manual_seed(3)
    assert all(torch.equal(weights[name], weight) for name, weight in DiT(config).named_parameters())
    zeros = {name for name, weight in weights.items() if not weight.any()}
    expected = {"output_layer.linear.weight", "output_layer.linear.bias"}
    if conditioned:
        expected |= {name for name in weights if "adaLN" in name}
    else:
        expected |= {name for name in weights if "attn_out" in name or "mlp.2" in name}
        expected |= {name for name in weights if "norm" in name and "bias" in name}
    assert zeros == expected
    for name in ("vocab_embed.embedding", "blocks.0.attn_qkv.weight", "blocks.1.mlp.0.bias"):
        assert 0.95 < weights[name].abs().max().item() * math.sqrt(64) <= 1
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


def test_labels_of_minus_100_are_ignored_and_the_mask_token_has_no_gradient() -> None:
    model, ids = make(), some_ids().clamp(max=MASK - 1)
    labels = ids.clone()
    labels[:, ::2] = -100
    output = model(ids, torch.full((3,), 0.5), labels=labels)
    picked = output.logits.log_softmax(-1)[:, 1::2].gather(-1, ids[:, 1::2, None])
    torch.testing.assert_close(output.loss, -picked.mean())
    output.loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
    assert not model.output_layer.linear.weight.grad[MASK].any()
    assert not model.output_layer.linear.bias.grad[MASK].any()
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
    hidden = torch.compile(model.hidden, fullgraph=True, backend="inductor" if conditioned else "eager")
    with torch.no_grad():
        for given in ((ids, alpha, mask), (ids,)):
            torch.testing.assert_close(hidden(*given), model.hidden(*given), rtol=0, atol=1e-5)


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
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.05)):
        logits = model.to(dtype)(ids, alpha).logits
        assert logits.dtype == dtype
        torch.testing.assert_close(logits.float().softmax(-1), exact, rtol=0, atol=tolerance)


def test_inputs_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(UnmaskError, match=rf"{L + 1} tokens.*at most {L};.*semi-autoregressive"):
        make().hidden(some_ids(length=L + 1))
    with pytest.raises(UnmaskError, match=r"attention_mask must have the shape .*got \(3, 5\)"):
        make().hidden(some_ids(), None, torch.ones(3, 5))


def test_a_saved_network_is_weights_and_a_config_without_code(tmp_path: Path) -> None:
    config = make(rope_base=500.0, dropout=0.2).config
    DiT(config).save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert "auto_map" not in (tmp_path / "config.json").read_text()
    loaded = AutoConfig.from_pretrained(tmp_path)
    for field in ("vocab_size", "mask_token_id", "max_length", "conditioned", "cond_dim", "rope_base", "dropout"):
        assert getattr(loaded, field) == getattr(config, field)


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


def test_learned_positions_replace_rotary_ones() -> None:
    model, ids = make(learned_positions=True), some_ids()
    order = torch.randperm(L, generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(model.hidden(ids)[:, order], model.hidden(ids[:, order]), atol=1e-3)
    assert torch.allclose(model.hidden_at(ids, order.expand(3, L)), model.hidden(ids)[:, order], atol=1e-5)
    torch.nn.init.zeros_(model.learned_positions.weight)
    assert torch.allclose(model.hidden(ids)[:, order], model.hidden(ids[:, order]), atol=1e-4)


def test_mask_logit_and_integer_attention_masks() -> None:
    model, ids, mask = make(), some_ids(), torch.arange(L) < torch.tensor([[L], [7], [4]])
    logits = make(mask_logit=True)(ids).logits
    assert torch.equal(logits, model.head(model.hidden(ids), mask_logit=True))
    assert model(ids).logits[..., MASK].isneginf().all()
    assert torch.equal(model.hidden(ids, None, mask.long()), model.hidden(ids, None, mask))
