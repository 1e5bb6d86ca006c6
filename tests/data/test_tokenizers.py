"""Tokenizers: exact round trips, fixed ids, special tokens that no text can forge, and folders that load anywhere."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import transformers
from packaging.version import Version
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import unmask
from unmask import registry
from unmask.data import pieces
from unmask.data.encoding import Encoder, encode, encoder_of
from unmask.data.sources import Document
from unmask.data.tokenizers import byte_symbols, vocabulary_size
from unmask.errors import UnmaskError

DATA = os.environ.get("UNMASK_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="UNMASK_DATA, the folder with real data, is not set")
TEXTS = [
    "",
    " ",
    "hello world",
    "Ünï\r\n\tcode \U0001f600\U0001f468‍\U0001f469 漢字",
    "\x00nul\x00",
    "  two  spaces \n\n\n",
]
CHARACTERS = "".join(map(chr, (10, *range(32, 127))))
FORGED = "a [MASK] b[EOS]c [UNK] <|endoftext|>"


def corpus() -> Iterator[Document]:
    for number in range(40):
        yield Document(str(number), f"the {number}th story of the cat that sat on the mat, and the other cats.\n" * 3)


def build(spec: str | dict[str, object]) -> PreTrainedTokenizerFast:
    return registry.build("tokenizer", spec).build(corpus)


def in_parts(document: Document, size: int) -> list[Document]:
    """The document as a source hands out long ones."""
    texts = [document.text[start : start + size] for start in range(0, len(document.text), size)] or [""]
    return [Document(document.name, text, more=place + 1 < len(texts)) for place, text in enumerate(texts)]


def published(name: str) -> PreTrainedTokenizerFast:
    return build({"name": "huggingface", "path": f"{DATA}/vocab/{name}"})


def reload(tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[PreTrainedTokenizerFast]:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "unmask-dit"}')
    return [AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)]


def test_byte_ids_are_the_bytes() -> None:
    tokenizer = build("byte")
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id, vocabulary_size(tokenizer)) == (256, 257, 258)
    assert encode(tokenizer, TEXTS) == [list(text.encode()) for text in TEXTS]
    assert [tokenizer.decode(ids) for ids in encode(tokenizer, TEXTS)] == TEXTS
    every = [chr(number) for number in range(0x800) if not 0xD800 <= number < 0xE000]
    assert tokenizer.decode(encode(tokenizer, ["".join(every)])[0]) == "".join(every)


@pytest.mark.parametrize("spec", ["byte", {"name": "bpe", "vocab_size": 300}])
def test_round_trips_and_forged_special_tokens(spec: str | dict[str, object], tmp_path: Path) -> None:
    tokenizer = build(spec)
    assert tokenizer.mask_token_id == vocabulary_size(tokenizer) - 1 == len(tokenizer) - 1
    assert tokenizer.eos_token_id == tokenizer.mask_token_id - 1
    ids = encode(tokenizer, [*TEXTS, FORGED])
    for one in (tokenizer, *reload(tokenizer, tmp_path)):
        assert encode(one, [*TEXTS, FORGED]) == ids
        assert [one.decode(row) for row in ids] == [*TEXTS, FORGED]
        assert (one.mask_token_id, one.eos_token_id, len(one)) == (
            tokenizer.mask_token_id,
            tokenizer.eos_token_id,
            len(tokenizer),
        )
        assert encoder_of(one).identity == encoder_of(tokenizer).identity, "a reloaded tokenizer finds its caches"
    assert not {tokenizer.mask_token_id, tokenizer.eos_token_id} & set(ids[-1])
    assert tokenizer.decode([tokenizer.mask_token_id], skip_special_tokens=True) == ""
    assert tokenizer.decode([*ids[2], tokenizer.mask_token_id]) == "hello world[MASK]"


def test_bpe_learns_pairs_and_is_deterministic() -> None:
    spec = {"name": "bpe", "vocab_size": 300}
    tokenizer = build(spec)
    assert len(tokenizer) == 300
    assert build(spec).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert len(encode(tokenizer, ["the cat"])[0]) < len("the cat")
    assert tokenizer.decode(encode(tokenizer, ["the cat"])[0][:1]) in "the cat", "no space is put before the text"
    assert len(build({"name": "bpe", "vocab_size": 5000})) < 5000, "a small text has few pairs"
    with pytest.raises(UnmaskError, match=r"vocab_size must be .*, got 257"):
        build({"name": "bpe", "vocab_size": 257})


def test_char_has_text8_symbols_and_no_eos(tmp_path: Path) -> None:
    tokenizer = build("char")
    assert (vocabulary_size(tokenizer), tokenizer.mask_token_id, tokenizer.eos_token_id) == (28, 27, None)
    assert encode(tokenizer, [" az", ""]) == [[0, 1, 26], []]
    for one in (tokenizer, *reload(tokenizer, tmp_path)):
        assert one.decode(encode(one, ["a lazy  dog "])[0]) == "a lazy  dog "
        assert one.mask_token_id == 27


@pytest.mark.parametrize(
    ("text", "message"),
    [("abC", r"'C' \(U\+0043\) at position 2"), ("a\n", r"'\\n' \(U\+000A\) at position 1"), ("[MASK]", r"'\['")],
)
def test_an_unknown_character_is_named(text: str, message: str) -> None:
    with pytest.raises(UnmaskError, match=f"Text 1 has the character {message}"):
        encode(build("char"), ["fine", text])


def test_positions_in_errors_are_those_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LONG", 10)
    with pytest.raises(UnmaskError, match=r"Text 1 has the character 'C' \(U\+0043\) at position 25"):
        encode(build("char"), ["fine", "x" * 25 + "C", "fine"])
    with pytest.raises(UnmaskError, match="Text 2 has half a surrogate pair at position 31"):
        encode(build("byte"), ["", "fine", "é" * 31 + "\ud800"])


def test_char_takes_another_alphabet() -> None:
    tokenizer = build({"name": "char", "alphabet": "ACGT\n\U0001f600"})
    assert encode(tokenizer, ["TGCA\n\U0001f600"]) == [[3, 2, 1, 0, 4, 5]]
    assert tokenizer.mask_token_id == 6
    for alphabet in ("", "aa"):
        with pytest.raises(UnmaskError, match="alphabet"):
            build({"name": "char", "alphabet": alphabet})


@pytest.mark.parametrize("spec", ["byte", {"name": "char", "alphabet": "abcd .\n"}])
def test_the_table_equals_the_library(spec: str | dict[str, object]) -> None:
    tokenizer = build(spec)
    texts = ["", "a", "abcd. dcba\n" * 5]
    by_library = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert encoder_of(tokenizer)._table is not None
    assert encode(tokenizer, texts) == by_library


def test_byte_symbols_are_the_library_s() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(byte_symbols()) == sorted(ByteLevel.alphabet())


@pytest.mark.parametrize("size", [5, 50, 700])
def test_long_texts_are_cut_only_where_that_changes_nothing(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    text = "".join(document.text for document in corpus()) + "  \n\n \t end"
    tokenizer = build({"name": "bpe", "vocab_size": 300})
    whole = encode(tokenizer, [text])
    monkeypatch.setattr(pieces, "LONG", size)
    assert len(list(encoder_of(tokenizer).pieces([Document("a", text)]))) > len(text) / (size + 12)
    assert encode(tokenizer, [text, "short", text]) == [whole[0], encode(tokenizer, ["short"])[0], whole[0]]


@pytest.mark.parametrize("spec", ["byte", {"name": "bpe", "vocab_size": 300}])
def test_what_is_not_too_long_is_one_piece(monkeypatch: pytest.MonkeyPatch, spec: str | dict[str, object]) -> None:
    monkeypatch.setattr(pieces, "LONG", 9)
    encoder = encoder_of(build(spec))
    assert [piece.text for piece in encoder.pieces([Document("a", "four four"), Document("b", "")])] == [
        "four four",
        "",
    ]
    assert [piece.text for piece in encoder.pieces([Document("a", "four four four")])] == ["four four", " four"]


def metaspace(prepend: str) -> Encoder:
    """A tokenizer that marks the beginning of a text, or of every word, as Llama's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"▁a": 0, "▁": 1, "a": 2, "[UNK]": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    return Encoder(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("prepend", ["always", "first", "never"])
