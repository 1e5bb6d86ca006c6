"""Converted networks equal an independent forward pass of the published ones; bad sources are refused."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import unmask
from tests.published import HEADS, published_forward, randomise
from unmask.checkpoint import Checkpoint, CheckpointConfig, load_checkpoint, save_checkpoint
from unmask.convert import convert, export
from unmask.convert.exporting import published_state
from unmask.convert.importing import ConversionReport
from unmask.data.tokenizers import ByteTokenizer
from unmask.errors import UnmaskError
from unmask.models import CausalLM, DiT, DiTConfig

torch.set_num_threads(1)

V, MASK, D, BLOCKS, COND, L = 258, 257, 32, 2, 8, 12
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s"]


def published_weights(seed: int, vocab: int = V, causal: bool = False) -> dict[str, Tensor]:
    """Random non-zero weights of a published network, in the order of its parameters, without prefix."""
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
        shapes |= {"output_layer.adaLN_modulation.weight": (2 * D, COND)}
        shapes |= {"output_layer.adaLN_modulation.bias": (2 * D,)}
    generator = torch.Generator().manual_seed(seed)
    noise = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + value if "norm" in name else value for name, value in noise.items()}


def as_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the prefix and the rotary buffer."""
    head = D // HEADS
    frequencies = torch.tensor([10_000.0 ** (-2 * i / head) for i in range(head // 2)])
    return {f"backbone.{name}": value for name, value in {**weights, "rotary_emb.inv_freq": frequencies}.items()}


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


class ForeignConfig(dict):
    """Stands for the configuration object in real Lightning checkpoints; reading must not run its code."""

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
        "hyper_parameters": ForeignConfig(model={"length": L}),
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
    """A published Hugging Face folder."""
    path.mkdir()
    save_file(as_published(weights), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "mdlm", **config}))
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


CONFIG = {"vocab_size": V, "hidden_dim": D, "n_blocks": BLOCKS, "n_heads": HEADS, "cond_dim": COND, "model_length": L}
RAW = published_weights(0)
FULL = as_published(RAW)
CAUSAL = as_published(published_weights(0, causal=True))
NORM, OUT = "backbone.blocks.1.norm2.weight", "backbone.output_layer.linear.bias"
ROTARY = "backbone.rotary_emb.inv_freq"


def byte_tokenizer() -> Any:
    return ByteTokenizer().build()


def converted(src: Path, **options: Any) -> tuple[ConversionReport, Checkpoint]:
    dst = src.parent / "converted"
    report = convert(src, dst, **{"tokenizer": "byte", "length": L, **options})
    return report, load_checkpoint(dst)


def check_equals_published(loaded: Checkpoint, published: dict[str, Tensor]) -> None:
    same(log_probs(loaded.model, some_ids()), published_forward(published, some_ids(), MASK))


# ---- importing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["w.pt", "w.safetensors", "folder/pytorch_model.bin"])
@pytest.mark.parametrize("weights", [FULL, RAW], ids=["prefix", "no prefix"])
def test_a_folded_network_equals_the_published_one_at_sigma_zero(tmp_path, file, weights):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    bare(path, weights)
    report, loaded = converted(path.parent if "folder" in file else path, heads=HEADS)
    assert isinstance(loaded.model, DiT)
    assert not loaded.model.config.conditioned
    check_equals_published(loaded, FULL)
    assert (report.network, report.conditioned, report.heads, report.mask_token_id) == ("dit", False, HEADS, MASK)
    assert report.parameters == sum(weight.numel() for weight in loaded.model.parameters())
    assert report.weights == "as stored"


def test_a_conditioned_network_keeps_its_weights(tmp_path):
    report, loaded = converted(bare(tmp_path / "w.pt", FULL), time_conditioning=True)
    assert report.conditioned
    assert loaded.model.config.conditioned
    assert all(torch.equal(loaded.model.state_dict()[name], RAW[name]) for name in RAW)
    for alpha in (0.05, 0.6, 1.0):
        sigma = -math.log(1e-3 + (1 - 1e-3) * alpha)
        expected = published_forward(FULL, some_ids(), MASK, sigma)
        same(log_probs(loaded.model, some_ids(), torch.full((3,), alpha)), expected)


def test_a_network_without_modulation_is_autoregressive(tmp_path):
    report, loaded = converted(bare(tmp_path / "w.pt", CAUSAL))
    assert isinstance(loaded.model, CausalLM)
    assert loaded.model.config.bos_token_id is None
    assert loaded.config.objective.name == report.objective == "ar"
    check_equals_published(loaded, CAUSAL)


@pytest.mark.parametrize("which", ["ema", "raw"])
@pytest.mark.parametrize("causal", [False, True], ids=["dit", "causal"])
def test_a_lightning_checkpoint_gives_the_chosen_weights_and_runs_no_code(tmp_path, which, causal):
    raw, ema, canary = published_weights(0, causal=causal), published_weights(1, causal=causal), tmp_path / "canary"
    trainer = {"noise.sigma_max": torch.tensor(1.0), "valid_metrics.nll.weight": torch.tensor(0.0)}
    more = {"state_dict": {**as_published(raw), **trainer}, "callbacks": [Hostile(canary)]}
    source = lightning(tmp_path / "last.ckpt", raw, list(ema.values()), **more)
    report, loaded = converted(source, weights=which)
    check_equals_published(loaded, as_published(ema if which == "ema" else raw))
    assert report.weights == loaded.config.protocol["weights"] == which
    assert loaded.config.protocol["converted_from"] == "last.ckpt"
    assert (loaded.config.schedule.name, loaded.config.policy.name, loaded.config.length) == ("loglinear", "packed", L)
    assert not canary.exists()


def test_a_hugging_face_folder_has_heads_length_dropout_and_tokenizer(tmp_path):
    source = folder(tmp_path / "published", RAW, byte_tokenizer(), **CONFIG, dropout=0.25)
    report = convert(source, tmp_path / "converted")
    loaded = load_checkpoint(tmp_path / "converted")
    assert (report.heads, report.length, loaded.model.config.dropout) == (HEADS, L, 0.25)
    assert loaded.tokenizer.mask_token_id == MASK
    check_equals_published(loaded, FULL)


def test_a_config_file_keeps_time_conditioning_and_the_trained_length(tmp_path):
    source = folder(tmp_path / "published", RAW, **CONFIG, time_conditioning=True)
    report, loaded = converted(source, length=5)
    assert report.conditioned
    assert (report.length, loaded.config.length, loaded.model.config.max_length) == (5, 5, L)


def test_half_precision_becomes_float32(tmp_path):
    raw = {name: weight.bfloat16() for name, weight in RAW.items()}
    _, loaded = converted(bare(tmp_path / "w.pt", as_published(raw)))
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    check_equals_published(loaded, as_published(raw))


def test_a_mask_token_inside_the_vocabulary(tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(WORDS))
    weights, mask = as_published(published_weights(0, vocab=len(WORDS))), WORDS.index("[MASK]")
    report, loaded = converted(bare(tmp_path / "w.pt", weights), tokenizer=tmp_path / "words")
    assert report.mask_token_id == loaded.model.config.mask_token_id == loaded.tokenizer.mask_token_id == mask
    ids = some_ids(len(WORDS), mask)
    same(log_probs(loaded.model, ids), published_forward(weights, ids, mask))


def test_a_tokenizer_without_a_mask_gets_one_in_a_copy(tmp_path):
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS[5:])}, unk_token="the"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    weights = as_published(published_weights(0, vocab=len(WORDS[5:]) + 1))
    report, loaded = converted(bare(tmp_path / "w.pt", weights), tokenizer=tokenizer)
    assert report.mask_token_id == loaded.tokenizer.mask_token_id == len(WORDS[5:])
    assert tokenizer.mask_token is None


