"""Blanks, canvases, and the piece of text that each position shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.conftest import make_checkpoint
from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data.documents import Document
from unmask.data.encoding import encode
from unmask.errors import UnmaskError
from unmask.pipeline import load
from unmask.text_processor import GLYPH, PieceReader, TextProcessor, decode_canvas, parse_blanks


def joined(pieces: list[str | None]) -> str:
    return "".join(GLYPH if piece is None else piece for piece in pieces)


def test_blanks_are_parsed():
    assert parse_blanks("[MASK]a[MASK:12][MASK]") == [1, "a", 12, 1]
    assert parse_blanks("[mask] x") == ["[mask] x"]
    assert parse_blanks("[MASK:2-6]a[MASK:3-3]") == [range(2, 7), "a", 3]
    assert parse_blanks("") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a [MASK:0] b", r"blank must be .*, got \[MASK:0\]"),
        ("a [MASK:x] b", r"blank must be .*, got \[MASK:x\]"),
        ("a [MASK:] b", r"blank must be .*, got \[MASK:\]"),
        ("a[MASK:6-2]", r"write it as \[MASK:2-6\]"),
        ("a[MASK:2-66]", "65 possible lengths, the maximum is 64"),
    ],
)
def test_bad_blanks_are_refused(text, message):
    with pytest.raises(UnmaskError, match=message):
        parse_blanks(text)


def test_a_space_before_a_blank_belongs_to_the_blank_if_tokens_begin_with_spaces(mdlm):
    """Byte-level BPE writes ' time' as one token, so a blank after a space could only be a word without one."""
    tokenizer = registry.build("tokenizer", {"name": "bpe", "vocab_size": 300}).build(
        lambda: iter([Document("one", "a time and a time and a time again " * 9)])
    )
    mask = tokenizer.mask_token_id
    config = SimpleNamespace(mask_token_id=mask, max_length=32, vocab_size=len(tokenizer))
    processor = TextProcessor(tokenizer, config, CheckpointConfig(length=32))
    a, again, space = encode(tokenizer, ["a", " again", " "])
    for text, expected in {
        "a [MASK] again": [*a, mask, *again],
        "a [MASK] [MASK:2]": [*a, mask, mask, mask],
        "a[MASK]": [*a, mask],
        "": [],
    }.items():
        assert processor.join(processor.parse(text)) == expected
    assert processor.join(processor.parse("[MASK] again "))[-1:] == space, "no blank follows"
    bytewise = mdlm.text_processor
    assert bytewise.join(bytewise.parse("a [MASK]")) == [97, 32, bytewise.mask_token_id], "spaces are tokens"


@pytest.mark.parametrize("policy", ["packed", "padded"])
def test_a_canvas_knows_its_given_tokens_and_where_a_text_may_not_end(tmp_path, policy):
    processor = load(make_checkpoint(tmp_path / policy, policy=policy), device="cpu").text_processor
    mask, eos = processor.mask_token_id, processor.eos_token_id
    rows = [[97, mask, mask, 98, mask, eos], [mask, mask], [97, mask, eos]]
    canvas = processor.canvas(rows, 0, torch.device("cpu"))
    assert canvas.condition.nonzero().tolist() == [[0, 0], [0, 3], [2, 0]]
    assert canvas.attention_mask.sum(dim=1).tolist() == [6, 2, 3]
    if policy == "packed":
        assert canvas.no_eos is None, "EOS separates texts"
    else:
        assert canvas.no_eos.nonzero().tolist() == [[0, 1], [0, 2]]


def test_a_character_belongs_to_the_last_of_its_tokens():
    byte = registry.build("tokenizer", "byte").build(lambda: iter(()))
    reader = PieceReader(byte, byte.mask_token_id)
    ids = [*"aé€😀".encode(), byte.mask_token_id, byte.eos_token_id, ord("b")]
    assert reader.read(ids) == ["a", "", "é", "", "", "€", "", "", "", "😀", None, "\n", "b"]
    assert reader.read([*"é".encode()[:1], byte.mask_token_id, ord("b")]) == ["�", None, "b"]
    assert reader.read([0xFF, 0xFF, *"€".encode(), ord("x")]) == ["", "", "", "", "��€", "x"]
    for raw in (b"\xff\xff\xe2\x82\xac", b"\xe2\x28\xa1", b"ab\xf0\x9f", b"\xff" * 9 + "né".encode()):
        pieces = reader.read(list(raw))
        assert len(pieces) == len(raw)
        assert joined(pieces) == decode_canvas(byte, list(raw), byte.mask_token_id), "invalid bytes"


def test_pieces_of_tokens_that_depend_on_their_neighbours():
    """WordPiece puts a space before a token unless it continues a word."""
    words = {"[UNK]": 0, "un": 1, "##able": 2, "to": 3, "[MASK]": 4, "[EOS]": 5}
    raw = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, mask_token="[MASK]", eos_token="[EOS]")
    assert PieceReader(tokenizer, 4).read([1, 2, 3, 4, 3]) == ["un", "able", " to", None, "to"]


@pytest.mark.parametrize("policy", ["packed", "supervised_eos"])
def test_the_pieces_of_a_frame_make_up_its_text(tmp_path, policy, monkeypatch):
    """A random byte-level model that likes EOS writes invalid characters and early ends."""
    lm = load(make_checkpoint(tmp_path / "lm", policy=policy), device="cpu")
    eos, early = lm.tokenizer.eos_token_id, 0
    head, bias = lm.denoiser.head, 5.0 * (torch.arange(lm.denoiser.config.vocab_size) == eos)
    monkeypatch.setattr(lm.denoiser, "head", lambda *args, **kwargs: head(*args, **kwargs) + bias)
    for seed in range(8):
        for frame in lm.stream("é[MASK:3]x", length=40, steps=10, seed=seed):
            assert len(frame.pieces) == 40
            assert joined(frame.pieces[: frame.end]) == frame.text
            assert [piece is None for piece in frame.pieces] == [i == lm.tokenizer.mask_token_id for i in frame.ids]
            assert policy == "supervised_eos" or frame.end == 40
            if frame.end < 40:
                early += 1
                assert frame.ids.index(eos) == frame.end
    assert (early > 0) == (policy == "supervised_eos")
