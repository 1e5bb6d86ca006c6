"""Batches of prompts, trajectories, and the streamers of transformers."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.conftest import LENGTH, make_checkpoint
from unmask.pipeline import load
from unmask.samplers.ancestral import AncestralSampler


class Diary:
    """A streamer that keeps what it is told."""

    def __init__(self):
        self.told: list[list[int]] = []
        self.ended = 0

    def put(self, value):
        assert isinstance(value, torch.Tensor)
        self.told.append(value.tolist())

    def end(self):
        self.ended += 1


def joined(diary: Diary) -> list[int]:
    return [token for told in diary.told for token in told]


class Drafts(Diary):
    """One that takes drafts as well."""

    def __init__(self):
        super().__init__()
        self.drafts: list[tuple[int, list[int]]] = []

    def put_draft(self, value):
        self.drafts.append((sum(map(len, self.told)), value.tolist()))


def test_prompts_of_any_length_make_one_batch(mdlm):
    prompts = ["a", "def f(", "x" * 20]
    together = mdlm.sample(2, prompts=prompts, length=20, steps=5, seed=30)
    assert [one.seed for one in together] == list(range(30, 36))
    for i, one in enumerate(together):
        alone = mdlm.sample(1, prompt=prompts[i // 2], length=20, steps=5, seed=30 + i)[0]
        assert (alone.ids, alone.order, alone.calls) == (one.ids, one.order, one.calls)
        assert one.text.startswith(prompts[i // 2])
    assert mdlm.generate(prompts=prompts, length=20, steps=5, seed=30)[0] == together[0].text
    assert together[-1].calls == 0


def test_autoregressive_prompts_make_one_batch(ar):
    prompts = ["a", "abcdef"]
    assert ar.generate(prompts=prompts, length=12, seed=1) == [
        ar.generate(prompt=prompts[i], length=12, seed=1 + i)[0] for i in range(2)
    ]


@pytest.mark.parametrize("length", [20, 2 * LENGTH])
def test_a_trajectory_holds_every_canvas(mdlm, length):
    done = mdlm.generate(2, prompt="ab", length=length, steps=6, seed=9, return_trajectory=True)
    for i, one in enumerate(done):
        frames = list(mdlm.stream("ab", length=length, steps=6, seed=9 + i))
        assert one.trajectory == [frame.ids for frame in frames]
        assert len(one.trajectory) == one.calls + 1
        assert one.trajectory[-1] == one.ids
    assert mdlm.sample(1, length=8)[0].trajectory is None


WAYS = [
    {"steps": 6},
    {"steps": 6, "order": "confidence"},
    {"order": "threshold"},
    {"sampler": {"name": "remdm", "steps": 12}},
    {"sampler": {"name": "corrector", "steps": 9}},
]


def told_call_by_call(lm, one, prompt: str, **options) -> None:
    """The canvas before the first call and after each, as in a stream of this text alone; `order` counts them."""
    frames = list(lm.stream(prompt, seed=one.seed, **options))
    assert one.trajectory == [frame.ids for frame in frames]
    assert len(one.trajectory) == one.calls + 1
    assert (one.ids, one.order) == (frames[-1].ids, frames[-1].order)
    for place, call in enumerate(one.order):
        tokens = [canvas[place] for canvas in one.trajectory]
        assert set(tokens[call + 1 :]) == {one.ids[place]}
        assert call < 0 or tokens[call] != one.ids[place]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("length", [20, 2 * LENGTH])
def test_a_trajectory_holds_the_canvases_of_its_own_calls(mdlm, length, way):
    prompts = ["ab", "a longer prompt", "x" * 20]
    done = mdlm.generate(prompts=prompts, length=length, seed=9, return_trajectory=True, **way)
    for prompt, one in zip(prompts, done, strict=True):
        told_call_by_call(mdlm, one, prompt, length=length, **way)


def test_a_trajectory_from_left_to_right_begins_behind_its_own_prompt(ar):
    prompts = ["ab", "abcdef", "a", "x" * 12]
    done = ar.generate(prompts=prompts, length=12, seed=1, return_trajectory=True)
    for prompt, one in zip(prompts, done, strict=True):
        told_call_by_call(ar, one, prompt, length=12)
        assert one.order == [-1] * len(prompt) + list(range(12 - len(prompt)))


@pytest.mark.parametrize("diary", [Diary, Drafts])
def test_a_streamer_is_told_the_prompt_and_then_what_stays(mdlm, diary):
    options = {"prompt": "def f(", "length": 24, "steps": 6, "seed": 2}
    streamer = diary()
    (text,) = mdlm.generate(1, streamer=streamer, **options)
    one = mdlm.sample(1, **options)[0]
    assert text == one.text
    assert bytes(streamer.told[0]) == b"def f("
    assert all(streamer.told), "nothing is told twice, and nothing empty"
    assert joined(streamer) == one.ids
    assert streamer.ended == 1
    assert len(streamer.told) > 2


def test_drafts_show_the_canvas_behind_what_stays(mdlm):
    streamer = Drafts()
    (one,) = mdlm.sample(1, prompt="ab", length=16, steps=6, seed=2, streamer=streamer, return_trajectory=True)
    assert len(streamer.drafts) == one.calls, "every canvas but the last"
    for (told, draft), canvas in zip(streamer.drafts, one.trajectory, strict=False):
        assert draft == canvas[told:]
        assert draft[0] == mdlm.text_processor.mask


def test_nothing_behind_the_end_of_a_text_is_told(tmp_path, monkeypatch):
    lm = load(make_checkpoint(tmp_path / "padded", policy="padded"), device="cpu")
    head, eos = lm.denoiser.head, lm.tokenizer.eos_token_id
    bias = 3.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    streamer = Drafts()
    (one,) = lm.sample(1, prompt="ab", length=40, seed=1, streamer=streamer)
    assert eos in one.ids
    assert joined(streamer) == one.ids[: one.ids.index(eos)]


def test_where_tokens_may_be_masked_again_none_stays_before_the_last_call(mdlm, monkeypatch):
    monkeypatch.setattr(AncestralSampler, "rewrites", True)
    streamer = Drafts()
    (one,) = mdlm.sample(1, prompt="ab", length=16, steps=6, seed=0, streamer=streamer)
    assert one.order[2] == 0, "the first token behind the prompt stands there from the first call on"
    assert streamer.told == [list(b"ab"), one.ids[2:]]
    assert {told for told, _ in streamer.drafts} == {2}


def test_without_a_prompt_it_begins_with_nothing(mdlm):
    streamer = Diary()
    (one,) = mdlm.sample(1, length=8, streamer=streamer)
    assert streamer.told[0] == []
    assert joined(streamer) == one.ids


@pytest.mark.parametrize("name", ["TextStreamer", "TextDiffusionStreamer"])
def test_streamers_of_transformers_print_the_text(mdlm, capsys, name):
    kind = getattr(transformers, name, None)
    if kind is None:
        pytest.skip(f"this version of transformers has no {name}")
    (text,) = mdlm.generate(1, prompt="one two", length=20, steps=4, streamer=kind(mdlm.tokenizer))
    assert capsys.readouterr().out.rstrip("\n").endswith(text[-4:])


def test_a_windowed_text_can_be_streamed(mdlm):
    streamer = Diary()
    (one,) = mdlm.sample(1, prompt="ab", length=100, steps=4, streamer=streamer)
    assert joined(streamer) == one.ids
