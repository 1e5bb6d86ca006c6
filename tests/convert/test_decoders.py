"""LLaDA and Dream: parity with a plain implementation of each layout, shards, dtypes, chat, bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

import unmask
from unmask import laws
from unmask.checkpoint import load_checkpoint
from unmask.convert import convert
from unmask.convert.decoders import read_config
from unmask.errors import UnmaskError
from unmask.models.decoder import Decoder
from unmask.registry import Component
from unmask.training.run import resolve_recipe
from unmask.training.trainer import train

D, HEADS, LAYERS, INNER, LENGTH = 32, 4, 2, 48, 64
SPECIAL = ("<|endoftext|>", "<|start|>", "<|end|>", "<|eot_id|>", "<|mask|>")
WORDS = [chr(code) for code in range(32, 127)]
TEXT_TOKENS = len(WORDS)
MASK = TEXT_TOKENS + SPECIAL.index("<|mask|>")
V = TEXT_TOKENS + len(SPECIAL) + 3
"""The embeddings are more than the tokens, as in the published networks."""
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}<|end|>{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>{% endif %}"
)
LLADA = {
    "model_type": "llada", "d_model": D, "n_heads": HEADS, "n_kv_heads": HEADS, "n_layers": LAYERS, "vocab_size": V,
    "embedding_size": V, "mlp_hidden_size": INNER, "max_sequence_length": LENGTH, "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0, "weight_tying": False, "include_bias": False, "include_qkv_bias": False, "alibi": False,
    "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "attention_layer_norm": False,
    "bias_for_layer_norm": False, "rope": True, "mask_token_id": MASK, "eos_token_id": TEXT_TOKENS,
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
}  # fmt: skip
DREAM = {
    "model_type": "Dream", "hidden_size": D, "num_attention_heads": HEADS, "num_key_value_heads": 2, "vocab_size": V,
    "num_hidden_layers": LAYERS, "intermediate_size": INNER, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0, "rope_scaling": None, "tie_word_embeddings": False, "mask_token_id": MASK,
    "hidden_act": "silu", "use_mrope": False, "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {"llada": LLADA, "dream": DREAM}


# ---- published folders ----------------------------------------------------------------------------------------------


def published_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if kind == "llada":
        shapes = {"wte": (V, D), "ln_f": (D,), "ff_out": (V, D)}
        block = dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), (D, D))
        block |= {
            "attn_norm": (D,),
            "ff_norm": (D,),
            "ff_proj": (INNER, D),
            "up_proj": (INNER, D),
            "ff_out": (D, INNER),
        }
        shapes |= {f"blocks.{i}.{name}": shape for i in range(LAYERS) for name, shape in block.items()}
        return {f"model.transformer.{name}.weight": shape for name, shape in shapes.items()}
    shapes = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,), "lm_head.weight": (V, D)}
    attention = {"q_proj": D, "k_proj": D // 2, "v_proj": D // 2}
    for layer in (f"model.layers.{i}" for i in range(LAYERS)):
        for name, rows in attention.items():
            shapes |= {f"{layer}.self_attn.{name}.weight": (rows, D), f"{layer}.self_attn.{name}.bias": (rows,)}
        shapes |= {f"{layer}.self_attn.o_proj.weight": (D, D), f"{layer}.mlp.down_proj.weight": (D, INNER)}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (INNER, D) for name in ("gate", "up")}
        shapes |= {f"{layer}.{name}_layernorm.weight": (D,) for name in ("input", "post_attention")}
    return shapes


def published_weights(kind: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in published_shapes(kind).items()}
    return {
        name: (1 + one if one.dim() == 1 and "bias" not in name else one).to(dtype) for name, one in weights.items()
    }


def byte_level(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer of ASCII characters whose mask token is not declared, as published."""
    symbols = [word if word != " " else "Ġ" for word in WORDS]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], bos_token=SPECIAL[0])
    wrapped.chat_template = template
    return wrapped


def make_published(
    folder: Path, kind: str, dtype: torch.dtype = torch.float32, template: str | None = TEMPLATE, **options: Any
) -> Path:
    """A folder as published: two shards with an index, config.json and tokenizer files."""
    folder.mkdir()
    weights = published_weights(kind, dtype)
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in shards.items():
        save_file({name: weights[name] for name in some}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, some in shards.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | options))
    tokenizer = byte_level(template)
    tokenizer.save_pretrained(folder)
    if kind == "dream":  # vocabulary files and a class that is code in the folder
        content = json.loads((folder / "tokenizer.json").read_text())
        (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "DreamTokenizer", "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}
        added = {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in content["added_tokens"]}
        settings["added_tokens_decoder"] = added
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "tokenizer.json").unlink()
    return folder


