"""Long texts come in parts, and nothing that is computed from them shows where they were cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from unmask.data import pieces
from unmask.data.build_once import prefetch
from unmask.data.cache import FILES, META
from unmask.data.sources import Document, Source
from unmask.data.split import Corpus, prepare
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, HuggingFaceTokenizer, TokenizerComponent

CHARACTERS = "".join(dict.fromkeys("\n abcdefghijklmnopqrstuvwxyzäöü\U0001f600,.'0123456789TW"))
SIZES = [7, 1000, 1 << 30]


class InParts(Source):
    """Texts of random words, in parts of some size."""

    name: Literal["in-parts"] = "in-parts"
    sizes: tuple[int, ...] = (9000, 10, 0, 5000)
    size: int = 1 << 30

    def documents(self) -> Iterator[Document]:
        random = np.random.default_rng(0)
        words = [
            "the",
            "cat's",
            "ünïque".replace("ï", "i"),
            "\U0001f600",
            "it's",
            "1234",
            "Tea,",
            "  Wait...",
            "\n\n",
            "a\n",
        ]
        for number, length in enumerate(self.sizes):
            text = " ".join(random.choice(words, length // 4))[:length]
            parts = [text[start : start + self.size] for start in range(0, len(text), self.size)] or [""]
            yield from (Document(f"d{number}", part, more=n + 1 < len(parts)) for n, part in enumerate(parts))


@pytest.fixture
def gpt2_like(tmp_path: Path) -> HuggingFaceTokenizer:
    """Bare vocabulary files, as GPT-2 is published."""
    learnt = json.loads(BPETokenizer(vocab_size=300).build(InParts().documents).backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**learnt["vocab"], "<|endoftext|>": len(learnt["vocab"])}))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in learnt["merges"]))
    return HuggingFaceTokenizer(path=str(tmp_path))


@pytest.fixture
def llama_like(tmp_path: Path) -> HuggingFaceTokenizer:
    """A tokenizer that puts a mark before the text and reads it as one long word."""
    from tokenizers import Tokenizer, models, normalizers

    letters = {letter: number for number, letter in enumerate(["<unk>", *CHARACTERS, "▁"])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("c", "a"), ("\n", "\n"), ("▁", "▁")]
    vocabulary = letters | {left + right: len(letters) + n for n, (left, right) in enumerate(merges)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<unk>").save_pretrained(tmp_path)
    return HuggingFaceTokenizer(path=str(tmp_path))


def prepared(
    source: Source, tokenizer: TokenizerComponent | PreTrainedTokenizerFast, root: Path, patch: pytest.MonkeyPatch
) -> Corpus:
    patch.setenv("UNMASK_CACHE", str(root))
    return prepare(source, tokenizer, fraction=0.3)


def contents(corpus: Corpus) -> list[object]:
    folders = (corpus.train.folder, corpus.validation.folder)
    return [(folder.name, [(folder / name).read_bytes() for name in (*FILES, META)]) for folder in folders]


@pytest.mark.parametrize("sizes", [(9000, 10, 0, 5000), (9000,)])
@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "gpt2_like", "llama_like"])
def test_caches_are_the_same_for_parts_of_any_size(
    kind: str,
    sizes: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    simple = {"byte": ByteTokenizer(), "char": CharTokenizer(alphabet=CHARACTERS), "bpe": BPETokenizer(vocab_size=280)}
    component = simple[kind] if kind in simple else request.getfixturevalue(kind)
    whole = prepared(InParts(sizes=sizes), component, tmp_path / "whole", monkeypatch)
    monkeypatch.setattr(pieces, "LONG", 200)
    for size in SIZES:
        corpus = prepared(InParts(sizes=sizes, size=size), component, tmp_path / str(size), monkeypatch)
        assert contents(corpus) == contents(whole)
        assert corpus.tokenizer.get_vocab() == whole.tokenizer.get_vocab()
        assert corpus.cut == whole.cut
    assert (whole.cut is None) == (len(sizes) > 1)


def test_documents_of_several_pieces_are_decoded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LONG", 100)
    corpus = prepared(InParts(size=33), BPETokenizer(vocab_size=280), tmp_path, monkeypatch)
    texts: dict[str, str] = {}
    for document in InParts(size=33).documents():
        texts[document.name] = texts.get(document.name, "") + document.text
    for tokens in (corpus.train, corpus.validation):
        for index, name in enumerate(tokens.names):
            assert corpus.tokenizer.decode(tokens.document(index).tolist()) == texts[name]
            assert tokens.byte_counts[index] == len(texts[name].encode())
            assert tokens.character_counts[index] == len(texts[name])
        assert tokens.bytes == tokens.byte_counts.sum()
        assert tokens.characters == tokens.character_counts.sum()
    assert len(corpus.train) + len(corpus.validation) == 4


def test_things_are_made_ahead_in_another_thread_and_not_too_many() -> None:
    made: list[int] = []
    threads: set[int] = set()

    def make() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            threads.add(threading.get_ident())
            yield number

    coming = prefetch(make(), ahead=3)
    taken = []
    for number in coming:
        taken.append(number)
        assert len(made) <= len(taken) + 3
    assert taken == list(range(20))
    assert threading.get_ident() not in threads


def test_an_error_in_the_other_thread_arrives_after_what_came_before_it() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken")

    coming = prefetch(make())
    assert next(coming) == 1
    with pytest.raises(RuntimeError, match="broken"):
        next(coming)


def test_the_thread_ends_when_nobody_wants_more() -> None:
    coming = prefetch(iter(range(1000)))
    next(coming)
    coming.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unmask-reader")]
