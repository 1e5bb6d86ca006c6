"""Mamba, bidirectional Mamba and Hyena: sizes, padding, caches, gradients, optimizers and their checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tests.published import randomise
from unmask import load, registry
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.errors import UnmaskError
from unmask.models import CausalHyena, Hyena, HyenaConfig, Mamba
from unmask.models.build import CheckpointSpec, LoraConfig, PlannerConfig, add_lora, attach_planner
from unmask.models.inference import cast_trunk_to_bf16
from unmask.objectives.base import Noise
from unmask.objectives.subs import Subs
from unmask.optimizers.muon import is_hidden_matrix
from unmask.process import Batch
from unmask.schedules import LogLinear

torch.set_num_threads(1)

V, MASK, L = 7, 5, 12
MASKED: list[dict[str, Any]] = [
    {"name": "bimamba"},
    {"name": "bimamba", "conditioned": True, "cond_dim": 8},
    {"name": "caduceus-ps"},
    {"name": "caduceus-ph"},
    {"name": "hyena"},
]
CAUSAL: list[dict[str, Any]] = [{"name": "mamba"}, {"name": "hyena", "causal": True}]


def build(spec: dict[str, Any], **options: Any) -> Any:
    torch.manual_seed(0)
    return randomise(registry.build("model", {"hidden_size": 16, "layers": 2, **spec}).build(V, MASK, L, **options))


def some_ids(rows: int = 3, length: int = L) -> Tensor:
    return torch.randint(0, V, (rows, length), generator=torch.Generator().manual_seed(1))


def test_the_convolution_of_a_block_is_a_causal_conv1d():
    ssm = build({"name": "mamba"}).blocks[0].ssms[0]
    inputs = torch.randn(2, L + 3, ssm.conv.in_channels)
    torch.testing.assert_close(ssm._convolve(inputs), ssm.conv(inputs.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize(
    ("spec", "published"),
    [
        ({"name": "mamba"}, 465_000),
        ({"name": "bimamba"}, 467_000),
        ({"name": "caduceus-ps"}, 467_000),
        ({"name": "caduceus-ph"}, 467_000),
        ({"name": "hyena", "causal": True}, 433_000),
    ],
    ids=str,
)
def test_dna_sizes_have_the_parameters_of_the_paper(spec: dict[str, Any], published: int) -> None:
    network = registry.build("model", {**spec, "size": "dna"}).build(6, 5, 1024)
    assert network.num_parameters() == pytest.approx(published, rel=0.01)


def test_a_new_mamba_begins_with_the_published_decays_and_step_sizes() -> None:
    torch.manual_seed(0)
    ssm = (
        registry.build("model", {"name": "mamba", "size": "dna"})
        .build(6, 5, 64)
        .blocks[0]
        .ssms[0]
        .requires_grad_(False)
    )
    decay = torch.exp(ssm.log_decay).view(16, -1)
    torch.testing.assert_close(decay, torch.arange(1.0, 17.0)[:, None].expand_as(decay))
    steps = F.softplus(ssm.dt_bias).log() / math.log(10)  # log-uniform from 1e-3 to 1e-1
    assert -3.001 < steps.min() < -2.9
    assert -1.1 < steps.max() < -0.999
    assert float(steps.mean()) == pytest.approx(-2, abs=0.15)
    assert bool((ssm.skip == 1).all())


@pytest.mark.parametrize(("trunk", "transformer"), [("mamba", "causal"), ("bimamba", "dit"), ("hyena", "dit")])
def test_sizes_of_one_name_have_similar_parameters(trunk: str, transformer: str) -> None:
    counts = []
    with torch.device("meta"):
        for name in (trunk, transformer):
            network = registry.build("model", {"name": name, "size": "small"}).build(28, 27, 256)
            counts.append(sum(parameter.numel() for parameter in network.blocks.parameters()))
    assert counts[0] == pytest.approx(counts[1], rel=0.2)


@pytest.mark.parametrize("spec", MASKED + CAUSAL, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(spec: dict[str, Any], side: str) -> None:
    network, ids = build(spec), some_ids()
    lengths = torch.tensor([[L], [7], [1]])
    mask = torch.arange(L) < lengths if side == "right" else torch.arange(L) >= L - lengths
    rows = network.hidden(ids, attention_mask=mask)
    other = network.hidden(ids.masked_fill(~mask, 2), attention_mask=mask)
    assert torch.equal(rows[mask], other[mask]), "the tokens at padding do not matter"
    for row in range(3):
        alone = network.hidden(ids[row, mask[row]][None])
        torch.testing.assert_close(rows[row, mask[row]], alone[0], rtol=1e-5, atol=2e-5)


def test_compiled_blocks_give_the_same_rows_and_gradients() -> None:
    """The scan itself is not compiled: the blocks are compiled in parts."""
    results = []
    for compiled in (False, True):
        network, ids = build(MASKED[0]).train(), some_ids()
        for block in network.blocks if compiled else ():
            block.forward = torch.compile(block.forward, backend="aot_eager")
        rows = network.hidden(ids)
        results.append([rows, *torch.autograd.grad(rows.square().mean(), list(network.blocks.parameters()))])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("spec", CAUSAL, ids=str)
@pytest.mark.parametrize("pieces", [[1] * L, [5, 1, 1, 5], [4, 8]])
def test_the_recurrent_form_equals_the_parallel_form(spec: dict[str, Any], pieces: list[int]) -> None:
    network, ids = build(spec), some_ids()
    cache, logits = network.new_cache(L), []
    for piece in ids.split(pieces, dim=1):
        logits.append(network(piece, past_key_values=cache).logits)
    assert cache.get_seq_length() == L
    torch.testing.assert_close(torch.cat(logits, dim=1), network(ids, use_cache=False).logits, rtol=1e-5, atol=2e-5)


def test_the_cache_of_mamba_does_not_grow() -> None:
    network, ids = build({"name": "mamba"}), some_ids()
    cache, sizes = network.new_cache(), []
    for token in ids.split(1, dim=1):
        network.hidden(token, past_key_values=cache)
        sizes.append(sum(part.numel() for state in cache.states for part in state))
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("spec", CAUSAL, ids=str)
def test_padding_with_a_cache_and_generate_of_transformers(spec: dict[str, Any]) -> None:
    network, ids = build(spec), some_ids()
    mask = (torch.arange(L) >= torch.tensor([[0], [2], [3]])).long()
    cache = network.new_cache()
    first = network(ids[:, :8], mask[:, :8], past_key_values=cache).logits
    second = network(ids[:, 8:], mask, past_key_values=cache).logits
    whole = network(ids, mask).logits
    joined = torch.cat((first, second), dim=1)
    torch.testing.assert_close(joined[mask.bool()], whole[mask.bool()], rtol=1e-5, atol=2e-5)
    begin = torch.tensor([[MASK, 3], [MASK, 1]])
    expected = begin
    for _ in range(5):
        expected = torch.cat((expected, network(expected, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(network.generate(begin, max_new_tokens=5, do_sample=False), expected)
    beams = network.generate(begin, max_new_tokens=5, do_sample=False, num_beams=2)
    uncached = network.generate(begin, max_new_tokens=5, do_sample=False, num_beams=2, use_cache=False)
    assert torch.equal(beams, uncached)


def test_the_filters_of_hyena_do_not_depend_on_later_changes_of_max_length() -> None:
    network = build({"name": "hyena"})
    ids, before = some_ids(), network(some_ids()).logits
    config = HyenaConfig.from_dict({**network.config.to_dict(), "max_length": 4 * L})
    longer = Hyena(config).eval()
    longer.load_state_dict(network.state_dict())
    assert torch.equal(longer(ids).logits, before)


@pytest.mark.parametrize("spec", [*MASKED, *CAUSAL], ids=str)
def test_every_parameter_gets_a_gradient_and_muon_gets_the_projections(spec: dict[str, Any]) -> None:
    network = build(spec).train()
    ids = some_ids().clamp(max=MASK - 1)
    noise = Noise(torch.full((3,), 0.5), torch.rand(3, L))
    if network.config.model_type in ("unmask-mamba", "unmask-causal-hyena"):
        network(ids, labels=ids).loss.backward()
    else:
        Subs().loss(network, Batch.of(ids), LogLinear(), noise).loss.backward()
    # the cosine feature of frequency 0 and the first backward distance are the only numbers without an effect
    missing = [name for name, one in network.named_parameters() if one.grad is None or not one.grad.any()]
    assert missing == []
    hidden = {name.split(".", 2)[2] for name, one in network.named_parameters() if is_hidden_matrix(name, one)}
    assert "in_proj.weight" in hidden
    assert not any("decay" in name or "conv" in name for name in hidden)


def test_gradient_checkpointing_changes_nothing() -> None:
    network = build({"name": "bimamba"}).train()
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            network.gradient_checkpointing_enable()
        network.zero_grad()
        network.hidden(some_ids()).square().sum().backward()
        gradients.append(network.vocab_embed.embedding.grad.clone())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("spec", [*MASKED, *CAUSAL], ids=str)
def test_checkpoints_open_with_load_and_the_auto_classes(spec: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = registry.build("tokenizer", "dna").build(lambda: iter(()))
    torch.manual_seed(0)
    network = randomise(registry.build("model", {"hidden_size": 16, "layers": 2, **spec}).build(len(tokenizer), 5, L))
    causal = spec in CAUSAL
    config = CheckpointConfig(objective="ar" if causal else "subs", length=L)
    save_checkpoint(tmp_path / "model", network, tokenizer, config)
    lm = load(tmp_path / "model", device="cpu")
    ids = some_ids().clamp(max=4)
    expected = network(ids).logits
    torch.testing.assert_close(lm.denoiser(ids).logits, expected, rtol=1e-5, atol=5e-5)
    auto = (AutoModelForCausalLM if causal else AutoModelForMaskedLM).from_pretrained(tmp_path / "model")
    torch.testing.assert_close(auto(ids).logits, expected, rtol=1e-5, atol=5e-5)
    text = lm.generate(2, length=8, seed=3)
    assert text == lm.generate(2, length=8, seed=3)
    assert set("".join(text)) <= set("ACGTN")
    assert lm.score("ACGTTGCA").nats > 0
    again = CheckpointSpec(path=str(tmp_path / "model")).build(6, 5, 2 * L)
    assert again.config.max_length == 2 * L
    torch.testing.assert_close(again.eval()(ids).logits, expected, rtol=1e-5, atol=5e-5)


def test_adapters_planners_and_bf16_fit_these_networks() -> None:
    ids = some_ids()
    adapted = add_lora(build({"name": "bimamba"}), LoraConfig(rank=2))
    assert torch.equal(adapted.hidden(ids), build({"name": "bimamba"}).hidden(ids))
    planned = attach_planner(build({"name": "caduceus-ps"}), PlannerConfig(width=4))
    assert planned.plan(planned.hidden(ids), torch.full((3, L), -1.0)).shape == (3, L)
    for spec in (*MASKED, *CAUSAL):
        network = build(spec)
        exact = network.hidden(ids)
        rough = cast_trunk_to_bf16(network).hidden(ids)
        assert rough.dtype == torch.float32
        assert (rough - exact).abs().mean() < 0.1 * exact.abs().mean()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "hyena", "conditioned": True}, "has no option 'conditioned'"),
        ({"name": "mamba", "conditioned": True}, "has no option 'conditioned'"),
        ({"name": "bimamba", "layers": 0}, "layers must be greater than or equal to 1, got 0"),
        ({"name": "mamba", "size": "huge"}, "size must be 'dna', "),
    ],
    ids=str,
)
def test_options_that_a_trunk_does_not_have_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        registry.build("model", model)


def test_bad_configurations_and_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="cannot be conditioned on alpha"):
        HyenaConfig(vocab_size=V, conditioned=True)
    for network in (build(spec) for spec in CAUSAL):
        assert isinstance(network, Mamba | CausalHyena)
        with pytest.raises(UnmaskError, match=f"has {L + 1} tokens"):
            network.new_cache(L + 1)
        with pytest.raises(UnmaskError, match="attention_mask must have the shape"):
            network(some_ids(), torch.ones(3, 4))
    tokenizer = registry.build("tokenizer", "byte").build(lambda: iter(()))
    network = registry.build("model", {"name": "bimamba", "hidden_size": 8, "layers": 1}).build(258, 257, L)
    save_checkpoint(tmp_path / "model", network, tokenizer, CheckpointConfig(length=L))
    with pytest.raises(UnmaskError, match=r"absolute_positions must be false.*BiMamba"):
        CheckpointSpec(path=str(tmp_path / "model"), absolute_positions=True).build(258, 257, L)