def test_a_mark_at_the_start_of_a_text_is_not_put_before_each_piece(
    monkeypatch: pytest.MonkeyPatch, prepend: str
) -> None:
    encoder = metaspace(prepend)
    text = "a " * 100 + "a"
    whole = encoder([text])[0].tolist()
    monkeypatch.setattr(pieces, "LONG", 50)
    assert len(list(encoder.pieces([Document("a", text)]))) > 3
    assert encoder([text])[0].tolist() == whole


def test_a_cut_moves_on_where_a_token_would_be_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens(["b a"])
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    monkeypatch.setattr(pieces, "LONG", 50)
    text = "a b " * 100
    *parts, last = encoder.pieces([Document("a", text)])
    assert {part.text[-1] for part in parts} == {"a"}
    for size in (1, 2, 52):
        assert [*parts, last] == list(encoder.pieces(in_parts(Document("a", text), size))), "it waits for what follows"
    assert encoder([text])[0].tolist() == [0, *[3] * 99, 1] == encoder._batch([text])[0].tolist()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("spec", ["byte", {"name": "char", "alphabet": CHARACTERS}, {"name": "bpe", "vocab_size": 300}])
def test_pieces_do_not_depend_on_how_the_source_cuts(
    monkeypatch: pytest.MonkeyPatch, spec: str | dict[str, object], size: int
) -> None:
    monkeypatch.setattr(pieces, "LONG", 100)
    encoder = encoder_of(build(spec))
    documents = list(corpus())
    handed_out = [part for document in documents for part in in_parts(document, size)]
    found = list(encoder.pieces(handed_out))
    assert found == list(encoder.pieces(documents))
    assert len(found) > len(documents)
    assert "".join(piece.text for piece in found) == "".join(document.text for document in documents)
    for left, right in pairwise(found):
        assert right.before == (left.text[-pieces.CONTEXT :] if left.more else "")
        assert right.start == (left.start + len(left.text) if left.more else 0)


