"""Reverse-complement equivariant networks: the published construction, the post hoc average and the complement map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.published import randomise
from unmask import registry
from unmask.data.tokenizers import complement_map
from unmask.errors import UnmaskError
from unmask.models import BiMamba, BiMambaConfig, Caduceus, CaduceusConfig

torch.set_num_threads(1)

V, MASK, L, D = 6, 5, 10, 16
COMPLEMENT = torch.tensor([3, 2, 1, 0, 4, 5])


def build(symmetry: str) -> Caduceus:
    torch.manual_seed(0)
    spec = registry.build("model", {"name": f"caduceus-{symmetry}", "hidden_size": D, "layers": 2})
    return randomise(spec.build(V, MASK, L))


def plain(network: Caduceus) -> BiMamba:
    """A bidirectional Mamba with the same weights."""
    fields = {name: value for name, value in network.config.to_dict().items() if "token" not in name}
    fields = {name: fields[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_length")}
    one = BiMamba(BiMambaConfig(mask_token_id=MASK, **fields)).eval()
    one.load_state_dict(network.state_dict())
    return one


def some_ids() -> Tensor:
    return torch.randint(0, V, (3, L), generator=torch.Generator().manual_seed(1))


def test_parameter_sharing_is_the_published_construction() -> None:
    """2 D channels; each block acts on the first half and, reversed in length and channels, on the second half."""
    network, ids = build("ps"), some_ids()
    weight, bias = network.output_layer.linear.weight, network.output_layer.linear.bias
    opposite = network.vocab_embed(COMPLEMENT[ids].flip(1))
    x = torch.cat([network.vocab_embed(ids), opposite.flip(1, 2)], dim=-1)

    def share(module: Any, x: Tensor) -> Tensor:
        return torch.cat([module(x[..., :D]), module(x[..., D:].flip(1, 2)).flip(1, 2)], dim=-1)

    for block in network.blocks:
        x = share(lambda half, block=block: block(half, None, None), x)
    x = share(network.output_layer.norm_final, x)
    logits = F.linear(x[..., :D], weight, bias) + F.linear(x[..., D:].flip(-1), weight[COMPLEMENT], bias[COMPLEMENT])
    found = network.head(network.hidden(ids), mask_logit=True)
    torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-5)


def test_post_hoc_trains_one_strand_and_averages_the_logits_of_both() -> None:
    network, ids = build("ph"), some_ids()
    single = plain(network)
    forward, backward = (single.head(single.hidden(one), mask_logit=True) for one in (ids, COMPLEMENT[ids].flip(1)))
    average = (forward + backward.flip(1)[..., COMPLEMENT]) / 2
    torch.testing.assert_close(network.head(network.hidden(ids), mask_logit=True), average, rtol=1e-5, atol=1e-5)
    network.train()
    torch.testing.assert_close(network.head(network.hidden(ids), mask_logit=True), forward, rtol=1e-5, atol=1e-5)
    projection = network.projection()
    torch.testing.assert_close(
        F.linear(network.hidden(ids), projection.weight, projection.bias), network.head(network.hidden(ids))
    )


def test_a_bidirectional_mamba_is_not_equivariant() -> None:
    """The law is not trivial: without the second strand it does not hold."""
    single, ids = plain(build("ps")), some_ids()
    given, opposite = (single.head(single.hidden(one), mask_logit=True) for one in (ids, COMPLEMENT[ids].flip(1)))
    assert (given - opposite.flip(1)[..., COMPLEMENT]).abs().max() > 0.1


def test_hidden_states_and_resized_vocabularies_have_both_strands() -> None:
    network, ids = build("ps"), some_ids()
    output = network(ids, output_hidden_states=True)
    assert [state.shape for state in output.hidden_states] == [(3, L, 2 * D)] * 3
    torch.testing.assert_close(output.hidden_states[-1], network.hidden(ids))
    network.resize_token_embeddings(8)
    assert network.config.complement_map == [3, 2, 1, 0, 4, 5, 6, 7]
    torch.testing.assert_close(network(ids).logits[..., :V], output.logits)


def test_complements_of_tokenizers() -> None:
    dna = registry.build("tokenizer", "dna").build(lambda: iter(()))
    assert complement_map(dna) == [3, 2, 1, 0, 4, 5]
    soft = registry.build("tokenizer", {"name": "char", "alphabet": "NACGTacgt-"}).build(lambda: iter(()))
    assert complement_map(soft) == [0, 4, 3, 2, 1, 8, 7, 6, 5, 9, 10]
    assert complement_map(registry.build("tokenizer", "byte").build(lambda: iter(())))[ord("A")] == ord("T")
    letters = registry.build("tokenizer", {"name": "char", "alphabet": "ACG"}).build(lambda: iter(()))
    with pytest.raises(UnmaskError, match=r"tokens A, C, G and T, and the one here has 3 of them; set data.tokenizer"):
        complement_map(letters)
    half = registry.build("tokenizer", {"name": "char", "alphabet": "ACGTa"}).build(lambda: iter(()))
    with pytest.raises(UnmaskError, match="the token 't', the opposite of 'a'"):
        complement_map(half)


@pytest.mark.parametrize(
    ("complements", "message"),
    [
        ([3, 2, 1, 0, 4], "of each of the 6 tokens"),
        ([1, 2, 0, 3, 4, 5], "complement of a complement must be the token itself"),
        ([9, 2, 1, 0, 4, 5], "complement of a complement must be the token itself"),
        ([0, 1, 2, 3, 5, 4], "map the mask token 5 to itself, got 4"),
    ],
)
def test_a_complement_map_that_is_none_is_refused(complements: list[int], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        CaduceusConfig(vocab_size=V, complement_map=complements)