def test_objective_and_length_policy_are_saved(tmp_path):
    _, loaded = converted(bare(tmp_path / "w.pt", FULL), objective="sedd", policy="padded", time_conditioning=True)
    assert (loaded.config.objective.name, loaded.config.policy.name) == ("sedd", "padded")


def test_without_a_tokenizer_the_checkpoint_works_on_ids(tmp_path):
    report, loaded = converted(bare(tmp_path / "w.pt", FULL), tokenizer=None, length=None)
    assert loaded.tokenizer is None
    assert (report.mask_token_id, report.length) == (report.vocab_size - 1, 1024)
    lm = unmask.load(report.folder)
    assert lm.denoiser.config.vocab_size == report.vocab_size
    with pytest.raises(UnmaskError, match=r"no tokenizer.*--tokenizer"):
        lm.generate(1, length=4)


# ---- exporting -------------------------------------------------------------------------------------------------------


def random_checkpoint(path: Path, conditioned: bool, modulated: bool = False) -> Path:
    """One of our checkpoints with random weights and biases."""
    fields = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS}
    fields |= {"max_length": L, "cond_dim": COND, "conditioned": conditioned, "modulated": modulated}
    model = randomise(DiT(DiTConfig(**fields)), seed=3)
    save_checkpoint(path, model, byte_tokenizer(), CheckpointConfig(length=L))
    return path


