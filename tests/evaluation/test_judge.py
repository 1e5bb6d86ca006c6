"""The judge: nats as a plain loop has them, whatever the batch, the padding and the length of a text."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.judges import CONTEXT, save_judge, save_random
from unmask.errors import UnmaskError
from unmask.evaluation import judge as room
from unmask.evaluation.judge import open_judge, windows
from unmask.pipeline import load

TEXTS = ["a", "", "hello there", "two lines\nof text", "zz", "The end [EOS]!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judges") / "llama")


@pytest.fixture(scope="module")
def judge(folder):
    return open_judge(str(folder), "cpu")


@torch.inference_mode()
def by_hand(judge, ids: list[int]) -> float:
    """-log p of a text, one token and one row at a time."""
    total = 0.0
    for place, token in enumerate(ids):
        logits = judge.model(input_ids=torch.tensor([[judge.begin, *ids[:place]]])).logits
        total -= logits[0, -1].double().log_softmax(0)[token].item()
    return total


def test_nats_are_those_of_a_plain_loop(judge):
    ids = judge.encode(TEXTS)
    assert judge.nats(ids) == pytest.approx([by_hand(judge, row) for row in ids], rel=1e-5)
    assert judge.nats(ids)[1] == 0


@pytest.mark.parametrize("size", [1, 2, 5])
def test_neither_batch_nor_padding_matters(judge, size, monkeypatch):
    texts = [*TEXTS, "a text that is longer than the context of this judge, which it reads in windows"]
    ids = judge.encode(texts)
    expected = judge.nats(ids, 64)
    assert judge.nats(ids, size) == pytest.approx(expected, rel=1e-5)
    assert judge.nats(ids[::-1], size)[::-1] == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(judge, "most_logits", 1000)
    monkeypatch.setattr(room, "LOSS_ROWS", 1000)
    assert judge.nats(ids) == pytest.approx(expected, rel=1e-5)


def test_a_pass_puts_out_no_more_than_it_may(judge, monkeypatch):
    seen = []
    logits = judge._logits
    monkeypatch.setattr(judge, "most_logits", 3 * 10 * judge.vocabulary)
    monkeypatch.setattr(judge, "_logits", lambda ids: seen.append(tuple(ids.shape)) or logits(ids))
    judge.nats([[65] * 10] * 5 + [[66] * 2] * 4)
    assert seen == [(3, 10), (3, 10), (3, 2)]


def test_the_begin_token_stands_first_and_texts_are_plain_characters(judge):
    assert judge.begin == judge.tokenizer.bos_token_id
    assert judge.encode(["[EOS]"]) == [list(b"[EOS]")]


def test_progress_counts_texts(judge):
    done = []
    judge.nats(judge.encode([*TEXTS, "x" * 100]), 2, done.append)
    assert sum(done) == len(TEXTS) + 1


def test_without_a_begin_token_the_end_token_stands_first(tmp_path):
    judge = open_judge(str(save_judge(tmp_path / "plain", begin=None)), "cpu")
    assert judge.begin == judge.tokenizer.eos_token_id
    ids = judge.encode(["some text"])
    assert judge.nats(ids) == pytest.approx([by_hand(judge, ids[0])], rel=1e-5)


@pytest.mark.parametrize(
    ("length", "context"), [(0, 4), (1, 4), (4, 4), (5, 4), (23, 8), (24, 7), (9, 2), (3, 1), (6, None)]
)
def test_windows_count_every_token_once_behind_half_a_context(length, context):
    pieces = list(windows(3, length, context))
    counted = [place for one in pieces for place in range(one.first, one.end)]
    assert counted == list(range(length))
    assert [one.last for one in pieces] == [False] * (len(pieces) - 1) + [True]
    for one in pieces:
        assert one.text == 3
        assert 0 <= one.start <= one.first
        assert one.end - one.start <= (context or length)
    for later in pieces[1:]:
        assert later.first - later.start >= context // 2 - 1
        assert later.end - later.start == context


def test_a_long_text_is_the_sum_of_its_windows(judge):
    (ids,) = judge.encode(["it was a dark night, and nobody knew what the window hid"])
    assert judge.context == CONTEXT
    assert len(ids) > 2 * CONTEXT
    expected = by_hand(judge, ids[:CONTEXT])
    for end in range(CONTEXT + CONTEXT // 2, len(ids) + CONTEXT // 2, CONTEXT // 2):
        end, before = min(end, len(ids)), end - CONTEXT // 2
        start = end - CONTEXT
        expected += by_hand(judge, ids[start:end]) - by_hand(judge, ids[start:before])
    assert judge.nats([ids]) == pytest.approx([expected], rel=1e-5)


def test_our_own_twin_is_a_judge(ar_folder):
    """It begins with its mask token, which it never predicts: pads, which are that token too, must not be asked for."""
    judge, lm = open_judge(str(ar_folder), "cpu"), load(ar_folder, device="cpu")
    assert (judge.begin, judge.context) == (lm.denoiser.config.mask_token_id, lm.denoiser.config.max_length)
    ids = judge.encode([*TEXTS, "longer than its forty-eight tokens, so that there are two windows"])
    assert judge.nats(ids) == pytest.approx(judge.nats(ids, 1), rel=1e-5)
    assert judge.nats(ids)[:-1] == pytest.approx([by_hand(judge, row) for row in ids[:-1]], rel=1e-5)
    with_end = [*ids[2], lm.text_processor.tokenizer.eos_token_id]
    assert judge.nats([with_end]) == pytest.approx([lm.score(TEXTS[2]).nats], rel=1e-5)


def test_half_precision_is_close(folder, ar_folder, judge):
    ids = judge.encode(TEXTS)
    half = open_judge(str(folder), "cpu", "bf16")
    assert half.model.dtype == torch.bfloat16
    assert half.nats(ids) == pytest.approx(judge.nats(ids), rel=0.05)
    assert np.isfinite(open_judge(str(ar_folder), "cpu", "bf16").nats(ids)).all()


def test_a_tokenizer_written_in_python_will_do(tmp_path):
    from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel

    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = GPT2Config(vocab_size=300, n_positions=16, n_embd=16, n_layer=1, n_head=1, bos_token_id=None)
    judge = open_judge(str(save_random(tmp_path / "gpt2", GPT2LMHeadModel(config), tokenizer)), "cpu")
    assert (judge.begin, judge.context) == (tokenizer.eos_token_id, 16)
    ids = judge.encode(["hé"])
    assert ids == [[byte + 3 for byte in "hé".encode()]]
    assert judge.nats(ids) == pytest.approx([by_hand(judge, ids[0])], rel=1e-5)


def bert(folder: Path) -> Path:
    """A masked language model that transformers opens as a causal one all the same."""
    from transformers import BertConfig, BertLMHeadModel

    from unmask import registry

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    tokenizer = registry.build("tokenizer", "byte").build(lambda: iter(()))
    return save_random(folder, BertLMHeadModel(BertConfig(vocab_size=len(tokenizer), **shape)), tokenizer)


def test_what_is_no_judge_is_refused_in_one_sentence(tmp_path, folder, mdlm_folder):
    import shutil

    without = shutil.copytree(folder, tmp_path / "without")
    for file in without.glob("tokenizer*"):
        file.unlink()
    cases = {
        str(tmp_path / "nowhere"): "no judge at",
        "./nowhere": "no judge at",
        str(mdlm_folder): "is a masked diffusion model, which cannot judge",
        str(bert(tmp_path / "bert")): "no causal language model",
        str(without): "tokenizer of the judge",
    }
    for name, words in cases.items():
        with pytest.raises(UnmaskError, match=words) as caught:
            open_judge(name, "cpu")
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_refused(tmp_path, folder):
    import shutil

    from safetensors.torch import load_file, save_file

    part = shutil.copytree(folder, tmp_path / "part")
    weights = load_file(part / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnmaskError, match="no fitting weights"):
        open_judge(str(part), "cpu")


def test_a_tokenizer_larger_than_the_network_is_refused(tmp_path):
    judge = open_judge(str(save_judge(tmp_path / "small", begin=None, vocab_size=258)), "cpu")
    judge.vocabulary = 100
    with pytest.raises(UnmaskError, match="beyond the 100"):
        judge.encode(["zebra"])


@pytest.mark.skipif("UNMASK_DATA" not in os.environ, reason="needs the stories in $UNMASK_DATA")
def test_the_judge_of_the_stories_knows_their_law():
    """About 2.36 a token with the end counted, on 1,500 stories; entropy about 4.19."""
    from unmask.evaluation.generation import held_out_texts
    from unmask.evaluation.statistics import unigram_entropy

    stories = Path(os.environ["UNMASK_DATA"]) / "stories"
    texts = held_out_texts(None, 40, [str(stories / "stories-5.txt.xz")], "<|endofstory|>").texts
    judge = open_judge(str(stories / "judge"), "cpu")
    ids = judge.encode(texts)
    assert np.exp(judge.nats(ids).sum() / sum(map(len, ids))) == pytest.approx(2.36, abs=0.15)
    assert np.mean([unigram_entropy(row) for row in ids]) == pytest.approx(4.19, abs=0.08)
