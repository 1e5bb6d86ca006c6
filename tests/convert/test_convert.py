"""Converted networks compute what an independent forward pass of the published ones does; errors name their reason."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import unmask
from unmask.checkpoint import Checkpoint, CheckpointConfig, load_checkpoint, save_checkpoint
from unmask.convert import convert, export
from unmask.convert.importing import ConversionReport
from unmask.convert.layout import PublishedLayout
from unmask.data.tokenizers import ByteTokenizer
from unmask.errors import UnmaskError
from unmask.models import CausalLM, DiT, DiTConfig

torch.set_num_threads(1)

V, MASK, D, HEADS, BLOCKS, COND, L = 258, 257, 32, 4, 2, 8, 12
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s"]


def published_weights(seed: int, vocab: int = V, causal: bool = False) -> dict[str, Tensor]:
    """A published network with random weights, none of them silent, in the order of its parameters, without prefix."""
    shapes: dict[str, tuple[int, ...]] = {"vocab_embed.embedding": (vocab, D)}
    if not causal:
        shapes |= {"sigma_map.mlp.0.weight": (COND, 256), "sigma_map.mlp.0.bias": (COND,)}
        shapes |= {"sigma_map.mlp.2.weight": (COND, COND), "sigma_map.mlp.2.bias": (COND,)}
    for block in (f"blocks.{i}" for i in range(BLOCKS)):
        shapes |= {f"{block}.norm1.weight": (D,), f"{block}.attn_qkv.weight": (3 * D, D)}
        shapes |= {f"{block}.attn_out.weight": (D, D), f"{block}.norm2.weight": (D,)}
        shapes |= {f"{block}.mlp.0.weight": (4 * D, D), f"{block}.mlp.0.bias": (4 * D,)}
        shapes |= {f"{block}.mlp.2.weight": (D, 4 * D), f"{block}.mlp.2.bias": (D,)}
        if not causal:
            shapes |= {f"{block}.adaLN_modulation.weight": (6 * D, COND), f"{block}.adaLN_modulation.bias": (6 * D,)}
    shapes |= {"output_layer.norm_final.weight": (D,)}
    shapes |= {"output_layer.linear.weight": (vocab, D), "output_layer.linear.bias": (vocab,)}
    if not causal:
        shapes |= {
            "output_layer.adaLN_modulation.weight": (2 * D, COND),
            "output_layer.adaLN_modulation.bias": (2 * D,),
        }
    generator = torch.Generator().manual_seed(seed)
    noise = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + value if "norm" in name else value for name, value in noise.items()}


def as_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under its published keys, with the rotary buffer."""
    head = D // HEADS
    frequencies = torch.tensor([10_000.0 ** (-2 * i / head) for i in range(head // 2)])
    return {f"backbone.{name}": value for name, value in {**weights, "rotary_emb.inv_freq": frequencies}.items()}


def published_forward(w: dict[str, Tensor], ids: Tensor, sigma: float = 0.0, mask: int = MASK) -> Tensor:
    """Log-probabilities [B, L, V] of the published network in float64; without modulation, of the causal twin."""
    w = {name.removeprefix("backbone."): value.double() for name, value in w.items()}
    causal, length = "sigma_map.mlp.0.weight" not in w, ids.shape[1]
    angle = torch.outer(torch.arange(length).double(), w["rotary_emb.inv_freq"])
    rates = 10_000.0 ** (-torch.arange(128).double() / 128)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def modulation(name: str, parts: int) -> tuple[Tensor | float, ...]:
        if causal:
            return (0.0, 0.0, 1.0, 0.0, 0.0, 1.0)[:parts]
        features = torch.cat([torch.cos(sigma * rates), torch.sin(sigma * rates)])
        c = F.silu(linear(F.silu(linear(features, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
        return linear(c, f"{name}.adaLN_modulation").chunk(parts)

    def normed(x: Tensor, name: str, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        return F.layer_norm(x, (D,)) * w[f"{name}.weight"] * (1 + scale) + shift

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angle)[:, None]
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    x = w["vocab_embed.embedding"][ids]
    for block in (f"blocks.{i}" for i in range(BLOCKS)):
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation(block, 6)
        qkv = linear(normed(x, f"{block}.norm1", shift1, scale1), f"{block}.attn_qkv")
        q, k, v = qkv.reshape(*ids.shape, 3, HEADS, D // HEADS).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", turned(q), turned(k)) / math.sqrt(D // HEADS)
        if causal:
            scores = scores + torch.full((length, length), -math.inf, dtype=scores.dtype).triu(1)
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        x = x + gate1 * linear(mixed, f"{block}.attn_out")
        inner = F.gelu(linear(normed(x, f"{block}.norm2", shift2, scale2), f"{block}.mlp.0"), approximate="tanh")
        x = x + gate2 * linear(inner, f"{block}.mlp.2")
    logits = linear(normed(x, "output_layer.norm_final", *modulation("output_layer", 2)), "output_layer.linear")
    logits[..., mask] = -math.inf
    return logits.log_softmax(-1)


def some_ids(vocab: int = V, mask: int = MASK) -> Tensor:
    ids = torch.randint(0, vocab, (3, L), generator=torch.Generator().manual_seed(1))
    ids[:, ::3] = mask
    return ids


def log_probs(model: Any, ids: Tensor, alpha: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        logits = model(ids, alpha).logits if alpha is not None else model(ids).logits
    return logits.double().log_softmax(-1)


def same(found: Tensor, wanted: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


class Config(dict):
    """Stands for the configuration object that is pickled in real checkpoints; reading it must not need its class."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("foreign code ran")


class Hostile:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def lightning(path: Path, raw: dict[str, Tensor], ema: list[Tensor] | None = None, **more: Any) -> Path:
    """A checkpoint as the published trainer writes it."""
    tree: dict[str, Any] = {
        "epoch": 3,
        "state_dict": as_published(raw),
        "hyper_parameters": Config(model={"length": L}),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}}],
        **more,
    }
    if ema is not None:
        tree["ema"] = {"decay": 0.9999, "num_updates": 7, "shadow_params": ema}
    torch.save(tree, path)
    return path


def bare(path: Path, weights: dict[str, Tensor]) -> Path:
    save_file(weights, path) if path.suffix == ".safetensors" else torch.save(weights, path)
    return path


def folder(path: Path, weights: dict[str, Tensor], tokenizer: Any = None, **config: Any) -> Path:
    """A Hugging Face folder as published."""
    path.mkdir()
    save_file(as_published(weights), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "mdlm", **config}))
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


CONFIG = {"vocab_size": V, "hidden_dim": D, "n_blocks": BLOCKS, "n_heads": HEADS, "cond_dim": COND, "model_length": L}


def byte_tokenizer() -> Any:
    return ByteTokenizer().build(lambda: iter(()))


def converted(src: Path, **options: Any) -> tuple[ConversionReport, Checkpoint]:
    dst = src.parent / "converted"
    report = convert(src, dst, **{"tokenizer": "byte", "length": L, **options})
    return report, load_checkpoint(dst)


@pytest.mark.parametrize(
    ("vocab_size", "hidden_size", "layers", "millions"),
    [(50_258, 768, 12, 169.63), (30_522, 768, 12, 139.29), (28, 768, 12, 92.42), (50_258, 1024, 24, 424.5)],
    ids=["gpt2", "bert", "text8", "medium"],
)
def test_the_layout_has_the_published_number_of_parameters(
    vocab_size: int, hidden_size: int, layers: int, millions: float
) -> None:
    layout = PublishedLayout(vocab_size, hidden_size, layers, mlp_ratio=4, cond_dim=128)
    count = sum(math.prod(shape) for shape in layout.parameters().values())
    assert round(count / 1e6, 1 if millions > 400 else 2) == millions


def test_folded_network_equals_the_published_one_at_sigma_zero(tmp_path: Path) -> None:
    raw = published_weights(0)
    report, loaded = converted(bare(tmp_path / "w.safetensors", as_published(raw)))
    assert isinstance(loaded.model, DiT)
    assert not loaded.model.config.conditioned
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))
    assert (report.network, report.conditioned, report.heads, report.mask_token_id) == ("dit", False, HEADS, MASK)
    assert report.parameters == sum(weight.numel() for weight in loaded.model.parameters())


def test_the_modulation_of_the_test_is_not_silent() -> None:
    weights = as_published(published_weights(0))
    at_zero = published_forward(weights, some_ids())
    other = published_forward({**weights, "backbone.sigma_map.mlp.2.bias": torch.ones(COND)}, some_ids())
    assert (other - at_zero)[..., :MASK].abs().max() > 0.5
    assert (published_forward(weights, some_ids(), sigma=2.0) - at_zero)[..., :MASK].abs().max() > 0.1


def test_conditioned_network_is_kept_unchanged(tmp_path: Path) -> None:
    raw = published_weights(0)
    report, loaded = converted(bare(tmp_path / "w.pt", as_published(raw)), time_conditioning=True)
    assert report.conditioned
    assert loaded.model.config.conditioned
    assert all(torch.equal(loaded.model.state_dict()[name], raw[name]) for name in raw)
    for alpha in (0.05, 0.6, 1.0):
        sigma = -math.log(1e-3 + (1 - 1e-3) * alpha)
        wanted = published_forward(as_published(raw), some_ids(), sigma)
        same(log_probs(loaded.model, some_ids(), torch.full((3,), alpha)), wanted)


def test_network_without_modulation_is_the_causal_twin(tmp_path: Path) -> None:
    raw = published_weights(0, causal=True)
    report, loaded = converted(bare(tmp_path / "w.pt", as_published(raw)))
    assert isinstance(loaded.model, CausalLM)
    assert loaded.model.config.bos_token_id is None
    assert loaded.config.objective.name == report.objective == "ar"
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))


@pytest.mark.parametrize("which", ["ema", "raw"])
@pytest.mark.parametrize("causal", [False, True], ids=["dit", "causal"])
def test_lightning_checkpoint_gives_the_weights_that_are_asked_for(tmp_path: Path, which: Any, causal: bool) -> None:
    raw, ema = published_weights(0, causal=causal), published_weights(1, causal=causal)
    source = lightning(tmp_path / "last.ckpt", raw, list(ema.values()))
    report, loaded = converted(source, weights=which)
    wanted = published_forward(as_published(ema if which == "ema" else raw), some_ids())
    same(log_probs(loaded.model, some_ids()), wanted)
    assert report.weights == loaded.config.protocol["weights"] == which
    assert loaded.config.protocol["converted_from"] == "last.ckpt"
    assert (loaded.config.schedule.name, loaded.config.policy.name, loaded.config.length) == ("loglinear", "packed", L)


def test_hostile_hyper_parameters_do_not_run_and_do_not_hinder(tmp_path: Path) -> None:
    raw, canary = published_weights(0), tmp_path / "canary"
    hostile = {"hyper_parameters": Config(tokenizer=Hostile(canary)), "callbacks": [Hostile(canary)]}
    source = lightning(tmp_path / "last.ckpt", raw, list(raw.values()), **hostile)
    _, loaded = converted(source)
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))
    assert not canary.exists()


def test_what_the_trainer_keeps_beside_the_network_is_left_out(tmp_path: Path) -> None:
    raw = published_weights(0)
    beside = {"noise.sigma_max": torch.tensor(1.0), "valid_metrics.nll.weight": torch.tensor(0.0)}
    source = lightning(tmp_path / "a.ckpt", raw, state_dict={**as_published(raw), **beside})
    _, loaded = converted(source, weights="raw")
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors"])
@pytest.mark.parametrize("prefix", [True, False], ids=["prefix", "plain"])
def test_bare_state_dict_of_every_kind(tmp_path: Path, suffix: str, prefix: bool) -> None:
    raw = published_weights(0)
    weights = as_published(raw) if prefix else raw
    report, loaded = converted(bare(tmp_path / f"w{suffix}", weights), heads=HEADS)
    assert report.weights == "as stored"
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))


def test_hugging_face_folder_tells_heads_length_and_tokenizer(tmp_path: Path) -> None:
    raw = published_weights(0)
    source = folder(tmp_path / "published", raw, byte_tokenizer(), **CONFIG, dropout=0.25)
    report = convert(source, tmp_path / "converted")
    loaded = load_checkpoint(tmp_path / "converted")
    assert (report.heads, report.length, loaded.model.config.dropout) == (HEADS, L, 0.25)
    assert loaded.tokenizer.mask_token_id == MASK
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))


def test_hugging_face_folder_with_pickled_weights(tmp_path: Path) -> None:
    raw, source = published_weights(0), tmp_path / "published"
    source.mkdir()
    torch.save(as_published(raw), source / "pytorch_model.bin")
    _, loaded = converted(source)
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))


def test_a_config_that_says_time_conditioning_keeps_it(tmp_path: Path) -> None:
    source = folder(tmp_path / "published", published_weights(0), **CONFIG, time_conditioning=True)
    report, _ = converted(source)
    assert report.conditioned


def test_a_length_of_ones_own_does_not_shorten_the_network(tmp_path: Path) -> None:
    source = folder(tmp_path / "published", published_weights(0), **CONFIG)
    report, loaded = converted(source, length=5)
    assert (report.length, loaded.config.length, loaded.model.config.max_length) == (5, 5, L)


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    raw = {name: weight.bfloat16() for name, weight in published_weights(0).items()}
    _, loaded = converted(bare(tmp_path / "w.pt", as_published(raw)))
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    same(log_probs(loaded.model, some_ids()), published_forward(as_published(raw), some_ids()))


def test_mask_token_inside_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(WORDS))
    raw, mask = published_weights(0, vocab=len(WORDS)), WORDS.index("[MASK]")
    report, loaded = converted(bare(tmp_path / "w.pt", as_published(raw)), tokenizer=tmp_path / "words")
    assert report.mask_token_id == loaded.model.config.mask_token_id == loaded.tokenizer.mask_token_id == mask
    ids = some_ids(len(WORDS), mask)
    same(log_probs(loaded.model, ids), published_forward(as_published(raw), ids, mask=mask))


def test_a_tokenizer_object_without_mask_gets_one_behind_its_tokens(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS[5:])}, unk_token="the"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    raw = published_weights(0, vocab=len(WORDS[5:]) + 1)
    report, loaded = converted(bare(tmp_path / "w.pt", as_published(raw)), tokenizer=tokenizer)
    assert report.mask_token_id == loaded.tokenizer.mask_token_id == len(WORDS[5:])
    assert tokenizer.mask_token is None, "the caller's own tokenizer has changed"


def test_sedd_and_a_length_policy_are_written_on_the_card(tmp_path: Path) -> None:
    source = bare(tmp_path / "w.pt", as_published(published_weights(0)))
    _, loaded = converted(source, objective="sedd", policy="padded", time_conditioning=True)
    assert (loaded.config.objective.name, loaded.config.policy.name) == ("sedd", "padded")


def random_checkpoint(path: Path, conditioned: bool) -> Path:
    """A checkpoint of ours with random weights and biases."""
    fields = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS}
    model = DiT(DiTConfig(**fields, max_length=L, cond_dim=COND, conditioned=conditioned)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = 0.3 * torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + noise if "norm" in name and "weight" in name else noise)
    save_checkpoint(path, model, byte_tokenizer(), CheckpointConfig(length=L))
    return path


def test_exported_unconditioned_network_is_the_published_one_at_every_sigma(tmp_path: Path) -> None:
    source = random_checkpoint(tmp_path / "ours", conditioned=False)
    report = export(source, tmp_path / "out.safetensors")
    state = load_file(tmp_path / "out.safetensors")
    wanted = as_published(published_weights(0))
    assert {name: value.shape for name, value in state.items()} == {name: value.shape for name, value in wanted.items()}
    assert report.keys == len(wanted)
    assert not report.conditioned
    ours = log_probs(load_checkpoint(source).model, some_ids())
    for sigma in (0.0, 3.0):
        same(ours, published_forward(state, some_ids(), sigma), atol=1e-5)


@pytest.mark.parametrize("conditioned", [False, True], ids=["unconditioned", "conditioned"])
@pytest.mark.parametrize("target", ["out.safetensors", "out"], ids=["file", "folder"])
def test_convert_is_the_inverse_of_export(tmp_path: Path, conditioned: bool, target: str) -> None:
    ours = load_checkpoint(random_checkpoint(tmp_path / "ours", conditioned)).model
    export(tmp_path / "ours", tmp_path / target)
    options = {} if target == "out" else {"tokenizer": "byte", "length": L, "time_conditioning": conditioned}
    report = convert(tmp_path / target, tmp_path / "again", **options)
    again = load_checkpoint(tmp_path / "again").model
    assert report.conditioned == conditioned
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in ours.state_dict().items())
    assert {**again.config.to_dict(), "_name_or_path": ""} == {**ours.config.to_dict(), "_name_or_path": ""}


@pytest.mark.parametrize("causal", [False, True], ids=["dit", "causal"])
def test_export_gives_published_weights_back(tmp_path: Path, causal: bool) -> None:
    published = as_published(published_weights(0, causal=causal))
    converted(bare(tmp_path / "w.pt", published), time_conditioning=not causal)
    export(tmp_path / "converted", tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == published.keys()
    assert all(torch.equal(back[name], weight) for name, weight in published.items() if "inv_freq" not in name)
    same(back["backbone.rotary_emb.inv_freq"], published["backbone.rotary_emb.inv_freq"], atol=1e-6)


def test_folded_network_survives_export_and_conversion(tmp_path: Path) -> None:
    published = as_published(published_weights(0))
    converted(bare(tmp_path / "w.pt", published))
    export(tmp_path / "converted", tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "again")
    same(log_probs(load_checkpoint(tmp_path / "again").model, some_ids()), published_forward(published, some_ids()))


def test_export_of_the_causal_twin_makes_a_folder_that_converts(tmp_path: Path) -> None:
    published = as_published(published_weights(0, causal=True))
    converted(bare(tmp_path / "w.pt", published))
    export(tmp_path / "converted", tmp_path / "out")
    report = convert(tmp_path / "out", tmp_path / "again")
    assert (report.network, report.heads, report.length) == ("causal", HEADS, L)
    same(log_probs(load_checkpoint(tmp_path / "again").model, some_ids()), published_forward(published, some_ids()))


def refuses(match: str, src: Path, **options: Any) -> None:
    """The conversion fails with one sentence and leaves nothing behind."""
    before = sorted(src.parent.rglob("*"))
    with pytest.raises(UnmaskError, match=match) as caught:
        converted(src, **options)
    assert "\n" not in str(caught.value)
    assert sorted(src.parent.rglob("*")) == before


def without(weights: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if name not in names}


FULL = as_published(published_weights(0))
NORM, OUT = "backbone.blocks.1.norm2.weight", "backbone.output_layer.linear.bias"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (without(FULL, NORM), r"lacks the key blocks\.1\.norm2\.weight of"),
        (without(FULL, NORM, OUT), r"lacks the key blocks\.1\.norm2\.weight and 1 more"),
        ({**FULL, "backbone.extra": torch.ones(1)}, r"holds the key extra unknown"),
        ({**FULL, "backbone.a": torch.ones(1), "backbone.b": torch.ones(1)}, "the key a and 1 more unknown"),
        ({**FULL, "noise.sigma": torch.ones(1)}, r"the key noise\.sigma and 0 more that do not begin with 'backbone"),
        ({**FULL, NORM: torch.ones(D + 1)}, r"the key blocks\.1\.norm2\.weight of a shape .*\[33\] instead of \[32\]"),
        ({**FULL, NORM: torch.ones(D, dtype=torch.int8)}, "torch.int8"),
        ({"weight": torch.ones(3, 3)}, r"no matrix vocab_embed\.embedding"),
        ({}, r"no matrix vocab_embed\.embedding"),
        (without(FULL, "backbone.sigma_map.mlp.0.weight"), r"no matrix sigma_map\.mlp\.0\.weight"),
        ({**FULL, "backbone.rotary_emb.inv_freq": torch.ones(4)}, "rotary frequencies"),
        ({**FULL, "backbone.rotary_emb.inv_freq": torch.tensor(1.0)}, "rotary frequencies"),
    ],
    ids=[
        "missing",
        "two missing",
        "extra",
        "two extra",
        "stray",
        "shape",
        "int",
        "other",
        "empty",
        "sigma",
        "rotary",
        "0d",
    ],
)
def test_keys_are_strict(tmp_path: Path, weights: dict[str, Tensor], message: str) -> None:
    refuses(message, bare(tmp_path / "w.pt", weights))


def test_the_ema_list_is_strict(tmp_path: Path) -> None:
    raw = published_weights(0)
    ema = list(raw.values())
    swapped = [*ema[:-2], ema[-1], ema[-2]]
    refuses("29 EMA tensors for the 30 parameters.*--weights raw", lightning(tmp_path / "a.ckpt", raw, ema[:-1]))
    refuses(
        r"in the place of output_layer\.adaLN_modulation\.weight \[64, 8\], and 1",
        lightning(tmp_path / "a.ckpt", raw, swapped),
    )
    refuses("no list of EMA weights.*--weights raw", lightning(tmp_path / "a.ckpt", raw))
    refuses("no list of EMA weights", lightning(tmp_path / "a.ckpt", raw, [*ema[:-1], 3]))
    assert converted(tmp_path / "a.ckpt", weights="raw")[0].weights == "raw"


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"state_dict": Config()}, tmp_path / "object.ckpt")
    torch.save({"vocab_embed.embedding": "text"}, tmp_path / "text.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 40)
    (tmp_path / "notes.txt").write_text("weights")
    refuses("no dictionary of weights", tmp_path / "list.pt")
    refuses("no dictionary of weights", tmp_path / "object.ckpt")
    refuses("'vocab_embed.embedding', which is no tensor", tmp_path / "text.pt")
    refuses("damaged or not safetensors", tmp_path / "broken.safetensors")
    refuses("neither safetensors nor", tmp_path / "notes.txt")
    refuses("There is no file or folder", tmp_path / "nowhere")


def test_folders_that_cannot_be_converted_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuses("has no weights", tmp_path / "empty")
    refuses("a checkpoint of unmask already", random_checkpoint(tmp_path / "ours", conditioned=False))
    wrong = folder(tmp_path / "wrong", published_weights(0), **{**CONFIG, "n_blocks": 3})
    refuses("n_blocks=3 and its weights say 2", wrong)
    (wrong / "config.json").write_text('{"n_heads": "many"}')
    refuses("The n_heads in", wrong)
    (wrong / "config.json").write_text("{")
    refuses("is not JSON", wrong)
    (wrong / "config.json").write_text("[]")
    refuses("config.json", wrong)


def test_without_a_tokenizer_the_checkpoint_knows_ids_alone(tmp_path: Path) -> None:
    report, loaded = converted(bare(tmp_path / "w.pt", FULL), tokenizer=None, length=None)
    assert loaded.tokenizer is None
    assert (report.mask_token_id, report.length) == (report.vocab_size - 1, 1024)
    lm = unmask.load(report.folder)
    assert lm.denoiser.config.vocab_size == report.vocab_size
    with pytest.raises(UnmaskError, match=r"no tokenizer.*--tokenizer"):
        lm.generate(1, length=4)


def test_the_tokenizer_must_fit(tmp_path: Path) -> None:
    source = bare(tmp_path / "w.pt", FULL)
    refuses("has 28 tokens .*has 258; .*--tokenizer", source, tokenizer="char")
    (tmp_path / "nothing").mkdir()
    refuses("no tokenizer in it", source, tokenizer=tmp_path / "nothing")


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = bare(tmp_path / "w.pt", FULL)
    refuses("length of 0", source, length=0)
    refuses("not those of 2 heads", source, heads=2)
    refuses("width 32 .* does not split into 5 attention heads", source, heads=5)
    refuses("does not split into 0 attention heads", source, heads=0)
    refuses("weights='emma'.*'ema'", source, weights="emma")
    refuses("objective='ar'", source, objective="ar")
    refuses("no policy named 'pack'", source, policy="pack")
    unknown_heads = bare(tmp_path / "plain.pt", without(FULL, "backbone.rotary_emb.inv_freq"))
    refuses("does not tell its number of attention heads.*--heads", unknown_heads)
    twin = bare(tmp_path / "twin.pt", as_published(published_weights(0, causal=True)))
    refuses("no time conditioning to keep", twin, time_conditioning=True)
    refuses("'sedd' does not suit", twin, objective="sedd")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    source = bare(tmp_path / "w.pt", FULL)
    (tmp_path / "converted").mkdir()
    converted(source)
    refuses("not empty", source)
    export(tmp_path / "converted", tmp_path / "out.safetensors")
    for target, message in (("out.safetensors", "exists"), ("converted", "not empty"), ("new.pt", "would be a pickle")):
        with pytest.raises(UnmaskError, match=message):
            export(tmp_path / "converted", tmp_path / target)


def test_networks_that_the_published_code_cannot_hold_are_not_exported(tmp_path: Path) -> None:
    converted(bare(tmp_path / "w.pt", as_published(published_weights(0, causal=True))))
    loaded = load_checkpoint(tmp_path / "converted")
    torch.nn.init.ones_(loaded.model.blocks[0].norm1.bias)
    save_checkpoint(tmp_path / "biased", loaded.model, loaded.tokenizer, loaded.config)
    with pytest.raises(UnmaskError, match="biases in its norms"):
        export(tmp_path / "biased", tmp_path / "out.safetensors")
    loaded.model.config.rope_base = 500.0
    save_checkpoint(tmp_path / "based", loaded.model, loaded.tokenizer, loaded.config)
    with pytest.raises(UnmaskError, match="rotary base 500"):
        export(tmp_path / "based", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
