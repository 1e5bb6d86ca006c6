"""The encoder-decoder: what each part sees, a source that is encoded once per generation, checkpoints, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM

import unmask
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.config import read_recipe
from unmask.data.tokenizers import ByteTokenizer
from unmask.errors import UnmaskError
from unmask.models import DiTSpec, EncoderDecoder
from unmask.models.build import load_network
from unmask.models.encoder_decoder import EncoderDecoderSpec
from unmask.models.inference import cast_trunk_to_bf16
from unmask.training.trainer import train

V, MASK, SEPARATOR, LENGTH = 258, 257, ord("\t"), 24
SMALL: dict[str, Any] = {"size": "nano", "hidden_size": 16, "heads": 2, "layers": 4, "dropout": 0.0}
POLICY = {"name": "prompted", "separator": "\t", "supervised_eos": True}


def network(**options: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    spec = EncoderDecoderSpec(**{**SMALL, "absolute_positions": True, **options})
    net = spec.build(V, MASK, LENGTH, separator_token_id=SEPARATOR)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net.eval()


def row(source: str, target: str, length: int = LENGTH) -> list[int]:
    ids = [*source.encode(), SEPARATOR, *target.encode()]
    return ids + [MASK] * (length - len(ids))


def pipeline(net: EncoderDecoder, tmp_path: Path) -> Any:
    tokenizer = ByteTokenizer().build(lambda: iter(()))
    save_checkpoint(tmp_path / "saved", net, tokenizer, CheckpointConfig(policy=POLICY, length=LENGTH))
    return unmask.load(tmp_path / "saved", device="cpu")


def count_encoder_calls(lm: Any) -> list[int]:
    """The batch sizes of the calls of the encoder, in a list that grows."""
    calls: list[int] = []
    lm.denoiser.encoder["norm"].register_forward_hook(lambda *call: calls.append(len(call[2])))
    return calls


def test_the_rows_of_the_source_do_not_see_the_target_and_the_target_sees_both():
    net = network()
    ids = torch.tensor([row("abc", "xyz"), row("abc", "xqz"), row("abd", "xyz")])
    with torch.no_grad():
        rows = net.hidden(ids)
    assert torch.equal(rows[0, :4], rows[1, :4])
    assert not torch.allclose(rows[0, 4:], rows[1, 4:], atol=1e-3)
    assert not torch.allclose(rows[0, 4:], rows[2, 4:], atol=1e-3)


def test_the_target_reads_the_source_through_cross_attention_alone():
    net = network()
    for block in net.blocks:
        torch.nn.init.zeros_(block.cross_out.weight)
    with torch.no_grad():
        rows = net.hidden(torch.tensor([row("abc", "xyz"), row("abd", "xyz")]))
    assert torch.equal(rows[0, 4:], rows[1, 4:])


def test_padding_in_the_source_is_not_read():
    net, ids = network(), torch.tensor([row("abc", "xyz"), row("aqc", "xyz")])
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    attention_mask[:, 1] = False
    with torch.no_grad():
        rows = net.hidden(ids, attention_mask=attention_mask)
    assert torch.equal(rows[0, attention_mask[0]], rows[1, attention_mask[1]])


def test_only_the_first_separator_ends_the_source():
    net = network()
    ids = torch.tensor([row("ab\tc", "x"), row("abcd", "x"), [ord("a")] * LENGTH])
    assert net._source_size(ids).tolist() == [3, 5, 0]


def test_an_encoded_source_changes_nothing():
    net = network()
    ids = torch.tensor([row("abc", ""), row("a longer source", "xy")])
    source = net.encode_source(ids)
    assert source is not None
    assert source.shape == (2, 16, 16)
    positions = torch.tensor([[4, 9], [17, 23]])
    with torch.no_grad():
        torch.testing.assert_close(net.hidden(ids, source=source)[0, 4:], net.hidden(ids)[0, 4:])
        torch.testing.assert_close(net.hidden(ids, source=source)[1, 16:], net.hidden(ids)[1, 16:])
        at = net.hidden_at(ids, positions, source=source)
        torch.testing.assert_close(at, net.hidden(ids)[torch.arange(2)[:, None], positions])


def test_a_source_that_may_change_is_not_kept():
    net = network()
    masked = row("abc", "")
    masked[1] = MASK
    assert net.encode_source(torch.tensor([masked])) is None
    assert net.encode_source(torch.tensor([[MASK] * LENGTH])) is None


@pytest.mark.parametrize("options", [{}, {"steps": 4}, {"order": "confidence", "steps": 5}, {"order": "threshold"}])
def test_a_source_is_encoded_once_per_generation(options, tmp_path):
    lm = pipeline(network(), tmp_path)
    calls = count_encoder_calls(lm)
    rows = [row("ab", 19 * "x"), row("a longer source", "bcd"), row("abc", "")]  # the first ones are finished early
    written = lm.fill_rows(rows, temperature=0.0, **options)
    assert calls == [3]
    assert max(one.calls for one in written) > 1
    for seed, (given, one) in enumerate(zip(rows, written, strict=True)):
        assert [a for a, b in zip(one.ids, given, strict=True) if b != MASK] == [b for b in given if b != MASK]
        (alone,) = lm.fill_rows([given], temperature=0.0, seed=seed, **options)
        assert alone.ids == one.ids
        assert alone.confidence == pytest.approx(one.confidence, abs=1e-5)
    assert len(calls) == 1 + len(rows)


def test_generation_is_that_of_a_network_that_encodes_every_time(tmp_path):
    lm = pipeline(network(), tmp_path)
    rows = [row("abc", ""), row("a longer source", "")]
    once = [one.ids for one in lm.fill_rows(rows, steps=6, seed=3)]
    calls = count_encoder_calls(lm)
    lm.denoiser.encode_source = lambda *_: None
    assert [one.ids for one in lm.fill_rows(rows, steps=6, seed=3)] == once
    assert len(calls) > 3


def test_guidance_and_scores_work(tmp_path):
    lm = pipeline(network(), tmp_path)
    assert lm.fill_rows([row("abc", "")], steps=3)[0].ids[:4] == row("abc", "")[:4]
    assert lm.generate(prompt="abc\t", length=LENGTH, steps=3, guidance=1.0)
    assert lm.score("xyz", given="abc\t").nats > 0


def test_checkpoints_open_with_the_auto_classes(tmp_path):
    net = network(qk_norm=True)
    lm, ids = pipeline(net, tmp_path), torch.tensor([row("abc", "x")])
    for opened in (AutoModelForMaskedLM.from_pretrained(tmp_path / "saved"), load_network(tmp_path / "saved", False)):
        with torch.no_grad():
            torch.testing.assert_close(opened.eval()(ids).logits, net(ids).logits)
    assert lm.denoiser.config.separator_token_id == SEPARATOR
    rows = cast_trunk_to_bf16(lm.denoiser).hidden(ids)
    assert lm.denoiser.head(rows).dtype == torch.float32


def test_equal_layers_are_equal_parameters():
    with torch.device("meta"):
        ours = EncoderDecoderSpec(size="tiny").build(1000, 999, 64)
        dit = DiTSpec(size="tiny").build(1000, 999, 64)
    assert (ours.config.num_encoder_layers, ours.config.num_hidden_layers) == (4, 3)
    sizes = [sum(weight.numel() for weight in one.parameters()) for one in (ours, dit)]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-3)


def test_it_learns_to_copy_the_source(tmp_path):
    """Only the source tells the target, so cross-attention must be trained."""
    text = "\n".join(f"{a}{b}{c}\t{a}{b}{c}" for a in "abcdefgh" for b in "abcdefgh" for c in "abcd") + "\n"
    (tmp_path / "pairs.tsv").write_text(text)
    recipe = read_recipe(
        "translation-encdec",
        [
            f"data.source={{name: parallel, paths: ['{tmp_path / 'pairs.tsv'}']}}",
            *("data.tokenizer=byte", "data.length=8", "model.hidden_size=64", "model.heads=2", "model.layers=2"),
            *("model.dropout=0", "training.steps=150", "training.batch_size=32", "training.validation_rows=16"),
            *("optimizer.warmup=10", "optimizer.learning_rate=0.02", "optimizer.ema=0.9"),
        ],
    )
    run = train(recipe, tmp_path / "run")
    assert run.bound.bits_per_token < 0.5
    lm = unmask.load(run.path, device="cpu")
    assert lm.decode(lm.fill_rows([row("gad", "", 8)], temperature=0.0)[0].ids[4:]) == "gad"


def test_bad_input_is_one_sentence(tmp_path):
    (tmp_path / "my.txt").write_text("a\tb\n" * 20)
    plain = [f"data.source={{name: parallel, paths: ['{tmp_path / 'my.txt'}']}}", "data.tokenizer=byte"]
    with pytest.raises(UnmaskError, match=r"model\.separator must be that of the length policy 'prompted'"):
        train(read_recipe("translation-encdec", [*plain, "data.policy=packed"]), tmp_path / "run")
    tokenizer = ByteTokenizer().build(lambda: iter(()))
    with pytest.raises(UnmaskError, match=r"model\.separator must be a single token, got '\\t\\t', which is 2"):
        EncoderDecoderSpec(separator="\t\t").token_options(tokenizer)
    with pytest.raises(UnmaskError, match="separator_token_id must be from 0 to"):
        EncoderDecoderSpec(**SMALL).build(V, MASK, LENGTH, separator_token_id=V)


@pytest.mark.gpu
def test_a_gpu_writes_what_the_cpu_writes(tmp_path):
    """In float32, with a recorded graph from the third call on, from one encoded source."""
    lm = pipeline(network(), tmp_path)
    gpu = unmask.load(tmp_path / "saved", device="cuda", dtype="float32")
    rows = [row("abc", ""), row("a longer source", ""), row("ab", "xy")]
    calls = count_encoder_calls(gpu)
    for options in ({"steps": 8}, {"order": "confidence", "steps": 8}):
        expected = [one.ids for one in lm.fill_rows(rows, temperature=0.0, **options)]
        assert [one.ids for one in gpu.fill_rows(rows, temperature=0.0, **options)] == expected
    assert calls == [3, 3]
    fast = unmask.load(tmp_path / "saved", device="cuda")
    assert all(MASK not in one.ids for one in fast.fill_rows(rows, steps=8))
