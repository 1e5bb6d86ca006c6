"""Edits: which tokens are written anew, and what stays as it is."""

from __future__ import annotations

import re

import pytest
import torch

from tests.conftest import make_checkpoint
from unmask import registry
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.constraints import NoWords, Regex
from unmask.constraints.members import can_accept
from unmask.data.encoding import encode
from unmask.data.sources import Document
from unmask.infilling import Edges, log_chances, opened_up
from unmask.laws import exact
from unmask.laws.tables import random_table
from unmask.pipeline import load

TEXT = "One day é went to the ☃ park."


def written(one) -> list[int]:
    return [place for place, order in enumerate(one.order) if order >= 0]


def test_the_characters_of_a_span_are_written_anew(mdlm):
    one = mdlm.edit_details(TEXT, spans=[(0, 3), (12, 13)])
    assert written(one) == [0, 1, 2, 13]
    assert bytes(one.ids[3:13] + one.ids[14:]) == TEXT.encode()[3:13] + TEXT.encode()[14:]
    assert mdlm.edit(TEXT, spans=[(0, 3), (12, 13)]) == one.text


@pytest.mark.parametrize(("span", "places"), [((8, 9), [8, 9]), ((22, 23), [23, 24, 25]), ((21, 22), [22])])
def test_all_bytes_of_a_letter_are_written_anew(mdlm, span, places):
    assert TEXT[8] == "é"
    assert TEXT[22] == "☃"
    assert written(mdlm.edit_details(TEXT, spans=[span])) == places


def chances_one_by_one(lm, ids):
    """[n] log p of each token with it alone masked."""
    out = []
    for place, token in enumerate(ids):
        z = torch.tensor([[*ids[:place], lm.text_processor.mask, *ids[place + 1 :]]])
        out.append(float(lm.denoiser(z).logits.detach()[0, place].log_softmax(-1)[token]))
    return out


def test_the_chance_of_a_token_is_that_given_the_others(mdlm):
    ids = list(b"abc de")
    said = log_chances(mdlm.denoiser, torch.tensor(ids), len(ids))
    assert said.tolist() == pytest.approx(chances_one_by_one(mdlm, ids), rel=1e-4), "few tokens are hidden alone"
    ids = list(b"a longer text of many tokens")
    said = log_chances(mdlm.denoiser, torch.tensor(ids), len(ids))
    for group in range(8):
        z = torch.tensor(
            [[mdlm.text_processor.mask if place % 8 == group else token for place, token in enumerate(ids)]]
        )
        log_p = mdlm.denoiser(z).logits.detach()[0].log_softmax(-1)
        for place in range(group, len(ids), 8):
            assert float(said[place]) == pytest.approx(float(log_p[place, ids[place]]), rel=1e-4)


def test_the_frame_of_a_text_is_seen_and_the_network_told_how_much_is_hidden():
    table = random_table(conditioned=True)
    row = torch.tensor([2, 0, 3])
    said = log_chances(table, row, 2)
    for place in range(2):
        z = row.clone()
        z[place] = 1
        log_p = exact.log_conditionals(table, z[None], torch.tensor([2 / 3], dtype=torch.float64))[0]
        assert float(said[place]) == pytest.approx(float(log_p[place, row[place]]), rel=1e-5)


def test_the_least_likely_tokens_are_written_anew(mdlm, monkeypatch):
    calls, run = [], mdlm.denoiser._run
    ids = list(b"abc defg")
    order = sorted(range(8), key=chances_one_by_one(mdlm, ids).__getitem__)
    for strength, count in ((0.01, 1), (0.25, 2), (0.5, 4), (1.0, 8)):
        assert written(mdlm.edit_details("abc defg", strength=strength)) == sorted(order[:count])
    assert len(written(mdlm.edit_details("abcdefghij"))) == 3, "0.3 unless asked otherwise"
    monkeypatch.setattr(mdlm.denoiser, "_run", lambda *a, **k: calls.append(1) or run(*a, **k))
    one = mdlm.edit_details("some longer text to be judged", strength=0.2)
    assert len(calls) == 1 + one.calls == 7, "one call to judge them all"


def test_what_is_kept_stays_and_all_else_is_written_anew(mdlm):
    text = "One day Tim went to see Tim's dog."
    one = mdlm.edit_details(text, keep=["Tim", " dog."])
    kept = [*range(8, 11), *range(24, 27), *range(29, 34)]
    assert written(one) == [place for place in range(34) if place not in kept]
    assert bytes(one.ids[place] for place in kept) == b"TimTim dog."
    assert mdlm.rewrite(text, keep=["Tim", " dog."]) == one.text
    assert one.text.count("Tim") >= 2
    assert one.text.endswith(" dog.")
    overlapping = mdlm.edit_details("xabcax", keep=["abc", "ca"])
    assert written(overlapping) == [0, 5]