def test_an_exported_unconditioned_network_is_the_same_at_every_sigma(tmp_path):
    source = random_checkpoint(tmp_path / "ours", conditioned=False)
    report = export(source, tmp_path / "out.safetensors")
    state = load_file(tmp_path / "out.safetensors")
    assert {name: value.shape for name, value in state.items()} == {name: value.shape for name, value in FULL.items()}
    assert report.keys == len(FULL)
    assert not report.conditioned
    ours = log_probs(load_checkpoint(source).model, some_ids())
    for sigma in (0.0, 3.0):
        same(ours, published_forward(state, some_ids(), MASK, sigma), atol=5e-5)


def test_a_network_modulated_at_sigma_zero_is_exported_as_it_is(tmp_path):
    source = random_checkpoint(tmp_path / "ours", conditioned=False, modulated=True)
    assert not export(source, tmp_path / "out.safetensors").conditioned
    state = load_file(tmp_path / "out.safetensors")
    same(log_probs(load_checkpoint(source).model, some_ids()), published_forward(state, some_ids(), MASK), atol=5e-5)


@pytest.mark.parametrize("conditioned", [False, True], ids=["unconditioned", "conditioned"])
@pytest.mark.parametrize("target", ["out.safetensors", "out"], ids=["file", "folder"])
def test_convert_is_the_inverse_of_export(tmp_path, conditioned, target):
    ours = load_checkpoint(random_checkpoint(tmp_path / "ours", conditioned)).model
    export(tmp_path / "ours", tmp_path / target)
    options = {} if target == "out" else {"tokenizer": "byte", "length": L, "time_conditioning": conditioned}
    report = convert(tmp_path / target, tmp_path / "again", **options)
    again = load_checkpoint(tmp_path / "again").model
    assert report.conditioned == conditioned
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in ours.state_dict().items())
    assert {**again.config.to_dict(), "_name_or_path": ""} == {**ours.config.to_dict(), "_name_or_path": ""}


@pytest.mark.parametrize(
    ("published", "conditioned"),
    [(FULL, True), (FULL, False), (CAUSAL, False)],
    ids=["conditioned", "folded", "causal"],
)
def test_export_is_the_inverse_of_convert(tmp_path, published, conditioned):
    converted(bare(tmp_path / "w.pt", published), time_conditioning=conditioned)
    export(tmp_path / "converted", tmp_path / "out")
    back = load_file(tmp_path / "out" / "model.safetensors")
    assert back.keys() == published.keys()
    same(back[ROTARY], published[ROTARY], atol=1e-6)
    if conditioned or published is CAUSAL:
        assert all(torch.equal(back[name], weight) for name, weight in published.items() if name != ROTARY)
    report = convert(tmp_path / "out", tmp_path / "again")
    assert (report.network, report.heads, report.length) == ("dit" if published is FULL else "causal", HEADS, L)
    check_equals_published(load_checkpoint(tmp_path / "again"), published)


# ---- bad input -------------------------------------------------------------------------------------------------------


def refuses(match: str, src: Path, **options: Any) -> None:
    """The conversion fails with one sentence and writes nothing."""
    before = sorted(src.parent.rglob("*"))
    with pytest.raises(UnmaskError, match=match) as caught:
        converted(src, **options)
    assert "\n" not in str(caught.value)
    assert sorted(src.parent.rglob("*")) == before


def without(weights: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if name not in names}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (without(FULL, NORM), r"lacks the key blocks\.1\.norm2\.weight of"),
        (
            without(FULL, NORM, "backbone.output_layer.linear.bias"),
            r"lacks the key blocks\.1\.norm2\.weight and 1 more",
        ),
        ({**FULL, "backbone.extra": torch.ones(1)}, r"has the key extra unknown"),
        ({**FULL, "backbone.a": torch.ones(1), "backbone.b": torch.ones(1)}, "the key a and 1 more unknown"),
        ({**FULL, NORM: torch.ones(D + 1)}, r"the key blocks\.1\.norm2\.weight of the wrong shape \(\[33\] instead of"),
        ({**FULL, NORM: torch.ones(D, dtype=torch.int8)}, "torch.int8"),
        ({"weight": torch.ones(3, 3)}, r"no matrix vocab_embed\.embedding"),
        ({}, r"no matrix vocab_embed\.embedding"),
        (without(FULL, "backbone.sigma_map.mlp.0.weight"), r"no matrix sigma_map\.mlp\.0\.weight"),
        ({**FULL, ROTARY: torch.ones(4)}, "rotary frequencies"),
        ({**FULL, ROTARY: torch.tensor(1.0)}, "rotary frequencies"),
        ([1, 2], "no dictionary of weights"),
        ({"state_dict": ForeignConfig()}, "no dictionary of weights"),
        ({"vocab_embed.embedding": "text"}, "'vocab_embed.embedding', which is not a tensor"),
    ],
)
def test_a_file_that_does_not_hold_exactly_the_published_weights_is_refused(tmp_path, weights, message):
    torch.save(weights, tmp_path / "w.pt")
    refuses(message, tmp_path / "w.pt")


