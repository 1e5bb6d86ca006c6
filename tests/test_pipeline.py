"""Loading, generating, filling and streaming, as a user sees them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import nbclient
import nbformat
import pytest
import torch
import transformers

from tests.conftest import LENGTH, make_checkpoint
from unmask.checkpoint import GENERATION_FILE
from unmask.constraints import Characters, Words
from unmask.errors import UnmaskError
from unmask.pipeline import AutoregressiveLM, load
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.token_sampling import TokenSampler
from unmask.text_processor import GLYPH


class Streamer:
    """A streamer that records its tokens."""

    def __init__(self):
        self.puts: list[list[int]] = []
        self.ended = 0

    def put(self, value):
        assert isinstance(value, torch.Tensor)
        self.puts.append(value.tolist())

    def end(self):
        self.ended += 1

    @property
    def tokens(self) -> list[int]:
        return [token for put in self.puts for token in put]


class DraftStreamer(Streamer):
    """A streamer that takes drafts as well."""

    def __init__(self):
        super().__init__()
        self.drafts: list[tuple[int, list[int]]] = []

    def put_draft(self, value):
        self.drafts.append((len(self.tokens), value.tolist()))


# -- defaults of a checkpoint


@pytest.fixture(scope="module")
def with_defaults(mdlm_folder, tmp_path_factory):
    """A checkpoint whose generation_config.json has a token rule and a remasking sampler."""
    folder = tmp_path_factory.mktemp("defaults") / "model"
    shutil.copytree(mdlm_folder, folder)
    options = {"top_p": 0.5, "steps": 8, "sampler": {"name": "remdm", "strategy": "cap_conf", "eta": 0.2}}
    (folder / GENERATION_FILE).write_text(json.dumps(options))
    return load(folder, device="cpu")


def test_every_method_uses_the_defaults_of_the_checkpoint(mdlm, with_defaults):
    rule, sampler = {"top_p": 0.5}, {"name": "remdm", "strategy": "cap_conf", "eta": 0.2, "steps": 8}
    lm = with_defaults
    assert lm.generate(2, length=16) == mdlm.generate(2, length=16, sampler=sampler, **rule)
    assert list(lm.stream(length=16))[-1] == list(mdlm.stream(length=16, sampler=sampler, **rule))[-1]
    assert lm.fill("ab[MASK:4]cd") == mdlm.fill("ab[MASK:4]cd", **rule)
    assert lm.edit("abcdefgh", strength=0.5) == mdlm.edit("abcdefgh", strength=0.5, **rule)
    assert lm.rewrite("abcdefgh", "cd") == mdlm.rewrite("abcdefgh", "cd", **rule)
    assert lm.fill_rows([[1, 2, lm.tokenizer.mask_token_id]]) == mdlm.fill_rows(
        [[1, 2, lm.tokenizer.mask_token_id]], **rule
    )


def test_exact_sampling_ignores_the_defaults(mdlm, with_defaults):
    for call in (
        lambda lm, **options: lm.sample(2, length=16, **options),
        lambda lm, **options: list(lm.stream(length=16, **options))[-1],
        lambda lm, **options: lm.fill_details("ab[MASK:4]cd", **options),
        lambda lm, **options: lm.edit_details("abcdefgh", strength=0.5, **options),
    ):
        assert call(with_defaults, exact=True) == call(mdlm) != call(with_defaults)


def test_the_default_sampler_gives_way_to_particles_and_streamers(mdlm, with_defaults):
    options = {"length": 12, "top_p": 0.5}
    particles = {"particles": 2, "constraint": Characters(4, 40)}
    assert with_defaults.generate(length=12, **particles) == mdlm.generate(**options, **particles)
    assert with_defaults.generate(length=12, streamer=Streamer()) == mdlm.generate(**options, streamer=Streamer())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "remdn"}, "no sampler named 'remdn'"),
        ({"steps": 0}, "steps must be greater than or equal to 1, got 0"),
        ({"order": "confidence", "sampler": "ancestral"}, "exclude each other"),
    ],
)
def test_a_default_sampler_is_checked_when_the_checkpoint_is_opened(mdlm_folder, tmp_path, options, message):
    shutil.copytree(mdlm_folder, tmp_path / "model")
    (tmp_path / "model" / GENERATION_FILE).write_text(json.dumps(options))
    with pytest.raises(UnmaskError, match=rf"{GENERATION_FILE}' cannot be used \(.*{message}.*correct or delete it"):
        load(tmp_path / "model", device="cpu")


def test_transformers_opens_a_checkpoint_with_defaults(with_defaults):
    assert transformers.AutoModelForMaskedLM.from_pretrained(with_defaults.path).num_parameters() > 0
    assert transformers.GenerationConfig.from_pretrained(with_defaults.path).top_p == 0.5


# -- how a model and its results show themselves


def test_the_representation_says_what_the_model_is(mdlm, ar):
    size = sum(parameter.numel() for parameter in mdlm.denoiser.parameters())
    assert repr(mdlm) == (
        f"MaskedDiffusionLM(mdlm: {size:,} parameters, objective subs, schedule loglinear, length {LENGTH}, on cpu)"
    )
    assert repr(ar).startswith("AutoregressiveLM(ar: ")


def test_a_notebook_draws_streams_frames_and_generations():
    cells = [
        "import unmask; lm = unmask.load('smoke', device='cpu'); lm",
        "lm.stream('ab', length=8, steps=3)",
        "frames = list(lm.stream('ab', length=8, steps=3)); frames[1]",
        "lm.sample(1, length=8)[0]",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [cell.outputs[-1].data for cell in notebook.cells]
    assert shown[0]["text/plain"].startswith("MaskedDiffusionLM(smoke")
    assert "call 3 of 3" in shown[1]["text/html"]
    assert GLYPH not in shown[1]["text/html"]
    assert GLYPH in shown[2]["text/html"]
    assert "background: hsl(" in shown[2]["text/html"]
    assert "calls, seed 0" in shown[3]["text/html"]


# -- generate


@pytest.mark.parametrize("prompts", [[""], ["a", "def f(", "x" * 24]], ids=len)
def test_a_sequence_does_not_depend_on_its_batch(mdlm, prompts):
    together = mdlm.sample(5, prompts=prompts, length=24, steps=6, seed=10, batch_size=3)
    assert [one.seed for one in together] == list(range(10, 10 + 5 * len(prompts)))
    for i, one in enumerate(together):
        alone = mdlm.sample(1, prompt=prompts[i // 5], length=24, steps=6, seed=10 + i)[0]
        assert (alone.ids, alone.order, alone.calls) == (one.ids, one.order, one.calls)
        assert one.text.startswith(prompts[i // 5])
    assert len({one.text for one in together[:5]}) == 5
    assert mdlm.generate(2, length=8, seed=2**63 - 2)[1] == mdlm.generate(1, length=8, seed=2**63 - 1)[0]
    assert mdlm.generate(prompts=prompts, length=24, steps=6, seed=10)[0] == together[0].text


@pytest.mark.parametrize("steps", [1, 4, None])
def test_calls_are_counted_and_every_mask_is_written(mdlm, monkeypatch, steps):
    calls, run = [], mdlm.denoiser._run
    monkeypatch.setattr(mdlm.denoiser, "_run", lambda *a, **k: calls.append(1) or run(*a, **k))
    one = mdlm.sample(1, length=20, steps=steps, seed=3)[0]
    assert one.calls == len(calls) == max(one.order) + 1
    assert one.calls == 20 if steps is None else one.calls <= steps
    assert mdlm.denoiser.config.mask_token_id not in one.ids
    assert all(0 < c <= 1 for c in one.confidence)


def test_blanks_in_prompt_and_suffix_are_written(mdlm):
    options = {"length": 24, "steps": 5, "seed": 3}
    *_, last = mdlm.stream("The [MASK:2] cat", suffix="a[MASK]d", **options)
    (one,) = mdlm.sample(1, prompt="The [MASK:2] cat", suffix="a[MASK]d", **options)
    (other,) = mdlm.sample(prompts=["The [MASK:2] cat"], suffix="a[MASK]d", **options)
    assert one.ids == other.ids == last.ids
    assert last.finished(3) == one
    given = {place: token for place, token in enumerate(one.ids) if one.order[place] < 0}
    assert given == {**dict(enumerate(b"The ")), **dict(enumerate(b" cat", 6)), 21: ord("a"), 23: ord("d")}


OPTIONS = [{"temperature": 0.4}, {"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.3}, {"greedy_tail": 0.5}]


@pytest.mark.parametrize("options", [*OPTIONS, {"greedy_above": 0.01}], ids=str)
def test_every_method_takes_the_options_of_a_token_sampler_or_a_rule(mdlm, options):
    methods = [
        lambda **how: mdlm.generate(2, length=24, seed=5, steps=8, **how),
        lambda **how: [one.text for one in mdlm.sample(2, length=24, seed=5, steps=8, **how)],
        lambda **how: list(mdlm.stream(length=24, seed=5, steps=8, **how))[-1].text,
        lambda **how: mdlm.fill("a[MASK:20]b", seed=5, steps=8, **how),
        lambda **how: mdlm.edit("some text to be changed", strength=1.0, seed=5, steps=8, **how),
        lambda **how: mdlm.rewrite("some text to be changed", "text", seed=5, steps=8, **how),
    ]
    for method in methods:
        assert method(**options) == method(rule=TokenSampler(**options)) != method()
    assert methods[1](**options) == methods[0](**options)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    "how", [{"length": 12}, {"length": 2 * LENGTH, "steps": 3}, {"length": 12, "order": "threshold"}], ids=str
)
def test_progress_advances_with_every_call_and_adds_up_to_the_texts(mdlm, batch_size, how):
    progress, batches = [], []
    done = mdlm.sample(3, **how, batch_size=batch_size, progress=progress.append, on_batch=batches.append)
    assert sum(progress) == pytest.approx(3)
    assert min(progress) >= 0
    assert sum(share > 0 for share in progress) >= max(one.calls for one in done)
    assert batches == ([3] if batch_size is None else [2, 1])


# -- fill


def test_fill_keeps_the_known_text(mdlm):
    progress = []
    one = mdlm.fill_details(["The [MASK] sat on [MASK:3]."], seed=1, progress=progress.append)[0]
    assert bytes(one.ids[:4]) == b"The "
    assert bytes(one.ids[5:13]) == b" sat on "
    assert one.ids[-1] == ord(".")
    assert [i for i, o in enumerate(one.order) if o >= 0] == [4, 13, 14, 15]
    assert one.calls == 4
    assert sum(progress) == pytest.approx(1)


def test_filling_ragged_texts_equals_filling_each(mdlm, ar):
    texts = ["a[MASK]b", "a much longer [MASK:5] line with [MASK] two", "[MASK:2]"]
    assert mdlm.fill(texts, seed=5) == [mdlm.fill(text, seed=5 + i) for i, text in enumerate(texts)]
    texts = ["ab[MASK:4]", "abcdef[MASK:2]"]
    assert ar.fill(texts, seed=0) == [ar.fill(text, seed=i) for i, text in enumerate(texts)]


def test_greedy_takes_the_most_likely_token(mdlm):
    one = mdlm.fill_details(["ab[MASK]cd"], temperature=0.0)[0]
    ids = torch.tensor([[*b"ab", mdlm.denoiser.config.mask_token_id, *b"cd"]])
    probabilities = mdlm.denoiser(ids).logits.detach().softmax(-1)[0, 2]
    assert one.ids[2] == int(probabilities.argmax())
    assert one.confidence[2] == pytest.approx(float(probabilities.max()), rel=1e-5)
    text = "ab[MASK:6]cd"
    assert mdlm.fill(text, greedy=True, seed=1) == mdlm.fill(text, greedy=True, seed=2)
    assert mdlm.fill(text, top_k=1, seed=4) == mdlm.fill(text, temperature=0.0) == mdlm.fill(text, greedy=True)


# -- suffixes and blanks inside a text: an EOS never cuts off the known text


@pytest.fixture(params=["padded", "supervised_eos"])
def eager(request, tmp_path, monkeypatch):
    """A model that predicts EOS at every position."""
    lm = load(make_checkpoint(tmp_path / "eager", policy=request.param), device="cpu")
    head, eos = lm.denoiser.head, lm.tokenizer.eos_token_id
    bias = 30.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    return lm


@pytest.mark.parametrize("length", [24, 3 * LENGTH])
def test_a_suffix_is_never_cut_off(eager, length):
    for one in eager.sample(2, prompt="def ", suffix=" end.", length=length, steps=4):
        assert one.text.startswith("def ")
        assert one.text.endswith(" end.")
        assert len(one.ids) == length
        assert eager.tokenizer.eos_token_id not in one.ids
    (free,) = eager.sample(1, prompt="def ", length=24)
    assert (free.text, len(free.ids)) == ("def ", 24), "without a suffix the text may end"


def test_the_network_sees_eos_after_a_suffix_and_the_user_does_not(eager, monkeypatch):
    seen, run, eos = [], eager.denoiser._run, eager.tokenizer.eos_token_id
    monkeypatch.setattr(eager.denoiser, "_run", lambda ids, *a, **k: seen.append(ids.tolist()) or run(ids, *a, **k))
    options = {"suffix": " end.", "length": 24, "steps": 5, "seed": 2}
    (one,) = eager.sample(1, **options, return_trajectory=True)
    after = [eos] if eager.config.policy.name == "padded" else [eos] * (LENGTH - 24)
    assert [row[24:] for (row,) in seen] == [after] * one.calls
    assert len(one.ids) == len(one.order) == len(one.confidence) == 24
    assert {len(canvas) for canvas in one.trajectory} == {24}
    frames = list(eager.stream(**options))
    assert {len(one) for frame in frames for one in (frame.ids, frame.order, frame.confidence, frame.pieces)} == {24}
    assert "".join(frames[-1].pieces) == frames[-1].text == one.text
    assert frames[-1].finished(2) == replace(one, trajectory=None)


@pytest.mark.parametrize("particles", [None, 1, 3])
def test_no_blank_inside_a_text_ends_it(eager, particles):
    options = {} if particles is None else {"constraint": Characters(3, 30), "particles": particles}
    done = eager.fill_details(["The [MASK:4] sat.", "[MASK]x[MASK:3]y and more", "ends with [MASK:3]"], **options)
    assert done[0].text.startswith("The ")
    assert done[0].text.endswith(" sat.")
    assert done[1].text.endswith("y and more")
    assert eager.tokenizer.eos_token_id not in done[0].ids[:13]
    assert done[2].text == "ends with ", "the last blank may be empty"
    edited = eager.edit("some text here", spans=[(2, 6)])
    assert (edited[:2], edited[-8:]) == ("so", "ext here")
    assert eager.rewrite("some text here", keep=["text"], seed=3).count("text") == 1


# -- stream, trajectories and streamers


SAMPLERS = [
    {"steps": 6},
    {"steps": 6, "order": "confidence"},
    {"order": "threshold"},
    {"sampler": {"name": "remdm", "steps": 12}},
    {"sampler": {"name": "corrector", "steps": 9}},
]


def check_trajectory(lm, one, prompt: str, **options) -> None:
    """A trajectory holds the canvas before the first call and after each, as in a stream of this text alone."""
    frames = list(lm.stream(prompt, seed=one.seed, **options))
    assert one.trajectory == [frame.ids for frame in frames]
    assert [frame.call for frame in frames] == list(range(one.calls + 1))
    assert frames[0].text == prompt + GLYPH * (len(one.ids) - len(prompt))
    assert (one.text, one.ids, one.order) == (frames[-1].text, frames[-1].ids, frames[-1].order)
    for place, call in enumerate(one.order):
        tokens = [canvas[place] for canvas in one.trajectory]
        assert set(tokens[call + 1 :]) == {one.ids[place]}
        assert call < 0 or tokens[call] != one.ids[place]


@pytest.mark.parametrize("how", SAMPLERS, ids=str)
@pytest.mark.parametrize("length", [20, 2 * LENGTH])
def test_a_trajectory_holds_the_canvases_of_its_own_calls(mdlm, length, how):
    prompts = ["ab", "a longer prompt", "x" * 20]
    done = mdlm.generate(prompts=prompts, length=length, seed=9, return_trajectory=True, **how)
    for prompt, one in zip(prompts, done, strict=True):
        check_trajectory(mdlm, one, prompt, length=length, **how)
    assert mdlm.sample(1, length=8)[0].trajectory is None


@pytest.mark.parametrize("kind", [Streamer, DraftStreamer])
@pytest.mark.parametrize("length", [24, 100])
def test_a_streamer_gets_the_prompt_and_then_the_final_tokens(mdlm, kind, length):
    options, streamer = {"prompt": "def f(", "length": length, "steps": 6, "seed": 2}, kind()
    (text,) = mdlm.generate(1, streamer=streamer, **options)
    one = mdlm.sample(1, **options)[0]
    assert text == one.text
    assert bytes(streamer.puts[0]) == b"def f("
    assert all(streamer.puts), "nothing is empty"
    assert streamer.tokens == one.ids
    assert streamer.ended == 1
    assert len(streamer.puts) > 2
    without_prompt = kind()
    mdlm.sample(1, length=8, streamer=without_prompt)
    assert without_prompt.puts[0] == []


def test_drafts_show_the_canvas_after_the_final_tokens(mdlm):
    streamer = DraftStreamer()
    (one,) = mdlm.sample(1, prompt="ab", length=16, steps=6, seed=2, streamer=streamer, return_trajectory=True)
    assert len(streamer.drafts) == one.calls, "every canvas but the last"
    for (put, draft), canvas in zip(streamer.drafts, one.trajectory, strict=False):
        assert draft == canvas[put:]
        assert draft[0] == mdlm.text_processor.mask_token_id


def test_a_streamer_gets_nothing_after_the_end_of_a_text(eager):
    streamer = DraftStreamer()
    (one,) = eager.sample(1, prompt="ab", length=40, seed=1, streamer=streamer)
    eos = eager.tokenizer.eos_token_id
    assert streamer.tokens == one.ids[: one.ids.index(eos)] == list(b"ab")
    assert eos not in {token for _, draft in streamer.drafts for token in draft}


def test_tokens_that_may_be_masked_again_are_put_after_the_last_call(mdlm, monkeypatch):
    monkeypatch.setattr(AncestralSampler, "rewrites", True)
    streamer = DraftStreamer()
    (one,) = mdlm.sample(1, prompt="ab", length=16, steps=6, seed=0, streamer=streamer)
    assert one.order[2] == 0, "the first token after the prompt is written in the first call"
    assert streamer.puts == [list(b"ab"), one.ids[2:]]
    assert {put for put, _ in streamer.drafts} == {2}


@pytest.mark.parametrize("name", ["TextStreamer", "TextDiffusionStreamer"])
def test_streamers_of_transformers_print_the_text(mdlm, capsys, name):
    kind = getattr(transformers, name, None)
    if kind is None:
        pytest.skip(f"this version of transformers has no {name}")
    (text,) = mdlm.generate(1, prompt="one two", length=20, steps=4, streamer=kind(mdlm.tokenizer))
    assert capsys.readouterr().out.rstrip("\n").endswith(text[-4:])


# -- the autoregressive model


def test_an_autoregressive_model_draws_from_its_conditionals(ar):
    assert isinstance(ar, AutoregressiveLM)
    assert ar.causal
    one = ar.sample(1, prompt="ab", length=12, seed=0)[0]
    assert one.calls == 10
    assert one.order == [-1, -1, *range(10)]
    bos = ar.denoiser.config.bos_token_id
    logits = ar.denoiser(torch.tensor([[bos, *one.ids[:-1]]])).logits[0]
    expected = logits.softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
    assert one.confidence[2:] == pytest.approx(expected[2:].tolist(), rel=1e-4)


def test_an_autoregressive_canvas_fills_a_row_by_default(tmp_path):
    """BOS takes no room on the canvas, unlike in a masked model."""
    folder = make_checkpoint(tmp_path / "framed", model="causal", policy={"name": "packed", "framed": True})
    lm = load(folder, device="cpu")
    assert len(lm.sample()[0].ids) == lm.row_length


def test_an_autoregressive_trajectory_begins_after_its_own_prompt(ar):
    prompts = ["ab", "abcdef", "a", "x" * 12]
    done = ar.generate(prompts=prompts, length=12, seed=1, return_trajectory=True)
    for i, (prompt, one) in enumerate(zip(prompts, done, strict=True)):
        assert one.text == ar.generate(prompt=prompt, length=12, seed=1 + i)[0]
        check_trajectory(ar, one, prompt, length=12)
        assert one.order == [-1] * len(prompt) + list(range(12 - len(prompt)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm: lm.fill("a [MASK] b"), "autoregressive.*after a blank"),
        (lambda lm: lm.fill("a[MASK:2-3]"), "autoregressive.*length of a blank"),
        (lambda lm: lm.fill_rows([[97, 257, 98]]), "autoregressive.*after a blank"),
        (lambda lm: lm.generate(1, prompt="a [MASK] b", length=12), "autoregressive.*after a blank"),
        (lambda lm: lm.generate(1, length=LENGTH + 1), f"at most {LENGTH} .*autoregressive"),
        (lambda lm: lm.generate(1, prompt="a", suffix="b", length=8), "autoregressive.*suffix"),
        (lambda lm: lm.generate(1, prompt="a", length=8, guidance=1.0), "autoregressive.*masked"),
        (lambda lm: lm.generate(1, length=8, particles=2, score=len), "autoregressive"),
        (lambda lm: lm.generate(1, length=8, constraint=Words("a")), "autoregressive"),
        (lambda lm: lm.generate(1, length=8, order="confidence"), "autoregressive"),
        (lambda lm: lm.generate(1, length=8, sampler="remdm"), "autoregressive"),
        (lambda lm: lm.generate(1, length=8, steps=2), "autoregressive.*left to right.*steps"),
        (lambda lm: lm.generate(1, length=8, stride=4), "autoregressive.*stride=4"),
        (lambda lm: lm.generate(1, length=8, window=4), "autoregressive.*window=4"),
        (lambda lm: lm.edit("abc"), "autoregressive"),
        (lambda lm: lm.rewrite("abc", keep=["b"]), "autoregressive"),
    ],
)
def test_an_autoregressive_model_says_what_it_cannot_do(ar, call, message):
    with pytest.raises(UnmaskError, match=message) as caught:
        call(ar)
    assert "\n" not in str(caught.value)


# -- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm: lm.generate(0), "n must be from 1 to 1000000, got 0"),
        (lambda lm: lm.generate(1_000_001), "n must be from 1 to 1000000, got 1000001"),
        (lambda lm: lm.generate(1.5), "n must be an integer, got 1.5"),
        (lambda lm: lm.generate(1, length=0), "length must be from 1"),
        (lambda lm: lm.stream(length=8.5), "length must be an integer, got 8.5"),
        (lambda lm: lm.generate(1, length=4, steps=0), "steps"),
        (lambda lm: lm.generate(1, length=8, order=3), "no order named '3'"),
        (lambda lm: lm.generate(1, prompt=5), "must be a string, got 5"),
        (lambda lm: lm.generate(1, prompt="x" * 9, length=8), "prompt has 9 tokens and the canvas 8"),
        (lambda lm: lm.generate(1, prompt="abc", suffix="defgh", length=7), "suffix have 8 tokens and the canvas 7"),
        (lambda lm: lm.generate(1, prompts=[]), "prompts must be a non-empty list"),
        (lambda lm: lm.generate(1, prompt="a", prompts=["b"]), "one of them"),
        (lambda lm: lm.generate(1, length=100, stride=LENGTH + 1), f"stride must be from 1 to {LENGTH}"),
        (lambda lm: lm.generate(1, length=100, window=LENGTH + 1), f"window must be from 1 to {LENGTH}"),
        (lambda lm: lm.generate(1, length=100, window=8, stride=9), "stride must be from 1 to 8"),
        (lambda lm: lm.generate(1, length=9, window=8, constraint=Words("a")), "at most 8, got 9"),
        (lambda lm: lm.generate(1, length=100, constraint=Words("a")), f"at most {LENGTH}, got 100"),
        (lambda lm: lm.generate(1, length=8, guidance=1.5), "guidance=1.5 needs a prompt"),
        (lambda lm: lm.generate(1, length=8, score=len, particles=2, constraint=Words("a")), "one of them"),
        (lambda lm: lm.generate(2, length=8, streamer=Streamer()), "streamer shows one text, got 2"),
        (lambda lm: lm.generate(1, length=8, streamer=5), "streamer must have put and end"),
        (lambda lm: lm.generate(1, length=8, streamer=Streamer(), best_of=3, score=len), "one text, got 3"),
        (lambda lm: lm.stream(length=8, best_of=3, score=len), "stream shows one text; leave out best_of=3"),
        (lambda lm: lm.generate(2, length=8, seed=2**63 - 1), r"to 2\*\*63 - 2 for 2 texts"),
        (lambda lm: lm.stream(n=3), "no option 'n'. Choose one of: .*length, .*prompt"),
        (lambda lm: lm.edit("abc", lenght=3), "no option 'lenght'. Choose one of: .*spans, steps, strength"),
        (lambda lm: lm.fill("no blank here"), "has no blank"),
        (lambda lm: lm.fill("abc[MASK:1000000000]"), "1000000003 tokens.*room for 48; shorten"),
        (lambda lm: lm.generate(1, prompt="a[MASK:1000000000]", length=90), "1000000001 tokens.*room for 90"),
        (lambda lm: lm.fill("ab[MASK:47-60]"), r"room for 46 tokens.*\[MASK:47-60\].*shorten"),
        (lambda lm: lm.fill("a" * 60 + "[MASK:2-4]"), r"room for 0 tokens.*\[MASK:2-4\]"),
        (
            lambda lm: lm.fill("a[MASK]", greedy=True, temperature=0.5),
            "greedy means temperature=0, got temperature=0.5",
        ),
        (lambda lm: lm.fill([]), "no texts to fill"),
        (lambda lm: lm.fill(5), "texts to fill must be a string"),
        (lambda lm: lm.fill_rows([[97], []]), "rows must be a non-empty list"),
        (lambda lm: lm.fill_rows([[97, 999]]), "Token ids must be .*, got 999"),
        (lambda lm: lm.edit(5), "must be a string, got 5"),
        (lambda lm: lm.edit(""), "no tokens"),
        (lambda lm: lm.edit("a" * 50), "shorten"),
        (lambda lm: lm.edit("abc", strength=0.0), r"strength must be in \(0, 1\], got 0.0"),
        (lambda lm: lm.edit("abc", strength=0.5, spans=[(0, 1)]), "spans, strength and keep exclude each other"),
        (lambda lm: lm.edit("abc", spans=[(2, 4)]), r"end <= 3, got \(2, 4\)"),
        (lambda lm: lm.edit("abc", spans=["ab"]), "spans must be pairs"),
        (lambda lm: lm.edit("abc", spans=[(0, 1, 2)]), "spans must be pairs"),
        (lambda lm: lm.rewrite("abc", keep=["x"]), "words of the text, got 'x'"),
        (lambda lm: lm.rewrite("abc", keep=["ab", "bc"]), "keep less"),
        (lambda lm: lm.rewrite("abc", [3]), r"keep must be a string or a list of strings, got \[3\]"),
        (lambda lm: lm.edit("some text", particles=3), "needs a constraint"),
        (lambda lm: lm.edit("abcd", constraint=Words("abcdef")), "4 tokens"),
        (lambda lm: lm.fill(["a[MASK:2-4]b"], particles=3, constraint=Words("a"), temperature=0), "temperature 0"),
        (lambda lm: lm.fill(["a[MASK:2-4]b", "a[MASK:x]b"]), "blank must be"),
        (lambda lm: lm.fill(["a[MASK:2-4]b", "[MASK][MASK:2-4]"]), "depends on known text"),
        (lambda lm: lm.fill(["a[MASK:2-4]b"] * 2, seed=2**63 - 1), "for 2 texts"),
        (lambda lm: lm.generate(prompt="a[MASK:2-4]b", suffix="[MASK:2-4]"), "depends on known text"),
        (lambda lm: lm.score([]), "no texts to score"),
        (lambda lm: lm.score("abc", given=5), "texts to condition on must be a string"),
        (lambda lm: lm.score("abc", seed="x"), "seed must be an integer, got 'x'"),
        (lambda lm: lm.score("abc", batch_size=0), "batch_size must be from 1"),
        (lambda lm: lm.score("abc", precision=0), "precision must be a positive number"),
    ],
)
def test_bad_input_is_one_sentence_before_the_network_is_called(mdlm, monkeypatch, call, message):
    for method in ("hidden", "hidden_at"):
        monkeypatch.setattr(mdlm.denoiser, method, lambda *_, **__: pytest.fail("the network was called"))
    with pytest.raises(UnmaskError, match=message) as caught:
        call(mdlm)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_mask_token_is_named(mdlm_folder):
    lm = load(mdlm_folder, device="cpu")
    lm.tokenizer.mask_token = None
    for call in (lambda: lm.generate(1, length=8), lambda: lm.fill("a[MASK]b"), lambda: lm.score("abc")):
        with pytest.raises(UnmaskError, match="no mask token"):
            call()


# -- alternatives for blanks


def test_alternatives_have_the_probabilities_of_the_network(mdlm):
    ids = mdlm.text_processor.encode(["ab"])[0]
    row = torch.tensor([[*ids, mdlm.tokenizer.mask_token_id, mdlm.tokenizer.mask_token_id, *ids]])
    p = mdlm.denoiser(row).logits[0].softmax(-1)
    found = mdlm.fill("ab[MASK:2]ab", top=5)
    assert len(found) == 2
    for position, one in zip((2, 3), found, strict=True):
        expected = p[position].topk(5)
        assert [token for token, _ in one] == [mdlm.tokenizer.decode([i]) for i in expected.indices]
        assert [value for _, value in one] == pytest.approx(expected.values.tolist(), rel=1e-4)
    assert mdlm.fill(["ab[MASK:2]ab", "[MASK]"], top=5)[0] == found
    assert len(mdlm.fill("a[MASK]b", top=10**5)[0]) == mdlm.denoiser.config.vocab_size - 1


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [("ab", 5, "has no blank"), ("a[MASK]", 0, "top must be from 1"), ("a[MASK]", 2.5, "top must be an integer")],
)
def test_bad_alternatives_are_one_sentence(mdlm, text, top, message):
    with pytest.raises(UnmaskError, match=message):
        mdlm.fill(text, top=top)


def test_an_autoregressive_model_has_no_alternatives(ar):
    with pytest.raises(UnmaskError, match="use a masked model"):
        ar.fill("a[MASK]", top=2)