def test_edits_take_the_options_of_generation(mdlm):
    text = "some text to be changed"
    assert mdlm.edit(text, seed=1, temperature=0.0) == mdlm.edit(text, seed=2, temperature=0.0)
    assert mdlm.edit_details(text, strength=1.0, steps=3).calls <= 3
    assert mdlm.edit(text, seed=1, strength=1.0) != mdlm.edit(text, seed=2, strength=1.0)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A random model of byte pairs, to which ' time' is one token."""
    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = registry.build("tokenizer", {"name": "bpe", "vocab_size": 300}).build(
        lambda: iter([Document("one", "a time and a time and a time again " * 9)])
    )
    torch.manual_seed(0)
    spec = registry.build("model", {"name": "dit", "hidden_size": 32, "layers": 1, "heads": 2})
    network = spec.build(len(tokenizer), tokenizer.mask_token_id, 32)
    save_checkpoint(folder, network, tokenizer, CheckpointConfig(policy="padded", length=32))
    return load(folder, device="cpu")


def test_words_of_a_byte_pair_tokenizer_are_kept_with_the_space_before_them(bpe):
    text = "a time and a time again"
    draft = opened_up(bpe.text_processor, bpe.denoiser, text, None, None, ["time"])
    assert [i for i in draft.ids if i != bpe.text_processor.mask] == 2 * encode(bpe.tokenizer, [" time"])[0]
    for seed in range(20):
        assert len(re.findall(r" time(?![^\W_])", bpe.rewrite(text, keep=["time"], seed=seed))) >= 2
    draft = opened_up(bpe.text_processor, bpe.denoiser, "time and time", None, None, ["time"])
    assert draft.ids[: draft.ids.index(bpe.text_processor.mask)] == encode(bpe.tokenizer, ["time"])[0], (
        "nothing before it"
    )


@pytest.mark.parametrize(("side", "words"), [(-1, [" ", "."]), (0, [" ", ".", " time", " a"])])
def test_no_letter_stands_at_the_edge_of_a_word(bpe, side, words):
    automaton = Edges((0,), side).automaton(bpe.text_processor.vocabulary)
    for word in (" ", ".", "t", "tim", " time", " a"):
        (token,) = encode(bpe.tokenizer, [word])[0]
        assert can_accept(automaton, [token], bpe.text_processor.mask) == (word in words)
    draft = opened_up(bpe.text_processor, bpe.denoiser, "(time) and", None, None, ["time"])
    end = len(encode(bpe.tokenizer, ["time"])[0]) + 1
    assert draft.edges == (Edges((0,), -1), Edges((end,), 0))


def test_a_span_of_a_byte_pair_tokenizer_takes_the_space_along(bpe):
    ids = opened_up(bpe.text_processor, bpe.denoiser, "a time and a time again", [(2, 6)], None, None).ids
    assert bpe.tokenizer.decode([i for i in ids if i != bpe.text_processor.mask]) == "a and a time again"
    assert ids.count(bpe.text_processor.mask) == 1


def is_letter(token: int) -> bool:
    """Whether a byte is a letter, or a part of one; EOS is none."""
    return 128 <= token < 256 or (chr(token).isascii() and chr(token).isalnum())


def test_a_kept_word_stays_a_word_where_it_is_one_in_the_text(mdlm):
    for seed in range(20):
        ids = mdlm.edit_details("One day Tim, or not", keep="Tim", seed=seed, steps=3).ids
        assert not is_letter(ids[7])
        assert not is_letter(ids[11])
    beside = [mdlm.edit_details("One Timothy, or not", keep="Tim", seed=seed).ids for seed in range(20)]
    assert any(is_letter(ids[7]) for ids in beside), "there it was the beginning of another"
    assert not any(is_letter(ids[3]) for ids in beside)


def test_kept_words_and_a_constraint_hold_together(mdlm):
    for constraint in (Regex("[aTim .]+"), [Regex("[aTim.]+"), NoWords("aa")]):
        for seed in range(5):
            text = mdlm.rewrite("one Tim and", keep="Tim", constraint=constraint, seed=seed)
            assert re.fullmatch(r"[aTim .]{3}[ .]Tim[ .][aTim .]{3}", text)
            assert isinstance(constraint, Regex) or not re.search("aa| ", text)


def test_a_single_word_may_be_kept_without_a_list(mdlm):
    text = "Tim went. Time is up."
    assert mdlm.rewrite(text, "Tim") == mdlm.rewrite(text, ["Tim"]) != mdlm.rewrite(text, list("Tim"))


def test_nothing_kept_is_all_anew_and_no_span_is_nothing_anew(mdlm):
    assert min(mdlm.edit_details("abc def", keep=[]).order) == 0
    assert mdlm.edit("abc def", spans=[]) == "abc def"


def test_a_padded_text_keeps_its_frame(tmp_path):
    lm = load(make_checkpoint(tmp_path / "padded", policy="padded"), device="cpu")
    one = lm.edit_details("abcdef", strength=0.5)
    assert one.ids[-1] == lm.tokenizer.eos_token_id
    assert len(written(one)) == 3
    assert max(written(one)) < 6