def plain_logits(kind: str, weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Logits [B, L, V] of every position by plain matrix products, without a causal mask; Dream's are shifted."""
    dream = kind == "dream"
    kv_heads, base, eps = (2, 1e6, 1e-6) if dream else (HEADS, 5e5, 1e-5)
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
             "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")  # fmt: skip
    theirs = ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out", "attn_norm", "ff_norm")
    prefix = "model.layers" if dream else "model.transformer.blocks"
    ends = ("model.embed_tokens", "model.norm", "lm_head")
    if not dream:
        ends = tuple(f"model.transformer.{name}" for name in ("wte", "ln_f", "ff_out"))
    embedding, last_norm, head = (weights[f"{name}.weight"].double() for name in ends)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    def rotate(x: Tensor) -> Tensor:  # [B, H, L, d]
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)

    x = embedding[ids]
    for layer in range(LAYERS):

        def linear(y: Tensor, number: int, layer: int = layer) -> Tensor:
            name = f"{prefix}.{layer}.{(names if dream else theirs)[number]}"
            bias = weights.get(f"{name}.bias")
            return y @ weights[f"{name}.weight"].double().T + (0 if bias is None else bias.double())

        def weight(number: int, layer: int = layer) -> Tensor:
            return weights[f"{prefix}.{layer}.{(names if dream else theirs)[number]}.weight"].double()

        y = norm(x, weight(7))
        q, k, v = (linear(y, number).unflatten(-1, (-1, D // HEADS)).transpose(1, 2) for number in range(3))
        k, v = (one.repeat_interleave(HEADS // kv_heads, dim=1) for one in (k, v))
        mixed = (rotate(q) @ rotate(k).transpose(-1, -2) / math.sqrt(D // HEADS)).softmax(-1) @ v
        x = x + linear(mixed.transpose(1, 2).flatten(2), 3)
        y = norm(x, weight(8))
        x = x + linear(F.silu(linear(y, 4)) * linear(y, 5), 6)
    logits = norm(x, last_norm) @ head.T
    return torch.cat((logits[:, :1], logits[:, :-1]), dim=1) if dream else logits


def some_ids() -> Tensor:
    ids = torch.randint(0, TEXT_TOKENS, (3, 11), generator=torch.Generator().manual_seed(1))
    ids[:, ::3] = MASK
    return ids


# ---- conversion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_are_those_of_a_plain_implementation(kind, tmp_path):
    report = convert(make_published(tmp_path / "published", kind), tmp_path / "ours")
    assert (report.network, report.layers, report.heads) == ("decoder", LAYERS, HEADS)
    assert (report.vocab_size, report.mask_token_id, report.length) == (V, MASK, LENGTH)
    expected = plain_logits(kind, published_weights(kind), some_ids())
    loaded = load_checkpoint(tmp_path / "ours")
    with torch.no_grad():
        for network in (loaded.model, AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()):
            found = network.head(network.hidden(some_ids()), mask_logit=True)
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)
            attention = torch.ones_like(some_ids())
            attention[1, 6:] = 0
            padded = network.head(network.hidden(some_ids(), attention_mask=attention), mask_logit=True)
            alone = plain_logits(kind, published_weights(kind), some_ids()[1:2, :6])
            torch.testing.assert_close(padded[1:2, :6].double(), alone, rtol=0, atol=1e-4)
    assert (loaded.config.policy.name, loaded.tokenizer.mask_token_id) == ("padded", MASK)
    assert report.parameters == sum(weight.numel() for weight in published_weights(kind).values())


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_keep_their_dtype_and_are_memory_mapped(kind, tmp_path):
    convert(make_published(tmp_path / "published", kind, torch.bfloat16), tmp_path / "ours")
    stored = load_file(tmp_path / "ours" / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    lm = unmask.load(tmp_path / "ours", device="cpu")
    assert {weight.dtype for weight in lm.denoiser.parameters()} == {torch.bfloat16}
    weights = published_weights(kind, torch.bfloat16)
    embedding = "model.transformer.wte.weight" if kind == "llada" else "model.embed_tokens.weight"
    assert torch.equal(lm.denoiser.get_input_embeddings().weight, weights[embedding])
    with torch.no_grad():
        logits = lm.denoiser.head(lm.denoiser.hidden(some_ids()))
        exact = unmask.load(tmp_path / "ours", device="cpu", dtype="float32").denoiser
        found = exact.head(exact.hidden(some_ids()), mask_logit=True)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(found.double(), plain_logits(kind, weights, some_ids()), rtol=0, atol=1e-4)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path / "ours" / "model.safetensors") in maps.read_text(), "the weights are copies"
    assert lm.fill("a [MASK:3] b", steps=2).startswith("a")


@pytest.mark.parametrize("kind", CONFIGS)
def test_casting_the_blocks_keeps_the_head_in_float32(kind, tmp_path):
    convert(make_published(tmp_path / "published", kind), tmp_path / "ours")
    lm = unmask.load(tmp_path / "ours", device="cpu", dtype="bf16")
    assert lm.denoiser.hidden(some_ids()).dtype == torch.bfloat16
    assert lm.denoiser.get_output_embeddings().weight.dtype == torch.float32


def test_the_sampler_of_llada_writes_as_published(tmp_path):
    """Greedy tokens, low-confidence remasking in blocks, equally many tokens in each call."""
    convert(make_published(tmp_path / "published", "llada"), tmp_path / "ours")
    lm, weights = unmask.load(tmp_path / "ours", device="cpu"), published_weights("llada")
    prompt = lm.text_processor.encode(["abc de"])[0]
    ids = torch.tensor([[*prompt, *[MASK] * 12]])
    for block in range(3):
        for _ in range(2):
            logits = plain_logits("llada", weights, ids)
            logits[..., MASK] = -torch.inf
            p, token = logits.softmax(-1).max(-1)
            p = p.masked_fill(ids != MASK, -torch.inf)
            p[:, len(prompt) + 4 * (block + 1) :] = -torch.inf
            kept = p[0].topk(2).indices
            ids[0, kept] = token[0, kept]
    (found,) = lm.fill_rows([[*prompt, *[MASK] * 12]], steps=6, sampler={"name": "block", "size": 4}, temperature=0.0)
    assert found.ids == ids[0].tolist()
    assert lm.generation_config == {"temperature": 0.0, "sampler": {"name": "block", "size": 32}}


@pytest.mark.parametrize("kind", CONFIGS)
def test_chat_uses_the_template_and_ends_at_the_end_of_the_turn(kind, tmp_path):
    convert(make_published(tmp_path / "published", kind), tmp_path / "ours")
    lm = unmask.load(tmp_path / "ours", device="cpu")
    details = lm.chat_details("hi", max_new_tokens=6, steps=3)
    text = "<|start|>user<|end|>hi<|eot_id|><|start|>assistant<|end|>"
    assert lm.tokenizer.decode(details.ids[:-6]) == text
    assert details.calls <= 3
    turns = [{"role": "user", "content": "hi"}]
    assert lm.chat(turns, max_new_tokens=6, steps=3) == details.text
    eot = lm.tokenizer.convert_tokens_to_ids("<|eot_id|>")
    letters = lm.text_processor.encode([" yes"])[0]
    assert lm.text_processor.answer([*letters, eot, *letters]) == "yes"
    lm.save_pretrained(tmp_path / "again")
    assert unmask.load(tmp_path / "again", device="cpu").chat("hi", max_new_tokens=6, steps=3) == details.text
    with pytest.raises(UnmaskError, match="The messages contain the mask token"):
        lm.chat("a <|mask|>")
    with pytest.raises(UnmaskError, match=r"messages must be a text or a list of .*, got \[\]"):
        lm.chat([])
    with pytest.raises(UnmaskError, match=f"this model reads {LENGTH}; shorten it, or lower max_new_tokens, 1000"):
        lm.chat("hi", max_new_tokens=1000)
    with pytest.raises(UnmaskError, match="has no chat template"):
        unmask.load("smoke", device="cpu").chat("hi")


def test_a_chat_template_that_loops_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.text_processor.TEMPLATE_SECONDS", 0.3)
    loop = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    convert(make_published(tmp_path / "published", "llada", template=loop), tmp_path / "ours")
    lm = unmask.load(tmp_path / "ours", device="cpu")
    with pytest.raises(UnmaskError, match=r"chat template .* \(it takes longer than 0.3 seconds\); correct"):
        lm.chat("hi")


def test_chat_on_the_command_line(run, refused, tmp_path):
    code, out, err = run("convert", make_published(tmp_path / "published", "dream"), tmp_path / "ours")
    assert code == 0, err
    assert "Next: unmask sample" in out
    options = ("--length", 6, "--steps", 3, "--seed", 2)
    code, out, err = run("sample", tmp_path / "ours", "--chat", "--prompt", "hi", *options, "-n", 2, "--json")
    assert code == 0, err
    lm = unmask.load(tmp_path / "ours", device="cpu")
    expected = [lm.chat("hi", max_new_tokens=6, steps=3, seed=seed) for seed in (2, 3)]
    assert [one["text"] for one in json.loads(out)["texts"]] == expected
    assert "--chat needs --prompt" in refused("sample", tmp_path / "ours", "--chat")
    assert "no chat template" in refused("sample", "smoke", "--chat", "--prompt", "hi")


def test_a_base_model_is_packed(tmp_path):
    convert(make_published(tmp_path / "published", "llada", template=None), tmp_path / "ours", length=16)
    config = load_checkpoint(tmp_path / "ours").config
    assert (config.policy.name, config.length) == ("packed", 16)


# ---- bad input ------------------------------------------------------------------------------------------------------


def change(folder: Path, **weights: Any) -> None:
    """Replace or drop (None) weights of the first shard."""
    file = folder / "model-00001-of-00002.safetensors"
    changed = {**load_file(file), **weights}
    save_file({name: weight for name, weight in changed.items() if weight is not None}, file)


NORM = "model.transformer.blocks.0.attn_norm.weight"
BAD: dict[str, tuple[Any, str]] = {
    "another block": (lambda p: {"block_type": "sequential"}, "block_type must be 'llama', got 'sequential'"),
    "biases": (lambda p: {"include_qkv_bias": True}, "include_qkv_bias must be False, got True"),
    "no width": (lambda p: {"d_model": None}, "cannot be used"),
    "no mask": (lambda p: {"mask_token_id": V - 1}, f"has {TEXT_TOKENS + 5} tokens, and the network {V} with the mask"),
    "too few layers": (lambda p: {"n_layers": 1}, "has the key .* unknown"),
    "too many layers": (lambda p: {"n_layers": 10**9}, "tensors for 1000000000 layers"),
    "missing": (lambda p: change(p, **{NORM: None}), "lacks the key decoder.model.layers.0.input_layernorm.weight"),
    "wrong shape": (lambda p: change(p, **{NORM: torch.ones(D + 1)}), "wrong shape"),
    "quantised": (lambda p: change(p, **{NORM: torch.ones(D, dtype=torch.int8)}), "not quantised"),
    "no shard": (lambda p: (p / "model-00001-of-00002.safetensors").unlink(), "there is no file model-00001"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_are_refused_in_one_sentence(case, tmp_path):
    damage, message = BAD[case]
    folder = make_published(tmp_path / "published", "llada")
    options = damage(folder)
    if options:
        (folder / "config.json").write_text(json.dumps(LLADA | options))
    with pytest.raises(UnmaskError, match=message) as refusal:
        convert(folder, tmp_path / "ours")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "ours").exists()


def test_options_of_other_networks_are_refused(tmp_path):
    folder = make_published(tmp_path / "published", "dream")
    with pytest.raises(UnmaskError, match="is a Dream network, for which --heads"):
        convert(folder, tmp_path / "ours", heads=2)
    with pytest.raises(UnmaskError, match=f"length must be at most {LENGTH}"):
        convert(folder, tmp_path / "ours", length=LENGTH + 1)


def test_converted_networks_can_be_fine_tuned(tmp_path):
    convert(make_published(tmp_path / "published", "dream", torch.bfloat16), tmp_path / "ours", length=16)
    (tmp_path / "my.txt").write_text("a few plain words on every line\n" * 20)
    overrides = [
        "data.source.separator=line",
        "training.steps=2",
        "training.batch_size=2",
        "training.validation_rows=2",
    ]
    run = train(resolve_recipe(str(tmp_path / "my.txt"), str(tmp_path / "ours"), overrides), tmp_path / "run")
    assert unmask.load(run.path, device="cpu").denoiser.config.shifted


@pytest.mark.parametrize("kind", CONFIGS)
def test_converted_networks_keep_the_laws(kind):
    class Spec(Component):
        name: Literal["converted"] = "converted"
        causal: ClassVar[bool] = False

        def build(self, vocab_size: int, mask_token_id: int, length: int) -> Any:
            fields = CONFIGS[kind] | {"vocab_size": vocab_size, "embedding_size": vocab_size}
            config = read_config(str(fields["model_type"]), fields | {"mask_token_id": mask_token_id})
            torch.manual_seed(0)
            return Decoder(config)

    for case in laws.cases_of("model", Spec()):
        if case.name not in ("survives a json round trip", "samples do not depend on the batch"):
            for result in case.run():
                result.require()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CONFIGS)
def test_converted_networks_run_on_a_gpu(kind, tmp_path):
    convert(make_published(tmp_path / "published", kind, torch.bfloat16), tmp_path / "ours")
    lm = unmask.load(tmp_path / "ours", device="cuda")
    assert {weight.dtype for weight in lm.denoiser.parameters()} == {torch.bfloat16}
    assert lm.denoiser.head(lm.denoiser.hidden(some_ids().cuda())).dtype == torch.float32
    assert isinstance(lm.chat("hi", max_new_tokens=8, steps=4), str)
    exact = unmask.load(tmp_path / "ours", device="cuda", dtype="float32").denoiser
    expected = plain_logits(kind, published_weights(kind, torch.bfloat16), some_ids())
    with torch.no_grad():
        found = exact.head(exact.hidden(some_ids().cuda()), mask_logit=True)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0, atol=1e-3)