def test_the_mask_token_in_a_text_is_refused_where_it_cannot_be_told_apart() -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens([AddedToken("<mask>", special=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer._special_tokens_map["mask_token"] = "<mask>"
    assert tokenizer.mask_token_id == 2
    with pytest.raises(UnmaskError, match=r"Text 1 contains the mask token \(id 2\)"):
        encode(tokenizer, ["a a", "a <mask> a"])


def test_half_a_surrogate_is_refused() -> None:
    with pytest.raises(UnmaskError, match="half a surrogate pair at position 1"):
        encode(build("byte"), ["a\ud800"])


@pytest.mark.parametrize("spec", ["byte", {"name": "bpe", "vocab_size": 300}])
def test_settings_do_not_matter_and_added_tokens_do(spec: str | dict[str, object]) -> None:
    tokenizer = build(spec)
    size = len(tokenizer)
    ids = encode(tokenizer, ["the cat sat"])
    tokenizer(["the cat sat"], truncation=True, max_length=2)
    assert encode(tokenizer, ["the cat sat"]) == ids, "truncation of another call has no part here"
    tokenizer.add_tokens(["the cat"])
    assert encode(tokenizer, ["the cat sat"])[0][0] == size, "an added token is used"


def test_a_folder_without_tokenizer_and_a_bad_name(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="has no tokenizer in it"):
        build({"name": "huggingface", "path": str(tmp_path)})
    with pytest.raises(UnmaskError, match="No tokenizer could be loaded from 'no/such/place'"):
        build({"name": "huggingface", "path": "no/such/place"})


def test_a_saved_tokenizer_is_a_huggingface_tokenizer(tmp_path: Path) -> None:
    tokenizer = build("byte")
    tokenizer.save_pretrained(tmp_path)
    again = build({"name": "huggingface", "path": str(tmp_path)})
    assert (again.mask_token_id, again.eos_token_id, len(again)) == (257, 256, 258)
    assert encode(again, [FORGED]) == encode(tokenizer, [FORGED])


def test_a_folder_loads_with_and_without_our_models(tmp_path: Path) -> None:
    reload(build("byte"), tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] in (
        "PreTrainedTokenizerFast",
        "TokenizersBackend",
    )
    code = (
        "import sys; from transformers import AutoTokenizer; assert 'unmask' not in sys.modules\n"
        f"first = AutoTokenizer.from_pretrained({str(tmp_path)!r}); import unmask.models\n"
        f"second = AutoTokenizer.from_pretrained({str(tmp_path)!r})\n"
        "assert all(t.mask_token_id == 257 and t.decode([104, 105]) == 'hi' for t in (first, second))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(unmask.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"), reason="transformers imports torch by itself up to 5.17"
)
def test_torch_is_not_imported() -> None:
    code = (
        "import sys\nfrom unmask.data import cache, encoding, length_policies, sources, split, stdlib, tokenizers\n"
        "t = tokenizers.ByteTokenizer().build(lambda: iter(()))\nassert encoding.encode(t, ['hi']) == [[104, 105]]\n"
        "import unmask.data; assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(unmask.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@needs_data
def test_gpt2(tmp_path: Path) -> None:
    tokenizer = published("gpt2")
    assert (vocabulary_size(tokenizer), tokenizer.mask_token_id, tokenizer.eos_token_id) == (50_258, 50_257, 50_256)
    assert encode(tokenizer, ["Hello world", " Hello"]) == [[15496, 995], [18435]]
    ids = encode(tokenizer, [*TEXTS, FORGED])
    assert max(max(row, default=0) for row in ids) < 50_256
    for one in (tokenizer, *reload(tokenizer, tmp_path)):
        assert encode(one, [*TEXTS, FORGED]) == ids
        assert [one.decode(row) for row in ids] == [*TEXTS, FORGED]
        assert one.mask_token_id == 50_257
        assert encoder_of(one).identity == encoder_of(tokenizer).identity


@needs_data
def test_bert(tmp_path: Path) -> None:
    tokenizer = published("bert-base-uncased")
    assert (vocabulary_size(tokenizer), tokenizer.mask_token_id, tokenizer.pad_token_id) == (30_522, 103, 0)
    assert tokenizer.eos_token_id == tokenizer.sep_token_id == 102
    assert encode(tokenizer, ["Hello, wörld!"]) == [[7592, 1010, 2088, 999]]
    forged = encode(tokenizer, ["a [MASK] b [SEP]"])[0]
    assert not {102, 103} & set(forged)
    for one in (tokenizer, *reload(tokenizer, tmp_path)):
        assert encode(one, ["a [MASK] b [SEP]"])[0] == forged
        assert one.decode(encode(one, ["the cat sat"])[0]) == "the cat sat"
        assert one.mask_token_id == 103


@needs_data
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_long_published_encodings_join(name: str) -> None:
    encoder = Encoder(published(name))
    text = "".join(document.text for document in corpus()) * 20
    assert len(text) > pieces.LONG
    assert np.array_equal(encoder([text])[0], encoder._batch([text])[0])


@needs_data
def test_a_llama_tokenizer_gets_a_mask_as_its_last_id() -> None:
    tokenizer = build({"name": "huggingface", "path": f"{DATA}/stories/judge"})
    assert (tokenizer.mask_token_id, vocabulary_size(tokenizer), tokenizer.eos_token) == (32_000, 32_001, "</s>")
    assert tokenizer.decode(encode(tokenizer, ["Once upon a time"])[0]) == "Once upon a time"


@needs_data
def test_text8_is_27_symbols() -> None:
    with lzma.open(f"{DATA}/text8/text8_74m.txt.xz") as file:
        text = file.read(74_000_000).decode()
    ids = Encoder(build("char"))([text])[0]
    assert len(ids) == 74_000_000
    assert np.bincount(ids, minlength=28)[27] == 0
    assert build("char").decode(ids[:30].tolist()) == " anarchism originated as a ter"
