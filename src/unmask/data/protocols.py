"""Protocols: data sets with their split, clean-up, tokenizer, length and length policy, by name.

Two results are comparable if they name the same protocol. The data are files below the folder that the environment
variable UNMASK_DATA names, or a dataset on the Hugging Face hub.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from unmask.data.documents import Document, hash_fraction, numbered
from unmask.data.sources import Source
from unmask.data.sources.files import InputFile, find_file
from unmask.data.sources.genome import INTERVAL
from unmask.data.sources.parallel import SEPARATOR, join_pairs
from unmask.data.sources.stdlib import FunctionsSource, StdlibSource
from unmask.errors import UnmaskError, did_you_mean
from unmask.registry import build

DATA_VARIABLE = "UNMASK_DATA"
PARQUET = "refs/convert/parquet"
"""The hub's own conversion of datasets that are otherwise read by a script."""

PartName = Literal["train", "validation", "test"]
Texts = Iterator[str]


@dataclass(frozen=True)
class Part:
    """Where one part of a data set is.

    files: below UNMASK_DATA; they may be compressed. source: used if the files are missing, such as a dataset on the
    hub. characters: the range of a file's text that is the part, if the file holds several parts. keep: whether a
    document of the source belongs to the part, by its name.
    """

    files: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    characters: tuple[int, int | None] = (0, None)
    keep: Callable[[str], bool] = bool


@dataclass(frozen=True, eq=False)
class Protocol:
    """A data set and how it is read.

    read: the texts of a file. join: those of several files, by default one file after the other. group: the texts of
    consecutive records, where a record is only a piece of one. clean: undoes the tokenization of a text. stand_in: what
    the data replace, if they are not those of the paper.
    """

    name: str
    about: str
    parts: Mapping[PartName, Part]
    tokenizer: Mapping[str, Any]
    length: int
    policy: Mapping[str, Any]
    read: Callable[[Iterable[str]], Texts]
    join: Callable[..., Texts] = chain
    group: Callable[[Iterable[str]], Texts] = iter
    clean: Callable[[str], str] = str
    stand_in: str | None = None

    def locate(self, part: PartName) -> list[Path]:
        """The files of a part, or none if it comes from its source; raise `UnmaskError` if there is neither."""
        if part not in self.parts:
            raise UnmaskError(f"The protocol '{self.name}' has no {part} part, only {', '.join(self.parts)}.")
        place = self.parts[part]
        root = os.environ.get(DATA_VARIABLE)
        files = [] if root is None else [path for name in place.files if (path := find_file(Path(root, name)))]
        if len(files) == len(place.files):
            return files
        if not place.source:
            raise UnmaskError(
                f"The {part} part of '{self.name}' is not on the Hugging Face hub; {self._remedy(place)}."
            )
        return []

    def documents(self, part: PartName) -> Iterator[Document]:
        """Yield the documents of a part, each of them whole, named ``part#0``, ``part#1`` and so on."""
        files, place = self.locate(part), self.parts[part]
        characters = slice(*place.characters)
        of_files = (self._file_texts(path, characters) for path in files)
        return numbered(part, map(self.clean, self.join(*of_files) if files else self._source_texts(place)))

    def _remedy(self, place: Part) -> str:
        return f"set {DATA_VARIABLE} to a folder with {' and '.join(place.files)}"

    def _file_texts(self, path: Path, characters: slice) -> Texts:
        file = InputFile(path, path.name, str(path))
        try:
            with file.open_text() as lines:
                yield from (text[characters] for text in self.read(lines))
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise UnmaskError(
                f"{path} is not a file of the protocol '{self.name}' ({error}); download it again."
            ) from error

    def _source_texts(self, place: Part) -> Texts:
        try:
            documents = build("source", place.source).documents()
            yield from self.group(document.text for document in documents if place.keep(document.name))
        except UnmaskError as error:
            if not place.files:
                raise
            raise UnmaskError(f"{str(error).removesuffix('.')}; or {self._remedy(place)}.") from error


