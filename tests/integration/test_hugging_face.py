"""The habits of Hugging Face users: pipelines, Auto classes and the usual methods, with plain `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline

from tests.conftest import make_checkpoint
from unmask.checkpoint import SHIPPED
from unmask.errors import UnmaskError
from unmask.laws.base import describe, members
from unmask.laws.models import MASK, V, random_network, random_text
from unmask.pipeline import load

torch.set_num_threads(1)

MODELS = pytest.mark.parametrize("spec", members("model"), ids=describe)


def auto_class(spec: Any) -> Any:
    return AutoModelForCausalLM if spec.causal else AutoModelForMaskedLM


# ---- pipelines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stories", "Once upon a [MASK], there was a little girl named Lily."),
        ("stories", "Tom and his [MASK] went to the park. They saw a big dog."),
        ("stories", "She was very [MASK]"),
        ("stories", "[MASK] day, a bird flew away."),
        ("smoke", "abc[MASK]defg"),
        ("smoke", "hgfe[MASK]"),
    ],
)
def test_the_fill_mask_pipeline_gives_the_token_of_fill(name: str, text: str) -> None:
    best = pipeline("fill-mask", model=str(SHIPPED / name), dtype=torch.float32)(text)[0]
    assert best["sequence"] == load(name, device="cpu").fill(text, greedy=True)


def test_the_fill_mask_pipeline_pads_a_batch() -> None:
    fill = pipeline("fill-mask", model=str(SHIPPED / "stories"), dtype=torch.float32)
    texts = ["Once upon a [MASK], there was a little girl.", "The cat [MASK] on the mat."]
    for alone, together in zip(map(fill, texts), fill(texts, batch_size=2), strict=True):
        assert [one["token"] for one in alone] == [one["token"] for one in together]
        assert alone[0]["score"] == pytest.approx(together[0]["score"], abs=1e-4)


@pytest.mark.parametrize(("policy", "ending"), [("packed", []), ("padded", [256]), ("supervised_eos", [])])
def test_tokenizers_frame_rows_as_trained(policy: str, ending: list[int], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / policy, policy=policy)
    lm, tokenizer = load(folder, device="cpu"), AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab [MASK]")["input_ids"] == [97, 98, 32, 257, *ending]
    assert lm.text_processor.encode(["ab "]) == [[97, 98, 32]]
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 256
    assert tokenizer.model_max_length == lm.denoiser.config.max_length
    text = "ab [MASK] cd"
    ours = lm.fill_details(text, temperature=0.0)[0]
    best = pipeline("fill-mask", model=str(folder))(text, top_k=3)
    unended = next(one for one in best if one["token"] != 256)  # `fill` writes no EOS before given text
    assert unended["token"] == ours.ids[3]


def test_the_text_generation_pipeline_writes_the_tokens_of_generate() -> None:
    write = pipeline("text-generation", model=str(SHIPPED / "stories-ar"), dtype=torch.float32)
    prompt = "Once upon a time"
    greedy = load("stories-ar", device="cpu").generate(prompt=prompt, temperature=0.0, length=24)[0]
    alone = write(prompt, max_new_tokens=24, do_sample=False)[0]["generated_text"]
    assert alone.startswith(greedy)
    assert write([prompt, "The"], max_new_tokens=24, do_sample=False, batch_size=2)[0][0]["generated_text"] == alone
    longest = write(prompt, max_new_tokens=1000, do_sample=False)[0]["generated_text"]
    assert len(write.tokenizer(longest)["input_ids"]) <= write.tokenizer.model_max_length == 256


# ---- models ---------------------------------------------------------------------------------------------------------


@MODELS
def test_auto_classes_open_every_model(spec: Any, tmp_path: Path) -> None:
    network, ids = random_network(spec), random_text(2)
    network.save_pretrained(tmp_path)
    for auto in (auto_class(spec), AutoModel):
        for options in ({}, {"device_map": "cpu"}, {"device_map": "auto"}):
            loaded = auto.from_pretrained(tmp_path, **options)
            assert type(loaded) is type(network)
            for name, weight in loaded.state_dict().items():
                assert torch.equal(weight.cpu(), network.state_dict()[name])
            torch.testing.assert_close(loaded(ids.to(loaded.device)).logits.cpu(), network(ids).logits)
            assert loaded.dtype == torch.float32
    rounded = auto_class(spec).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert rounded.dtype == rounded(ids).logits.dtype == torch.bfloat16
    assert rounded.num_parameters() == sum(weight.numel() for weight in network.parameters())


@MODELS
def test_every_model_has_the_usual_methods(spec: Any) -> None:
    network, ids = random_network(spec), random_text(2)
    output = network(ids, output_hidden_states=True, output_attentions=None)
    assert len(output.hidden_states) == network.config.num_hidden_layers + 1
    assert torch.equal(output.hidden_states[-1], network.hidden(ids))
    assert network(ids, output_hidden_states=False).hidden_states is None
    with pytest.raises(UnmaskError, match="output_attentions=True is not supported"):
        network(ids, output_attentions=True)

    network.tie_weights()
    assert torch.equal(network(ids).logits, output.logits)
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            network.gradient_checkpointing_enable()
        network.zero_grad()
        network.train()(ids, labels=ids).loss.backward()
        gradients.append(network.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients)


@MODELS
def test_every_vocabulary_can_be_resized(spec: Any, tmp_path: Path) -> None:
    network, ids = random_network(spec), random_text(2)
    before = network(ids).logits
    embedding = network.resize_token_embeddings(V + 3, pad_to_multiple_of=8)
    assert embedding is network.get_input_embeddings()
    assert network.config.vocab_size == len(embedding.weight) == 16
    assert network.get_output_embeddings().weight.shape == embedding.weight.shape
    torch.testing.assert_close(network(ids).logits[..., :V], before)
    assert network(ids.fill_(V)).logits.isnan().sum() == 0
    network.save_pretrained(tmp_path)
    torch.testing.assert_close(auto_class(spec).from_pretrained(tmp_path)(ids).logits, network(ids).logits)
    network.resize_token_embeddings(MASK + 1)
    assert network(random_text(1) % MASK).logits.shape[-1] == MASK + 1
    with pytest.raises(UnmaskError, match=f"above {MASK}, the id of the mask token, got {MASK}"):
        network.resize_token_embeddings(MASK)
