"""Encoders of transformers as denoisers: opened, fine-tuned, saved and opened again without unmask."""

from __future__ import annotations

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

import unmask
from tests.encoders import POSITIONS, SIZES, TEXT, VOCABULARY, make_encoder, make_tokenizer
from unmask import laws
from unmask.config import read_recipe
from unmask.constraints import Words
from unmask.errors import UnmaskError
from unmask.models.build import load_network, read_config
from unmask.models.encoder import EncoderSpec, add_frame
from unmask.registry import Component
from unmask.training.run import resolve_recipe
from unmask.training.trainer import train

KINDS = pytest.mark.parametrize("kind", SIZES)
SENTENCE = "the cat sat on the mat ."
QUICK = ["training.steps=2", "training.batch_size=4", "training.validation_rows=4"]


def load(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'.*' is an encoder without fine-tuning")
        return unmask.load(folder, device="cpu")


def fine_tune(folder: Path, out: Path, *overrides: str) -> Any:
    text = out.parent / "my.txt"
    text.write_text(40 * TEXT)
    recipe = resolve_recipe(str(text), str(folder), ["data.source.separator=line", *QUICK, *overrides])
    return train(recipe, out)


class Saved(Component):
    """A spec whose network is one that transformers saved, with the special tokens around its rows, for the laws."""

    name: Literal["saved"] = "saved"
    causal: ClassVar[bool] = False
    folder: Path
    kind: str

    def build(self, vocab_size: int, mask_token_id: int, length: int) -> Any:
        make_encoder(self.folder, self.kind, noise=0.0, vocab_size=vocab_size)
        config = json.loads((self.folder / "config.json").read_text())
        config |= {"mask_token_id": mask_token_id, "cls_token_id": 2, "sep_token_id": 3}
        (self.folder / "config.json").write_text(json.dumps(config))
        network = load_network(self.folder, causal=False)
        assert network.config.frame == (2, 3)
        return network


@KINDS
def test_framed_rows_keep_the_laws(kind, tmp_path):
    for case in laws.cases_of("model", Saved(folder=tmp_path, kind=kind)):
        if case.name != "survives a json round trip":
            for result in case.run():
                result.require()


@KINDS
def test_logits_are_those_of_transformers(kind, tmp_path):
    plain = make_encoder(tmp_path, kind)
    ids = make_tokenizer(kind)(["the cat sat", SENTENCE], padding=True, return_tensors="pt")
    lm = load(tmp_path)
    rows = [lm.text_processor.encode([text])[0] for text in ("the cat sat", SENTENCE)]
    mask = torch.tensor([[True] * 3 + [False] * 4, [True] * 7])
    padded = torch.tensor([rows[0] + [0] * 4, rows[1]])
    with torch.no_grad():
        expected = plain(**{name: ids[name] for name in ("input_ids", "attention_mask")}).logits
        found = lm.denoiser.head(lm.denoiser.hidden(padded, attention_mask=mask), mask_logit=True)
        unframed = lm.denoiser.hidden(ids["input_ids"], attention_mask=ids["attention_mask"], framed=False)
    assert lm.denoiser.hidden(padded).shape == (2, 7, lm.denoiser.config.hidden_size)
    torch.testing.assert_close(found[0, :3], expected[0, 1:4], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1, 1:-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(lm.denoiser.head(unframed, mask_logit=True)[1], expected[1], rtol=0, atol=1e-5)


@KINDS
def test_fine_tuned_encoders_open_in_plain_transformers(kind, tmp_path):
    before = make_encoder(tmp_path / "encoder", kind)
    run = fine_tune(tmp_path / "encoder", tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lm = unmask.load(run.path, device="cpu")
    plain, tokenizer = AutoModelForMaskedLM.from_pretrained(run.path), AutoTokenizer.from_pretrained(run.path)
    assert type(plain).__module__.startswith("transformers.models.")
    assert json.loads((run.path / "config.json").read_text())["model_type"] == kind
    assert {*load_file(run.path / "model.safetensors")} == {*load_file(tmp_path / "encoder" / "model.safetensors")}
    assert not torch.equal(plain.get_input_embeddings().weight, before.get_input_embeddings().weight)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    assert tokenizer.model_max_length == lm.denoiser.config.positions
    with torch.no_grad():
        ours = lm.denoiser.head(lm.denoiser.hidden(inputs["input_ids"][:, 1:-1]), mask_logit=True)
        torch.testing.assert_close(plain(**inputs).logits[:, 1:-1], ours, rtol=0, atol=1e-5)
    assert lm.score(SENTENCE).nats > 0
    blank = "the cat [MASK] on the mat ."
    best = pipeline("fill-mask", model=str(run.path))(blank.replace("[MASK]", tokenizer.mask_token), top_k=VOCABULARY)
    found = lm.fill_details(blank, temperature=0.0)[0]
    top = next(one for one in best if one["token"] != tokenizer.mask_token_id)
    assert found.ids[2] == top["token"]
    excluded = 1 - next(one["score"] for one in best if one["token"] == tokenizer.mask_token_id)
    assert found.confidence[2] == pytest.approx(top["score"] / excluded, rel=1e-4)


def test_an_output_layer_of_its_own_is_kept(tmp_path):
    plain = make_encoder(tmp_path / "encoder", tie_word_embeddings=False)
    lm = load(tmp_path / "encoder")
    lm.save_pretrained(tmp_path / "saved")
    ids = torch.tensor([[2, 8, 4, 9, 3]])
    with torch.no_grad():
        expected = plain(ids).logits
        rows = lm.denoiser.hidden(ids, framed=False)
        torch.testing.assert_close(lm.denoiser.head(rows, mask_logit=True), expected, rtol=0, atol=1e-5)
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved").eval()
        torch.testing.assert_close(again(ids).logits, expected, rtol=0, atol=1e-5)


def test_all_of_the_pipeline_works(tmp_path):
    make_encoder(tmp_path / "encoder", "roberta")
    lm = load(tmp_path / "encoder")
    assert lm.row_length == POSITIONS - 2 - 2  # from position 2 on, and two special tokens
    assert "cat" in lm.generate(length=8, constraint=Words("cat"), seed=1)[0].split()
    assert len(lm.generate(2, length=POSITIONS - 4, steps=4)) == 2
    assert lm.edit(SENTENCE, spans=[(4, 7)]).endswith("sat on the mat .")
    assert lm.score("a dog", given="the cat sat").nats > 0
    lm.save_pretrained(tmp_path / "saved")
    again = unmask.load(tmp_path / "saved", device="cpu")
    assert again.generate(seed=3) == lm.generate(seed=3)


def test_positions_do_not_depend_on_padding_tokens_in_a_row(tmp_path):
    """RoBERTa numbers tokens by counting those that are not padding, also if a canvas has one in its middle."""
    make_encoder(tmp_path, "roberta")
    denoiser = load(tmp_path).denoiser
    ids = torch.tensor([[8, 9, 10, 11]])
    seen: list[Any] = []
    denoiser.network.roberta.embeddings.position_embeddings.register_forward_hook(lambda *call: seen.append(call[1][0]))
    for row in (ids, ids.index_fill(1, torch.tensor([1]), 1)):
        denoiser.hidden(row)
    assert [positions[0].tolist() for positions in seen] == 2 * [[2, 3, 4, 5, 6, 7]]


def test_frame_follows_the_text():
    ids, mask = torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    framed, attended = add_frame(ids, mask, 2, 3)
    assert [row[row_mask].tolist() for row, row_mask in zip(framed, attended, strict=True)] == [
        [2, 5, 6, 3],
        [2, 7, 8, 9, 3],
    ]


def test_lora_checkpoints_are_plain_encoders(tmp_path):
    pytest.importorskip("peft")
    before = make_encoder(tmp_path / "encoder")
    run = fine_tune(tmp_path / "encoder", tmp_path / "run", "model.lora={rank: 2, targets: [attention.self.query]}")
    after, changed = AutoModelForMaskedLM.from_pretrained(run.path).state_dict(), set()
    for name, weight in before.state_dict().items():
        if not torch.equal(weight, after[name]):
            changed.add(name)
    assert changed == {f"bert.encoder.layer.{layer}.attention.self.query.weight" for layer in range(2)}


def test_gradient_checkpointing_changes_no_gradient(tmp_path):
    network = EncoderSpec(hidden_size=32, layers=2, heads=2, dropout=0.0).build(11, 4, 8)
    ids, gradients = torch.tensor([[1, 4, 3]]), []
    for checkpointing in (False, True):
        if checkpointing:
            network.train().gradient_checkpointing_enable()
            assert network.network.is_gradient_checkpointing
        network.head(network.hidden(ids))[..., 5].sum().backward()
        gradients.append([weight.grad.clone() for weight in network.parameters() if weight.grad is not None])
        network.zero_grad()
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_of_a_recipe_replaces_that_of_the_encoder(tmp_path):
    make_encoder(tmp_path / "encoder", hidden_dropout_prob=0.5)
    config = read_config(tmp_path / "encoder")
    config.set_dropout(0.0)
    network = load_network(tmp_path / "encoder", causal=False, config=config).train()
    ids = torch.tensor([[8, 4, 9]])
    assert torch.equal(network.hidden(ids), network.hidden(ids))


def test_bf16_keeps_the_output_layer_precise(tmp_path):
    make_encoder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = unmask.load(tmp_path, device="cpu", dtype="bf16")
    rows = lm.denoiser.hidden(torch.tensor([[8, 4, 9]]))
    assert rows.dtype == torch.bfloat16
    assert lm.denoiser.head(rows).dtype == torch.float32
    assert lm.fill("the cat [MASK] on the mat .")


def test_recipes_pre_train_and_fine_tune(tmp_path):
    """The recipe bert-small, and bert-small-mdlm from its checkpoint, at a small size."""
    text = tmp_path / "my.txt"
    text.write_text(40 * TEXT)
    (tmp_path / "tokenizer").mkdir()
    vocabulary = make_tokenizer().get_vocab()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    source = f"data.source={{name: text, paths: ['{text}'], separator: line}}"
    small = ["model.hidden_size=32", "model.layers=1", "model.heads=2", "data.length=16"]
    tokenizer = f"data.tokenizer.path={tmp_path / 'tokenizer'}"
    first = train(resolve_recipe("bert-small", None, [source, tokenizer, *small, *QUICK]), tmp_path / "pre-trained")
    assert first.bound.estimator == "mask-count"
    lm = unmask.load(first.path, device="cpu")
    assert (lm.config.objective.name, lm.denoiser.config.frame) == ("subs", (2, 3))
    pair = AutoTokenizer.from_pretrained(first.path)("the cat", "sat")
    assert pair["input_ids"] == [2, *lm.text_processor.encode(["the cat"])[0], 3, vocabulary["sat"], 3]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    overrides = [source, f"model.path={first.path}", *QUICK]
    second = train(resolve_recipe("bert-small-mdlm", None, overrides), tmp_path / "fine-tuned")
    assert AutoModelForMaskedLM.from_pretrained(second.path).config.model_type == "bert"
    assert unmask.load(second.path, device="cpu").row_length == 16


def test_bert_small_has_about_30_million_parameters():
    with torch.device("meta"):
        network = read_recipe("bert-small").model.build(30_522, 103, 126)
    assert sum(weight.numel() for weight in network.parameters()) == pytest.approx(29e6, rel=0.02)


# ---- bad input ------------------------------------------------------------------------------------------------------


def edit(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def drop_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight for name, weight in weights.items() if "cls." not in name}, folder / "model.safetensors")


def add_words(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"word{i}" for i in range(30)])
    tokenizer.save_pretrained(folder)


def drop_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.remove(folder / name)


BAD = {
    "no mask token": (lambda p: make_tokenizer(mask=False).save_pretrained(p), "its tokenizer has no mask token"),
    "no tokenizer": (drop_tokenizer, "it has no tokenizer"),
    "other vocabulary": (add_words, "has 54 tokens .* its network has 40"),
    "pickled weights": (pickle_weights, "are pickled .* use safetensors"),
    "remote code": (lambda p: edit(p, model_type="mine", auto_map={}), "needs code .* does not run it"),
    "no output layers": (drop_head, r"not saved as a masked language model: it lacks cls\.predictions"),
    "another type": (lambda p: edit(p, model_type="vit"), "no network of the type 'vit'"),
    "too many layers": (lambda p: edit(p, num_hidden_layers=10**9), "1000000000 layers for"),
    "too wide": (lambda p: edit(p, hidden_size=10**6), "has the shape"),
    "not a number": (lambda p: edit(p, hidden_size="wide"), "hidden_size"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_encoders_are_refused_in_one_sentence(case, tmp_path):
    make_encoder(tmp_path)
    change, message = BAD[case]
    change(tmp_path)
    with pytest.raises(UnmaskError, match=message) as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("bart", {}), ("esm", {"mask_token_id": 4}), ("mobilebert", {"embedding_size": 16, "intra_bottleneck_size": 16})],
)
def test_networks_that_do_not_end_in_their_output_layer_are_refused(kind, options, tmp_path, monkeypatch):
    monkeypatch.setitem(SIZES, kind, options)
    make_encoder(tmp_path, kind)
    with pytest.raises(UnmaskError, match="does not end in a linear layer that writes logits"):
        load(tmp_path).fill("the [MASK]")


def test_settings_that_do_not_describe_the_network_have_no_effect(tmp_path):
    plain = make_encoder(tmp_path)
    edit(tmp_path, is_decoder=True, dtype="bfloat16", auto_map={"AutoModel": "evil.Model"}, return_dict=False)
    edit(tmp_path, quantization_config={"quant_method": "bitsandbytes"}, output_hidden_states=True)
    ids = torch.tensor([[8, 4, 9]])
    denoiser = load(tmp_path).denoiser
    with torch.no_grad():
        expected = plain(torch.tensor([[2, 8, 4, 9, 3]])).logits[:, 1:-1]
        torch.testing.assert_close(denoiser.head(denoiser.hidden(ids), mask_logit=True), expected, rtol=0, atol=1e-5)


def test_weights_of_older_versions_open(tmp_path, caplog):
    """Published BERT weights have the names gamma and beta, a head for next sentences and integer positions."""
    make_encoder(tmp_path)
    expected = load(tmp_path).score(SENTENCE).nats
    monitored = logging.getLogger("transformers")
    monitored.addHandler(caplog.handler)
    old = {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[name] = weight
    old |= {"cls.seq_relationship.bias": torch.zeros(2), "bert.embeddings.position_ids": torch.arange(POSITIONS)}
    save_file(old, tmp_path / "model.safetensors")
    assert load(tmp_path).score(SENTENCE).nats == pytest.approx(expected)
    monitored.removeHandler(caplog.handler)
    assert not caplog.records, "a table of the weights that are not used"


def test_older_folders_have_a_vocabulary_file_alone(tmp_path):
    """Lower-cased text, as bert-base-uncased writes it."""
    make_encoder(tmp_path / "encoder")
    vocabulary = make_tokenizer().get_vocab()
    drop_tokenizer(tmp_path / "encoder")
    (tmp_path / "encoder" / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    lm = unmask.load(fine_tune(tmp_path / "encoder", tmp_path / "run").path, device="cpu")
    edited = lm.edit_details("The cat, a DOG  sat.", spans=[(12, 14)])
    assert lm.text_processor.tokenizer.convert_ids_to_tokens(edited.ids)[:2] == ["the", "cat"]
    assert [place for place, order in enumerate(edited.order) if order >= 0] == [4]


def test_long_text_and_wrong_options_are_refused(tmp_path):
    make_encoder(tmp_path / "encoder")
    lm = load(tmp_path / "encoder")
    assert lm.fill("the [MASK] " + "cat " * (POSITIONS - 4))
    with pytest.raises(UnmaskError, match=f"has 23 tokens .* room for {POSITIONS - 2}"):
        lm.fill("the [MASK] " + "cat " * (POSITIONS - 3))
    with pytest.raises(UnmaskError, match="takes at most 22"):
        lm.denoiser.hidden(torch.zeros(1, 23, dtype=torch.int64))
    with pytest.raises(UnmaskError, match=r"data\.length must be at most 22"):
        fine_tune(tmp_path / "encoder", tmp_path / "long", "data.length=23")
    with pytest.raises(UnmaskError, match="is an encoder"):
        fine_tune(tmp_path / "encoder", tmp_path / "positions", "model.absolute_positions=true")
    with pytest.raises(UnmaskError, match=r"must be a multiple of model\.heads"):
        EncoderSpec(hidden_size=30, heads=4).build(11, 4, 8)


def test_hub_names_need_a_connection_once(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("hf:bert-none", "hf:nobody/bert-none", "nobody/bert-none"):
        with pytest.raises(UnmaskError, match=r"hub cannot be reached .* connect to the internet once, or"):
            unmask.load(name)


def test_an_encoder_without_fine_tuning_says_so(tmp_path):
    make_encoder(tmp_path)
    with pytest.warns(UserWarning, match=r"bound is not trained for high mask rates; fine-tune it with") as told:
        unmask.load(tmp_path, device="cpu")
    assert len(told) == 1
