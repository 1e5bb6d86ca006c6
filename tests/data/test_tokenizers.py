"""Tokenizers: exact round trips, fixed ids, special tokens that no text can forge, and folders that load anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import unmask
from unmask import registry
from unmask.data import encoding
from unmask.data.documents import CorpusDigest, Document
from unmask.data.encoding import byte_symbols, encode, encode_one, encoder_of, vocabulary_size
from unmask.data.tokenizers import BPETokenizer, framed_tokenizer
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
FORGED = "a [MASK] b[EOS]c [UNK] <|endoftext|>"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


def corpus() -> Iterator[Document]:
    for number in range(400):
        yield Document(str(number), f"the {number}th story of the cat that sat on the mat, and the other cats.\n")


DIGEST = CorpusDigest.of(corpus())


def build(spec: str | dict[str, object]) -> PreTrainedTokenizerFast:
    return registry.build("tokenizer", spec).build(corpus)


def reload(tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[PreTrainedTokenizerFast]:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "unmask-dit"}')
    return [AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)]


def test_byte_ids_are_the_bytes() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = build("byte")
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id, vocabulary_size(tokenizer)) == (256, 257, 258)
    assert encode(tokenizer, TEXTS) == [list(text.encode()) for text in TEXTS]
    every = "".join(chr(number) for number in range(0x800) if not 0xD800 <= number < 0xE000)
    assert tokenizer.decode(encode(tokenizer, [every])[0]) == every
    assert sorted(byte_symbols()) == sorted(ByteLevel.alphabet())


@pytest.mark.parametrize("spec", ["byte", {"name": "bpe", "vocab_size": 300}])
def test_round_trips_and_forged_special_tokens(spec: str | dict[str, object], tmp_path: Path) -> None:
    tokenizer = build(spec)
    assert tokenizer.mask_token_id == vocabulary_size(tokenizer) - 1 == len(tokenizer) - 1
    assert tokenizer.eos_token_id == tokenizer.mask_token_id - 1
    ids = encode(tokenizer, [*TEXTS, FORGED])
    reloaded = reload(tokenizer, tmp_path)
    for one in (tokenizer, *reloaded, build({"name": "huggingface", "path": str(tmp_path)})):
        assert encode(one, [*TEXTS, FORGED]) == ids
        assert [one.decode(row) for row in ids] == [*TEXTS, FORGED]
        assert (one.mask_token_id, len(one)) == (tokenizer.mask_token_id, len(tokenizer))
        assert one.eos_token_id == tokenizer.eos_token_id
        assert encoder_of(one).identity == encoder_of(tokenizer).identity, "a reloaded tokenizer finds its caches"
    assert not {tokenizer.mask_token_id, tokenizer.eos_token_id} & set(ids[-1])
    assert tokenizer.decode([tokenizer.mask_token_id], skip_special_tokens=True) == ""
    assert tokenizer.decode([*ids[2], tokenizer.mask_token_id]) == "hello world[MASK]"


def test_char_has_the_symbols_of_text8_and_no_eos(tmp_path: Path) -> None:
    tokenizer = build("char")
    assert (vocabulary_size(tokenizer), tokenizer.mask_token_id, tokenizer.eos_token_id) == (28, 27, None)
    assert encode(tokenizer, [" az", ""]) == [[0, 1, 26], []]
    for one in (tokenizer, *reload(tokenizer, tmp_path)):
        assert one.decode(encode(one, ["a lazy  dog "])[0]) == "a lazy  dog "
        assert one.mask_token_id == 27
    other = build({"name": "char", "alphabet": "ACGT\n\U0001f600"})
    assert encode(other, ["TGCA\n\U0001f600"]) == [[3, 2, 1, 0, 4, 5]]
    assert other.mask_token_id == 6


def test_bpe_learns_pairs_and_is_deterministic() -> None:
    spec = {"name": "bpe", "vocab_size": 300}
    tokenizer = build(spec)
    assert len(tokenizer) == 300
    assert build(spec).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert len(encode(tokenizer, ["the cat"])[0]) < len("the cat")
    assert tokenizer.decode(encode(tokenizer, ["the cat"])[0][:1]) in "the cat", "no space is put before the text"
    assert len(build({"name": "bpe", "vocab_size": 5000})) < 5000, "a small text has few pairs"
    assert len(BPETokenizer().build(lambda: iter(()), CorpusDigest())) == 258, "without text only bytes are left"


def test_bpe_is_found_again_by_content_and_options(folder: Path) -> None:
    def forbidden() -> Iterator[Document]:
        raise AssertionError("the text is read again")

    tokenizer = BPETokenizer(vocab_size=300).build(corpus, DIGEST)
    again = BPETokenizer(vocab_size=300).build(forbidden, DIGEST)
    assert encoder_of(again).identity == encoder_of(tokenizer).identity
    assert (again.mask_token_id, again.eos_token_id, len(again)) == (299, 298, 300)
    alone = BPETokenizer(vocab_size=300).build(corpus)
    assert alone.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()
    other = [Document("a", "abc" * 9)]
    BPETokenizer(vocab_size=290).build(corpus, DIGEST)
    BPETokenizer(vocab_size=300).build(lambda: iter(other), CorpusDigest.of(other))
    BPETokenizer(vocab_size=300, sample_characters=1000).build(corpus, DIGEST)
    assert len(list(folder.glob("*/tokenizer.json"))) == 4


def test_a_damaged_bpe_is_trained_again(folder: Path) -> None:
    tokenizer = BPETokenizer(vocab_size=300).build(corpus, DIGEST)
    (file,) = folder.rglob("tokenizer.json")
    file.write_text(file.read_text()[:1000])
    again = BPETokenizer(vocab_size=300).build(corpus, DIGEST)
    assert encoder_of(again).identity == encoder_of(tokenizer).identity
    assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]


def sampled(size: int, documents: list[Document]) -> list[str]:
    characters = CorpusDigest.of(documents).characters
    return list(BPETokenizer(sample_characters=size)._sample(iter(documents), characters))


def test_bpe_samples_a_large_text_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = list(corpus())
    texts = [document.text for document in documents]
    total = sum(map(len, texts))
    assert sampled(total, documents) == sampled(10 * total, documents) == texts
    for wanted in range(30, total, 1111):
        assert wanted - 80 < sum(map(len, sampled(wanted, documents))) <= wanted
    some = sampled(total // 4, documents)
    quarters = [sum(text in some for text in texts[start : start + 100]) for start in range(0, 400, 100)]
    assert all(15 <= number <= 35 for number in quarters)
    assert len(set(np.diff([texts.index(text) for text in some]).tolist())) > 5, "by a hash, not every fourth"
    text = "".join(texts)
    parts = [Document("long", text[start : start + 999], True) for start in range(0, len(text), 999)]
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 200)
    passages = sampled(len(text) // 4, [*parts, Document("long", "")])
    assert len(passages) > 20
    assert all(passage in text for passage in passages)
    assert 0.9 * len(text) / 4 < sum(map(len, passages)) <= len(text) // 4
    assert text.rindex(passages[-1]) > 0.8 * len(text)


def test_bpe_is_trained_on_the_sample() -> None:
    documents = [Document(str(number), f"word{'abcdefghij'[number % 10] * 5} " * 3) for number in range(1000)]
    few = BPETokenizer(vocab_size=500, sample_characters=60).build(lambda: iter(documents))
    assert len(few) < len(BPETokenizer(vocab_size=500).build(lambda: iter(documents)))


def test_bad_specifications_are_errors(tmp_path: Path) -> None:
    for spec, message in (
        ({"name": "bpe", "vocab_size": 257}, "vocab_size must be .*, got 257"),
        ({"name": "char", "alphabet": ""}, "alphabet"),
        ({"name": "char", "alphabet": "aa"}, "alphabet"),
        ({"name": "huggingface", "path": str(tmp_path)}, "has no tokenizer in it"),
        ({"name": "huggingface", "path": "no/such/place"}, "No tokenizer could be loaded from 'no/such/place'"),
    ):
        with pytest.raises(UnmaskError, match=message):
            build(spec)


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


@needs_data
@pytest.mark.parametrize(
    ("name", "size", "mask", "eos", "text", "ids"),
    [
        ("vocab/gpt2", 50_258, 50_257, 50_256, "Hello world", [15496, 995]),
        ("vocab/bert-base-uncased", 30_522, 103, 102, "Hello, wörld!", [7592, 1010, 2088, 999]),
        ("stories/judge", 32_001, 32_000, 2, "Once upon a time", [9038, 2501, 263, 931]),
    ],
)
def test_published_tokenizers(name, size, mask, eos, text, ids, tmp_path) -> None:
    tokenizer = build({"name": "huggingface", "path": f"{DATA}/{name}"})
    assert (vocabulary_size(tokenizer), tokenizer.mask_token_id, tokenizer.eos_token_id) == (size, mask, eos)
    assert encode(tokenizer, [text]) == [ids]
    forged = encode(tokenizer, [*TEXTS, FORGED, "a [MASK] b [SEP]"])
    assert not {mask, eos} & {token for row in forged for token in row}
    for one in (tokenizer, *reload(tokenizer, tmp_path)):
        assert encode(one, [*TEXTS, FORGED, "a [MASK] b [SEP]"]) == forged
        assert one.decode(encode(one, ["the cat sat"])[0]) == "the cat sat"
        assert one.mask_token_id == mask
        assert encoder_of(one).identity == encoder_of(tokenizer).identity
    if name == "vocab/gpt2":
        assert [tokenizer.decode(row) for row in forged[:-1]] == [*TEXTS, FORGED]


def test_framed_tokenizers_give_rows_as_in_training() -> None:
    built = BPETokenizer(vocab_size=270).build(lambda: iter([Document("a", "the cat sat on the mat " * 9)]))
    before, after, mask, eos = (
        encode_one(built, "the"),
        encode_one(built, " sat"),
        built.mask_token_id,
        built.eos_token_id,
    )
    text = "the [MASK] sat"
    assert framed_tokenizer(built, 32)(text)["input_ids"] == [*before, mask, *after]
    assert framed_tokenizer(built, 32, end=True)(text)["input_ids"] == [*before, mask, *after, eos]
    causal = framed_tokenizer(built, 32, begin=mask)
    assert causal("the sat")["input_ids"] == [mask, *before, *after]
    assert (causal.pad_token_id, causal.model_max_length, causal.padding_side) == (eos, 32, "left")
    assert encode_one(causal, text) == encode_one(framed_tokenizer(built, 32), text) == encode_one(built, text)
    assert (built.pad_token, built("the")["input_ids"]) == (None, before), "a copy is framed"
