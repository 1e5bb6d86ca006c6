"""The judge: -log p as in a plain loop, for every batch size, padding and length of text."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.judges import CONTEXT, save_judge, save_random
from unmask import registry
from unmask.errors import UnmaskError
from unmask.evaluation import judge as judge_module
from unmask.evaluation.generation import reference_texts
from unmask.evaluation.judge import open_judge, split_windows
from unmask.evaluation.statistics import unigram_entropy
from unmask.pipeline import load

TEXTS = ["a", "", "hello there", "two lines\nof text", "The end [EOS]!"]
LONG = "a text that is longer than the context of this judge, which reads it in windows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judges") / "llama")


@pytest.fixture(scope="module")
def judge(folder):
    return open_judge(str(folder), "cpu")


@torch.inference_mode()
def plain_nll(judge, ids: list[int]) -> float:
    """-log p of a text, one token at a time."""
    total = 0.0
    for position, token in enumerate(ids):
        logits = judge.model(input_ids=torch.tensor([[judge.bos, *ids[:position]]])).logits
        total -= logits[0, -1].double().log_softmax(0)[token].item()
    return total


def test_nll_equals_a_plain_loop(judge):
    ids = judge.encode(TEXTS)
    assert judge.bos == judge.tokenizer.bos_token_id
    assert ids[-1] == list(TEXTS[-1].encode()), "names of special tokens are plain text"
    assert judge.nll(ids) == pytest.approx([plain_nll(judge, row) for row in ids], rel=1e-5)
    assert judge.nll(ids)[1] == 0


def test_a_long_text_is_the_sum_of_its_windows(judge):
    (ids,) = judge.encode([LONG])
    assert len(ids) > 2 * CONTEXT == 2 * judge.context
    expected = plain_nll(judge, ids[:CONTEXT])
    for end in range(CONTEXT + CONTEXT // 2, len(ids) + CONTEXT // 2, CONTEXT // 2):
        end, before = min(end, len(ids)), end - CONTEXT // 2
        start = end - CONTEXT
        expected += plain_nll(judge, ids[start:end]) - plain_nll(judge, ids[start:before])
    assert judge.nll([ids]) == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_batch_padding_and_chunks_do_not_change_the_nll(judge, size, monkeypatch):
    ids = judge.encode([*TEXTS, LONG])
    expected = judge.nll(ids, 64)
    assert judge.nll(ids[::-1], size)[::-1] == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(judge, "max_logits", 1000)
    monkeypatch.setattr(judge_module, "LOSS_CHUNK", 1000)
    assert judge.nll(ids) == pytest.approx(expected, rel=1e-5)


def test_batches_stay_below_the_limit_of_logits_and_progress_counts_texts(judge, monkeypatch):
    shapes, done = [], []
    hook = judge.model.register_forward_pre_hook(
        lambda module, args, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    monkeypatch.setattr(judge, "max_logits", 3 * 10 * judge.vocab_size)
    judge.nll([[65] * 10] * 5 + [[66] * 2] * 4 + [[]], progress=done.append)
    judge.nll(judge.encode([LONG]), progress=done.append)
    hook.remove()
    assert shapes[:3] == [(3, 10), (3, 10), (3, 2)]
    assert sum(done) == 11


@pytest.mark.parametrize(
    ("length", "context"), [(0, 4), (1, 4), (4, 4), (5, 4), (23, 8), (24, 7), (9, 2), (3, 1), (6, None)]
)
def test_windows_score_every_token_once_after_half_a_context(length, context):
    windows = list(split_windows(3, length, context))
    assert [token for one in windows for token in range(one.first, one.end)] == list(range(length))
    assert [one.is_last for one in windows] == [False] * (len(windows) - 1) + [True]
    assert all(one.text == 3 and 0 <= one.start <= one.first for one in windows)
    assert all(one.end - one.start == (context or length) for one in windows[1:])
    assert all(one.first - one.start >= context // 2 - 1 for one in windows[1:])


def test_an_autoregressive_checkpoint_is_a_judge(ar_folder):
    """Its BOS is the mask token, which it never predicts; padding, which is that token too, must not be scored."""
    judge, lm = open_judge(str(ar_folder), "cpu"), load(ar_folder, device="cpu")
    assert (judge.bos, judge.context) == (lm.denoiser.config.mask_token_id, lm.denoiser.config.max_length)
    ids = judge.encode([*TEXTS, LONG])
    assert judge.nll(ids) == pytest.approx(judge.nll(ids, 1), rel=1e-5)
    assert judge.nll(ids)[:-1] == pytest.approx([plain_nll(judge, row) for row in ids[:-1]], rel=1e-5)
    with_end = [*ids[2], lm.text_processor.tokenizer.eos_token_id]
    assert judge.nll([with_end]) == pytest.approx([lm.score(TEXTS[2]).nats], rel=1e-5)
    half = open_judge(str(ar_folder), "cpu", "bf16")
    assert half.model.dtype == torch.bfloat16
    assert half.nll(ids) == pytest.approx(judge.nll(ids), rel=0.05)


def test_slow_tokenizers_and_models_without_bos_work(tmp_path):
    from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel

    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = GPT2Config(vocab_size=300, n_positions=16, n_embd=16, n_layer=1, n_head=1, bos_token_id=None)
    judge = open_judge(str(save_random(tmp_path / "gpt2", GPT2LMHeadModel(config), tokenizer)), "cpu")
    assert (judge.bos, judge.context) == (tokenizer.eos_token_id, 16)
    ids = judge.encode(["hé"])
    assert ids == [[byte + 3 for byte in "hé".encode()]]
    assert judge.nll(ids) == pytest.approx([plain_nll(judge, ids[0])], rel=1e-5)


def save_bert(folder: Path) -> Path:
    """A masked language model that transformers also opens as a causal one."""
    from transformers import BertConfig, BertLMHeadModel

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    tokenizer = registry.build("tokenizer", "byte").build()
    return save_random(folder, BertLMHeadModel(BertConfig(vocab_size=len(tokenizer), **shape)), tokenizer)


def test_models_that_cannot_judge_are_refused(tmp_path, folder, mdlm_folder):
    untokenized, partial = (shutil.copytree(folder, tmp_path / name) for name in ("untokenized", "partial"))
    for file in untokenized.glob("tokenizer*"):
        file.unlink()
    weights = load_file(partial / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    cases = {
        str(tmp_path / "nowhere"): "no judge at",
        "./nowhere": "no judge at",
        str(mdlm_folder): "is a masked diffusion model",
        str(save_bert(tmp_path / "bert")): "not a causal language model",
        str(untokenized): "tokenizer of the judge",
        str(partial): "lacks fitting weights",
    }
    for name, words in cases.items():
        with pytest.raises(UnmaskError, match=words) as caught:
            open_judge(name, "cpu")
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    judge = open_judge(str(folder), "cpu")
    judge.vocab_size = 100
    with pytest.raises(UnmaskError, match="has more tokens than the 100"):
        judge.encode(["zebra"])


@pytest.mark.skipif("UNMASK_DATA" not in os.environ, reason="needs the stories in $UNMASK_DATA")
def test_the_judge_of_the_stories_matches_their_source():
    """About 2.36 per token on 1,500 stories, with EOS counted; entropy about 4.19."""
    stories = Path(os.environ["UNMASK_DATA"]) / "stories"
    texts = reference_texts(None, 40, [str(stories / "stories-5.txt.xz")], "<|endofstory|>").texts
    judge = open_judge(str(stories / "judge"), "cpu")
    ids = judge.encode(texts)
    assert np.exp(judge.nll(ids).sum() / sum(map(len, ids))) == pytest.approx(2.36, abs=0.15)
    assert np.mean([unigram_entropy(row) for row in ids]) == pytest.approx(4.19, abs=0.08)
