"""Token by token: what each position of a canvas shows, joined, is the text of the canvas."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.conftest import make_checkpoint
from unmask import registry
from unmask.pipeline import load
from unmask.text_processor import GLYPH, PieceReader, decode_canvas


@pytest.fixture(scope="module")
def byte():
    return registry.build("tokenizer", "byte").build(lambda: iter(()))


def joined(pieces: list[str | None]) -> str:
    return "".join(GLYPH if piece is None else piece for piece in pieces)


def test_a_letter_belongs_to_the_last_of_its_tokens(byte):
    reader = PieceReader(byte, byte.mask_token_id)
    ids = [*"aé€😀".encode(), byte.mask_token_id, byte.eos_token_id, ord("b")]
    assert reader.read(ids) == ["a", "", "é", "", "", "€", "", "", "", "😀", None, "\n", "b"]
    assert reader.read([*"é".encode()[:1], byte.mask_token_id, ord("b")]) == ["�", None, "b"]


@pytest.mark.parametrize("raw", [b"\xff\xff\xe2\x82\xac", b"\xe2\x28\xa1", b"ab\xf0\x9f", b"\xff" * 9 + "né".encode()])
def test_broken_letters_are_shown_as_the_text_shows_them(byte, raw):
    pieces = PieceReader(byte, byte.mask_token_id).read(list(raw))
    assert len(pieces) == len(raw)
    assert joined(pieces) == decode_canvas(byte, list(raw), byte.mask_token_id)


def test_a_letter_behind_broken_ones_still_belongs_to_its_last_token(byte):
    pieces = PieceReader(byte, byte.mask_token_id).read([0xFF, 0xFF, *"€".encode(), ord("x")])
    assert pieces == ["", "", "", "", "��€", "x"]


def test_tokens_that_read_differently_among_others():
    """WordPiece: a token brings the blank before it, unless it goes on with a word."""
    words = {"[UNK]": 0, "un": 1, "##able": 2, "to": 3, "[MASK]": 4, "[EOS]": 5}
    raw = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, mask_token="[MASK]", eos_token="[EOS]")
    assert PieceReader(tokenizer, 4).read([1, 2, 3, 4, 3]) == ["un", "able", " to", None, "to"]


@pytest.mark.parametrize("policy", ["packed", "supervised_eos"])
def test_frames_are_their_pieces(tmp_path, policy, monkeypatch):
    """A random model of bytes writes much that is no letter, and ends early where EOS, which it likes, ends a text."""
    lm = load(make_checkpoint(tmp_path / "lm", policy=policy), device="cpu")
    eos, early = lm.tokenizer.eos_token_id, 0
    head, bias = lm.denoiser.head, 5.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    for seed in range(8):
        for frame in lm.stream("é[MASK:3]x", length=40, steps=10, seed=seed):
            assert len(frame.pieces) == 40
            assert joined(frame.pieces[: frame.end]) == frame.text
            assert [piece is None for piece in frame.pieces] == [i == lm.tokenizer.mask_token_id for i in frame.ids]
            if policy == "packed":
                assert frame.end == 40
            elif frame.end < 40:
                early += 1
                assert frame.ids.index(eos) == frame.end
    assert (early > 0) == (policy == "supervised_eos")