class ProtocolSource(Source):
    """The training and validation parts of a protocol, which is its own split.

    characters: train on the first of them only.
    """

    name: Literal["protocol"] = "protocol"
    protocol: str
    characters: int | None = Field(default=None, ge=1)

    @field_validator("protocol")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return get_protocol(name).name

    def documents(self) -> Iterator[Document]:
        """Yield the training documents, then the validation documents."""
        left = self.characters
        for document in get_protocol(self.protocol).documents("train"):
            if left is None:
                yield document
            elif left > 0:
                yield replace(document, text=document.text[:left])
                left -= len(document.text)
        yield from get_protocol(self.protocol).documents("validation")

    def held_out(self, name: str) -> bool:
        return name.startswith("validation#")


def get_protocol(name: str) -> Protocol:
    """Return a protocol by its name, or one of bytes for a file or folder, with 5% each for validation and test."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    if not Path(name).expanduser().exists():
        raise UnmaskError(f"There is no protocol or file named '{name}'.{did_you_mean(name, PROTOCOLS)}")
    source = {"name": "text", "paths": [name], "separator": "paragraph"}
    parts: dict[PartName, Part] = {
        "train": Part(source=source, keep=lambda document: _share(document) < 0.9),
        "validation": Part(source=source, keep=lambda document: 0.9 <= _share(document) < 0.95),
        "test": Part(source=source, keep=lambda document: _share(document) >= 0.95),
    }
    return Protocol(name, "a file, by paragraphs", parts, {"name": "byte"}, 128, PACKED, read_whole)


def _share(name: str) -> float:
    return hash_fraction(name.encode())


# ---- texts of files -------------------------------------------------------------------------------------------------


def read_whole(lines: Iterable[str]) -> Texts:
    """All of a file is one text."""
    yield "".join(lines)


def read_lines(lines: Iterable[str]) -> Texts:
    """Each line is a text; blank lines are skipped."""
    return (text for line in lines if (text := line.strip()))


def read_between(separator: str, lines: Iterable[str]) -> Texts:
    """Texts that are separated by lines equal to `separator`."""
    held: list[str] = []
    for line in lines:
        if line.rstrip("\r\n") == separator:
            yield "".join(held)
            held = []
        else:
            held.append(line)
    yield "".join(held)


def read_articles(lines: Iterable[str]) -> Texts:
    """The articles of WikiText; each starts with a heading, `` = Title = ``, after a blank line."""
    held: list[str] = []
    for line in lines:
        after_blank = bool(held) and not held[-1].strip()
        if after_blank and re.fullmatch(r" ?= [^=].*[^=] = ?\n?", line):
            yield "".join(held)
            held = []
        if held or line.strip():
            held.append(line if line.endswith("\n") else f"{line}\n")
    yield "".join(held)


def read_records(text: Callable[[Any], str], lines: Iterable[str]) -> Texts:
    """A text per line of JSON."""
    return (text(json.loads(line)) for line in lines if line.strip())


def read_news(lines: Iterable[str]) -> Texts:
    """AG News: a table of class, title and description without a header."""
    return (f"{title} {description}" for _, title, description in csv.reader(lines))


def read_pubmed_qa(lines: Iterable[str]) -> Texts:
    """The abstracts of PubMedQA: an object whose values have a list of paragraphs."""
    return (" ".join(record["CONTEXTS"]) for record in json.loads("".join(lines)).values())


# ---- undoing the tokenization of published corpora ------------------------------------------------------------------

WIKITEXT_RULES = (
    (r" @([-,.])@ ", r"\1"),  # "guest @-@ starring", "1 @,@ 000"
    (r" ([,.;:!?%)\]])", r"\1"),
    (r"([(\[$£]) ", r"\1"),
    (r" (n't|'(?:s|m|d|t|ll|re|ve))\b", r"\1"),
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r"(?m)^ +| +$", ""),
)
PTB_RULES = (
    (r" (n't|'(?:s|m|d|t|ll|re|ve))\b", r"\1"),
    (r" ([,.;:!?%])", r"\1"),
    (r"([$#]) ", r"\1"),
)
LM1B_RULES = (
    (r"``\s*|\s*''", '"'),
    (r" (n't|'(?:s|m|d|t|ll|re|ve))\b", r"\1"),
    (r" ([,.;:!?%)\]])", r"\1"),
    (r"([(\[$£]) ", r"\1"),
    (r'" ([^"]*?) "', r'"\1"'),
)
LAMBADA_RULES = ((r"``|''", '"'), (r"[“”]", '"'), (r"[‘’]", "'"))


def substitute(rules: Iterable[tuple[str, str]], text: str) -> str:
    """Apply regular expressions in turn."""
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


# ---- the protocols --------------------------------------------------------------------------------------------------

GPT2 = {"name": "huggingface", "path": "gpt2"}
BERT = {"name": "huggingface", "path": "bert-base-uncased"}
STDLIB = {"name": "stdlib"}
PACKED = {"name": "packed"}
PADDED = {"name": "padded", "overflow": "truncate"}
MULTI30K_FILES: dict[PartName, str] = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
TRANSLATED = {"name": "prompted", "separator": SEPARATOR, "supervised_eos": True}
FILE_WORDS: dict[PartName, str] = {"train": "train", "validation": "valid", "test": "test"}
CHR20_SPLIT: dict[PartName, tuple[int, int]] = {
    "train": (0, 380 * INTERVAL),
    "validation": (380 * INTERVAL, 430 * INTERVAL),
    "test": (430 * INTERVAL, 480 * INTERVAL),
}
"""Positions of the parts on chromosome 20."""
_is_held_out = StdlibSource().held_out


def _hub(path: str, split: str, **options: Any) -> dict[str, Any]:
    return {"name": "huggingface", "path": path, "split": split, **options}


_read_json_texts = partial(read_records, itemgetter("text"))
_openwebtext = partial(_hub, "Skylion007/openwebtext", revision=PARQUET)
_c4 = partial(_hub, "allenai/c4", config="en", streaming=True)


def _gpt2(name: str, about: str, parts: Mapping[PartName, Part], read: Any, **options: Any) -> Protocol:
    """A protocol with the tokens, length and policy of OpenWebText."""
    return Protocol(name, about, parts, GPT2, 1024, PACKED, read, **options)


def _lm1b(name: str, about: str, policy: Mapping[str, Any]) -> Protocol:
    hub = partial(_hub, "billion-word-benchmark/lm1b", config="plain_text", revision=PARQUET)
    parts: dict[PartName, Part] = {
        "train": Part(("lm1b/train.txt",), hub("train[10000:]")),
        "validation": Part(("lm1b/validation.txt",), hub("train[:10000]")),
        "test": Part(("lm1b/test.txt",), hub("test")),
    }
    return Protocol(name, about, parts, BERT, 128, policy, read_lines, clean=partial(substitute, LM1B_RULES))


def _text8(name: str, about: str, file: str, ends: tuple[int, int, int], hub: str | None = None) -> Protocol:
    train, validation, test = ends
    parts: dict[PartName, Part] = {
        "train": Part((file,), _hub(hub, "train") if hub else {}, (0, train)),
        "validation": Part((file,), _hub(hub, "validation") if hub else {}, (train, validation)),
        "test": Part((file,), _hub(hub, "test") if hub else {}, (validation, test)),
    }
    return Protocol(name, about, parts, {"name": "char"}, 256, PACKED, read_whole)


def _wikitext(name: str, about: str, files: Mapping[PartName, str], config: str) -> Protocol:
    parts = {part: Part((file,), _hub("Salesforce/wikitext", part, config=config)) for part, file in files.items()}
    clean = partial(substitute, WIKITEXT_RULES)
    return _gpt2(name, about, parts, read_articles, group=read_articles, clean=clean)


def _science(name: str, title: str) -> Protocol:
    hub = _hub("armanc/scientific_papers", "test", config=name, field="article", revision=PARQUET)
    parts: dict[PartName, Part] = {"test": Part((f"{name}/test.jsonl",), hub)}
    return _gpt2(name, f"{title} articles of the scientific-papers corpus", parts, _read_json_texts)


def _genome(
    name: str, about: str, fasta: str, parts: Mapping[PartName, Mapping[str, Any]], stand_in: str | None = None
) -> Protocol:
    """A protocol of bases, in intervals of a FASTA file below UNMASK_DATA."""
    places = {part: Part(source={"name": "genome", "fasta": fasta, **options}) for part, options in parts.items()}
    return Protocol(name, about, places, {"name": "dna"}, 1024, PACKED, read_whole, stand_in=stand_in)


def _chains(first: int, last: int) -> Part:
    """Some of the documents of a Markov chain of bases."""
    return Part(
        source={"name": "markov", "alphabet": "ACGT", "count": last, "length": 512},
        keep=lambda name: int(name.removeprefix("chain-")) >= first,
    )


def _toy_translation(part: PartName) -> Part:
    return Part(source={"name": "toy_translation"}, keep=lambda name: name.startswith(f"{part}#"))


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        _lm1b("lm1b", "One Billion Words, a sentence per row of 128", PADDED),
        _lm1b("lm1b-packed", "One Billion Words, packed into rows of 128", PACKED),
        _gpt2(
            "openwebtext",
            "OpenWebText, the last 100,000 documents held out",
            {
                "train": Part(("openwebtext/train.jsonl",), _openwebtext("train[:-100000]")),
                "validation": Part(("openwebtext/held-out.jsonl",), _openwebtext("train[-100000:]")),
                "test": Part(("openwebtext/held-out.jsonl",), _openwebtext("train[-100000:]")),
            },
            _read_json_texts,
        ),
        _text8(
            "text8",
            "text8, 90 / 5 / 5 million characters",
            "text8/text8.txt",
            (90_000_000, 95_000_000, 100_000_000),
            hub="afmck/text8",
        ),
        _text8(
            "text8-74m",
            "the first 74 million characters of text8, 70 / 2 / 2 million",
            "text8/text8_74m.txt",
            (70_000_000, 72_000_000, 74_000_000),
        ),
        _wikitext(
            "wikitext-2",
            "WikiText-2 with rare words as <unk>",
            {part: f"wikitext-2/{file}.txt" for part, file in FILE_WORDS.items()},
            "wikitext-2-v1",
        ),
        _wikitext(
            "wikitext-103",
            "WikiText-103 with rare words as <unk>",
            {part: f"wikitext-103/wiki.{file}.tokens" for part, file in FILE_WORDS.items()},
            "wikitext-103-v1",
        ),
        _wikitext(
            "wikitext-2-raw",
            "WikiText-2 with all words",
            {part: f"wikitext-2-raw/{file}.txt" for part, file in FILE_WORDS.items()},
            "wikitext-2-raw-v1",
        ),
        _wikitext(
            "wikitext-103-raw",
            "WikiText-103 with all words",
            {part: f"wikitext-103-raw/wiki.{file}.raw" for part, file in FILE_WORDS.items()},
            "wikitext-103-raw-v1",
        ),
        _gpt2(
            "ptb",
            "Penn Treebank, Mikolov's version",
            {
                part: Part(
                    (f"ptb/ptb.{file}.txt",),
                    _hub("ptb-text-only/ptb_text_only", part, field="sentence", revision=PARQUET),
                )
                for part, file in FILE_WORDS.items()
            },
            read_lines,
            clean=partial(substitute, PTB_RULES),
        ),
        _gpt2(
            "lambada",
            "LAMBADA passages",
            {"test": Part(("lambada/lambada_test.jsonl",), _hub("EleutherAI/lambada_openai", "test"))},
            _read_json_texts,
            clean=partial(substitute, LAMBADA_RULES),
        ),
        _gpt2(
            "ag_news",
            "AG News, title and description",
            {"test": Part(("ag_news/test.csv",), _hub("fancyzhx/ag_news", "test"))},
            read_news,
        ),
        _science("pubmed", "PubMed"),
        _science("arxiv", "arXiv"),
        _gpt2(
            "pubmedqa",
            "abstracts of PubMedQA",
            {"test": Part(("science/pubmedqa_ori_pqal.json",))},
            read_pubmed_qa,
            stand_in="pubmed",
        ),
        _gpt2(
            "scitldr",
            "abstracts of SciTLDR",
            {"test": Part(("science/scitldr_A_test.jsonl",))},
            partial(read_records, lambda record: " ".join(record["source"])),
            stand_in="arxiv",
        ),
        _gpt2(
            "c4",
            "C4, English",
            {
                "train": Part(("c4/train.jsonl",), _c4("train")),
                "validation": Part(("c4/validation.jsonl",), _c4("validation")),
                "test": Part(("c4/validation.jsonl",), _c4("validation")),
            },
            _read_json_texts,
        ),
        Protocol(
            "stdlib",
            "docstrings of the Python standard library, on every machine; packages held out",
            {
                "train": Part(source=STDLIB, keep=lambda name: not _is_held_out(name)),
                "validation": Part(source=STDLIB, keep=lambda name: _is_held_out(name) and _share(name) < 0.5),
                "test": Part(source=STDLIB, keep=lambda name: _is_held_out(name) and _share(name) >= 0.5),
            },
            {"name": "byte"},
            128,
            PACKED,
            read_whole,
        ),
        Protocol(
            "functions",
            "functions of the Python standard library, on every machine",
            {
                "test": Part(source={"name": "functions"}, keep=FunctionsSource().held_out),
            },
            {"name": "byte"},
            128,
            PACKED,
            read_whole,
        ),
        _gpt2(
            "wiki",
            "English Wikipedia of 2006, the articles of enwik8 without mark-up",
            {part: Part((f"wiki/wiki-{part}.txt",)) for part in ("train", "validation", "test")},
            partial(read_between, "<|endofdocument|>"),
        ),
        _genome(
            "hg38",
            "the human genome in the published intervals of 131,072 bases",
            "hg38/hg38.ml.fa",
            {part: {"intervals": "hg38/human-sequences.bed", "splits": [word]} for part, word in FILE_WORDS.items()},
        ),
        _genome(
            "chr20",
            "human chromosome 20 (GRCh37) by position, 46.0 / 6.6 / 6.3 million bases without large gaps",
            "dna/grch37_chr20.fa",
            {part: {"regions": [f"20:{start}-{end}"], "unknown": 0.1} for part, (start, end) in CHR20_SPLIT.items()},
            stand_in="hg38",
        ),
        _genome(
            "yeast",
            "the genome of S. cerevisiae by chromosome, XV for validation and XVI for the test",
            "dna/s_cerevisiae.fa",
            {
                "train": {"regions": [f"BK0069{number}" for number in (*range(35, 42), 34, *range(42, 48))]},
                "validation": {"regions": ["BK006948"]},
                "test": {"regions": ["BK006949"]},
            },
        ),
        Protocol(
            "toy-dna",
            "bases of a Markov chain, on every machine",
            {"train": _chains(0, 200), "validation": _chains(200, 220), "test": _chains(220, 240)},
            {"name": "dna"},
            1024,
            PACKED,
            iter,
        ),
        Protocol(
            "multi30k",
            "Multi30k, German to English, the test set of 2016",
            {
                part: Part(
                    (f"multi30k/{file}.de", f"multi30k/{file}.en"),
                    {"name": "parallel", "paths": "hf:bentrevett/multi30k", "fields": ("de", "en"), "split": part},
                )
                for part, file in MULTI30K_FILES.items()
            },
            {"name": "bpe", "vocab_size": 8192},
            112,
            TRANSLATED,
            iter,
            join=partial(join_pairs, where="The files of Multi30k"),
        ),
        Protocol(
            "toy-translation",
            "a made-up language, word by word, on every machine",
            {part: _toy_translation(part) for part in get_args(PartName)},
            {"name": "bpe", "vocab_size": 768},
            16,
            TRANSLATED,
            iter,
        ),
    )
}
