"""The autoregressive model: its cache, padding and its Hugging Face interface."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, DynamicCache

from tests.published import randomise
from unmask.errors import UnmaskError
from unmask.models import CausalConfig, CausalLM, CausalSpec

torch.set_num_threads(1)

V, MASK, L = 23, 21, 12
SHAPE = {"vocab_size": V, "mask_token_id": MASK, "hidden_size": 32, "num_attention_heads": 4, "max_length": L}


def make(layers: int = 2, **options: object) -> CausalLM:
    return randomise(CausalLM(CausalConfig(num_hidden_layers=layers, **(SHAPE | options))))


def some_ids() -> Tensor:
    return torch.randint(0, V, (3, L), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pieces", [[1] * L, [5, 1, 1, 5], [4, 8]])
def test_cached_logits_equal_uncached(pieces: list[int]) -> None:
    model, ids = make(), some_ids()
    cache, logits = DynamicCache(), []
    for piece in ids.split(pieces, dim=1):
        output = model(piece, past_key_values=cache)
        assert output.past_key_values is cache
        logits.append(output.logits)
    assert cache.get_seq_length() == L
    torch.testing.assert_close(torch.cat(logits, dim=1), model(ids, use_cache=False).logits, rtol=0, atol=1e-5)


def test_a_cache_is_created_on_request_or_outside_training() -> None:
    model, ids = make(), some_ids()
    assert model(ids).past_key_values.get_seq_length() == L
    assert model(ids, use_cache=False).past_key_values is None
    assert model.train()(ids).past_key_values is None
    assert model(ids, use_cache=True).past_key_values.get_seq_length() == L


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_on_either_side_changes_nothing(side: str) -> None:
    model, ids = make(), some_ids()
    lengths = torch.tensor([[L], [7], [4]])
    mask = torch.arange(L) < lengths if side == "right" else torch.arange(L) >= L - lengths
    rows = model.hidden(ids, mask)
    assert rows.isfinite().all()
    for row in range(3):
        alone = model.hidden(ids[row, mask[row]][None])
        torch.testing.assert_close(rows[row, mask[row]], alone[0], rtol=0, atol=1e-5)
    if side == "right":
        torch.testing.assert_close(model.hidden(ids)[mask], rows[mask], rtol=0, atol=1e-5)


def test_padding_with_a_cache() -> None:
    model, ids = make(), some_ids()
    mask = (torch.arange(L) >= torch.tensor([[0], [2], [3]])).long()
    cache = DynamicCache()
    first = model(ids[:, :8], mask[:, :8], past_key_values=cache).logits
    second = model(ids[:, 8:], mask, past_key_values=cache).logits
    torch.testing.assert_close(torch.cat((first, second), dim=1), model(ids, mask).logits, rtol=0, atol=1e-5)


def test_labels_are_shifted_and_the_last_logits_can_be_kept() -> None:
    model, ids = make(), some_ids().clamp(max=MASK - 1)
    labels = ids.clone()
    labels[0, :6] = -100
    output = model(ids, labels=labels)
    picked = output.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(output.loss, -picked[labels[:, 1:] != -100].mean())
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, output.logits[:, -2:])


def test_the_begin_token_after_padding_is_not_predicted() -> None:
    model, ids = make(), some_ids().clamp(max=MASK - 1)
    ids[:, 3] = MASK
    mask = (torch.arange(L) >= 3).expand_as(ids)
    alone = model(ids[:, 3:], labels=ids[:, 3:]).loss
    torch.testing.assert_close(model(ids, mask, labels=ids.masked_fill(~mask, -100)).loss, alone)


def test_greedy_generation_follows_the_argmax() -> None:
    model = make()
    begin = torch.full((2, 1), model.config.bos_token_id)
    begin = torch.cat((begin, torch.tensor([[3], [8]])), dim=1)
    expected = begin
    for _ in range(6):
        expected = torch.cat((expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(model.generate(begin, max_new_tokens=6, do_sample=False), expected)
    assert model.generate(max_new_tokens=3, do_sample=False).shape == (1, 4)
    assert model.generate(begin, max_new_tokens=100, do_sample=False).shape == (2, L)


@pytest.mark.parametrize(("given", "bos"), [({}, MASK), ({"bos_token_id": 4}, 4), ({"bos_token_id": None}, None)])
def test_the_begin_token_is_saved(given: dict, bos: int | None, tmp_path: Path) -> None:
    make(**given).save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.bos_token_id == bos
    assert loaded.max_length == L


def test_bad_inputs_are_refused() -> None:
    model, ids = make(), some_ids()
    with pytest.raises(UnmaskError, match=f"has {L + 1} tokens .* at most {L};"):
        model(ids[:, :1], past_key_values=model(ids).past_key_values)
    with pytest.raises(UnmaskError, match=r"attention_mask must have the shape \(3, 12\).*got \(3, 4\)"):
        model(ids[:, 8:], torch.ones(3, 4), past_key_values=model(ids[:, :8]).past_key_values)
    with pytest.raises(UnmaskError, match=f"bos_token_id must be .*got {V}"):
        make(bos_token_id=V)


def test_compiles_as_one_graph() -> None:
    model, ids = make(), some_ids()
    torch._dynamo.reset()
    hidden = torch.compile(model.hidden, fullgraph=True, backend="eager")
    torch.testing.assert_close(hidden(ids), model.hidden(ids))
    mask = torch.arange(L) < torch.tensor([[L], [7], [4]])
    torch.testing.assert_close(hidden(ids, mask), model.hidden(ids, mask))


def test_a_fresh_network_predicts_uniformly() -> None:
    model = CausalSpec(size="nano", layers=2).build(V, MASK, L).eval()
    ids = some_ids()
    assert torch.equal(model.hidden(ids), model.output_layer.norm_final(model.vocab_embed(ids)))
    others = torch.arange(V) != MASK
    assert torch.equal(model(ids).logits[..., others], torch.zeros(3, L, V - 1))