def test_the_ema_list_must_fit(tmp_path):
    ema = list(RAW.values())
    swapped = [*ema[:-2], ema[-1], ema[-2]]
    for given, message in (
        (ema[:-1], "29 EMA tensors for 30 parameters.*--weights raw"),
        (swapped, r"\[64\] in place of output_layer\.adaLN_modulation\.weight \[64, 8\]"),
        ([*ema[:-1], 3], "no list of EMA weights"),
        (None, "no list of EMA weights.*--weights raw"),
    ):
        refuses(message, lightning(tmp_path / "a.ckpt", RAW, given))
    assert converted(tmp_path / "a.ckpt", weights="raw")[0].weights == "raw"


def test_files_and_folders_without_weights_are_refused(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 40)
    (tmp_path / "notes.txt").write_text("weights")
    (tmp_path / "empty").mkdir()
    refuses("damaged or not safetensors", tmp_path / "broken.safetensors")
    refuses("neither safetensors nor", tmp_path / "notes.txt")
    refuses("There is no file or folder", tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    refuses("There is no file or folder", tmp_path / "pipe")
    refuses("has no weights", tmp_path / "empty")
    refuses("already a checkpoint of unmask", random_checkpoint(tmp_path / "ours", conditioned=False))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({**CONFIG, "n_blocks": 3}), "says n_blocks=3, but the weights say 2"),
        ('{"n_heads": "many"}', r"cannot be used \(n_heads"),
        ("{", "cannot be read"),
        (100_000 * "[", "cannot be read"),
        ("[]", "config.json"),
    ],
)
def test_a_wrong_config_file_is_refused(tmp_path, content, message):
    source = folder(tmp_path / "wrong", RAW)
    (source / "config.json").write_text(content)
    refuses(message, source)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (FULL, {"tokenizer": "char"}, "has 28 tokens .*has 258; .*--tokenizer"),
        (FULL, {"tokenizer": Path(__file__).parent}, "no tokenizer in it"),
        (FULL, {"length": 0}, "length must be 1 or more, got 0"),
        (FULL, {"heads": 2}, "not those of 2 heads"),
        (FULL, {"heads": 5}, "width 32 .* does not split into 5 attention heads"),
        (FULL, {"heads": 0}, "does not split into 0 attention heads"),
        (FULL, {"weights": "emma"}, "weights cannot be 'emma'.*'ema'"),
        (FULL, {"objective": "ar"}, "objective cannot be 'ar'"),
        (FULL, {"policy": "pack"}, "no policy named 'pack'"),
        (without(FULL, ROTARY), {}, "the number of attention heads.*--heads"),
        (CAUSAL, {"time_conditioning": True}, "no time conditioning to keep"),
        (CAUSAL, {"objective": "sedd"}, "'sedd' does not fit"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path, weights, options, message):
    refuses(message, bare(tmp_path / "w.pt", weights), **options)


def test_an_assumed_number_of_heads_is_told(tmp_path, run):
    weights = published_state(DiT(DiTConfig(vocab_size=V, hidden_size=128, num_hidden_layers=1, num_attention_heads=4)))
    source = bare(tmp_path / "w.pt", without(weights, ROTARY))
    with pytest.warns(UserWarning, match=r"w\.pt' does not tell the number of attention heads; 2 heads of width 64"):
        assert converted(source)[0].heads_assumed
    code, out, err = run("convert", source, tmp_path / "told", "--heads", 4, "--json")
    assert (code, err, json.loads(out)["heads_assumed"]) == (0, "", False)
    with pytest.warns(UserWarning, match="2 heads"):
        code, out, err = run("convert", source, tmp_path / "assumed", "--json")
    assert (code, json.loads(out)["heads_assumed"]) == (0, True)


@pytest.mark.parametrize("target", ["out.safetensors", "out"])
def test_a_full_disk_in_an_export_is_one_sentence_and_leaves_nothing(tmp_path, target):
    converted(bare(tmp_path / "w.pt", FULL))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "new").mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(UnmaskError, match=r"could not be written .*free space"):
            export(tmp_path / "converted", tmp_path / "new" / target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    source = bare(tmp_path / "w.pt", FULL)
    (tmp_path / "converted").mkdir()
    converted(source)
    refuses("not empty", source)
    export(tmp_path / "converted", tmp_path / "out.safetensors")
    for target, message in (("out.safetensors", "exists"), ("converted", "not empty"), ("new.pt", "would be a pickle")):
        with pytest.raises(UnmaskError, match=message):
            export(tmp_path / "converted", tmp_path / target)


def test_networks_that_the_published_code_cannot_represent_are_not_exported(tmp_path):
    converted(bare(tmp_path / "w.pt", CAUSAL))
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
