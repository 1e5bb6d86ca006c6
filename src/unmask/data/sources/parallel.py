"""Pairs of texts, such as sentences and their translations, as documents ``source<separator>target``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from unmask.data.documents import Document, numbered
from unmask.data.sources import HUB_PREFIX, Source, is_saved_dataset
from unmask.data.sources.files import InputFile
from unmask.errors import UnmaskError
from unmask.registry import build

SEPARATOR = "\t"
SYLLABLES = ("ba", "do", "fi", "ku", "le", "mo", "na", "pe", "ri", "su", "ta", "vo", "wi", "zu")


def join_pairs(sources: Iterable[str], targets: Iterable[str], where: str) -> Iterator[str]:
    """Yield ``source<tab>target``, an empty text where a side is empty; white space in a side becomes single spaces."""
    for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
        if source is None or target is None:
            raise UnmaskError(f"{where} do not have equally many lines: one has {number - 1}; align them line by line.")
        pair = " ".join(source.split()), " ".join(target.split())
        yield SEPARATOR.join(pair) if all(pair) else ""


def split_pair(text: str) -> tuple[str, str]:
    """The source and the target of a document; the target is empty without a separator."""
    source, _, target = text.partition(SEPARATOR)
    return source, target


class ParallelSource(Source):
    """Pairs of texts, as documents ``source<tab>target`` for the length policy `prompted`.

    paths: two text files whose lines correspond (``[train.de, train.en]``); or one file, ``.jsonl`` or else with a tab
    between the two sides of a line; or one dataset, as ``hf:NAME`` or a folder written by ``save_to_disk``. Files may
    be compressed. validation: the held-out pairs in the same form; by default the split chooses them. fields: the names
    of both sides in JSON and in a dataset. split: the split of a dataset. Pairs with an empty side are dropped, and
    white space becomes single spaces.
    """

    name: Literal["parallel"] = "parallel"
    paths: list[str]
    validation: list[str] | None = None
    fields: tuple[str, str] = ("source", "target")
    split: str = "train"

    @field_validator("paths", "validation", mode="before")
    @classmethod
    def _is_one_or_two(cls, paths: Any) -> Any:
        paths = [paths] if isinstance(paths, str) else paths
        if isinstance(paths, list | tuple) and len(paths) not in (1, 2):
            raise ValueError(f"must be two files whose lines correspond, or one file of pairs, got {len(paths)}")
        return paths

    def documents(self) -> Iterator[Document]:
        """Yield the pairs to train on, then the held-out ones."""
        yield from numbered("train", self._pairs(self.paths))
        if self.validation is not None:
            yield from numbered("validation", self._pairs(self.validation))

    def check(self) -> None:
        if next(self.documents(), None) is None:
            raise UnmaskError(f"{self.paths[0]} has no pairs in it; name a file with pairs of texts.")

    def held_out(self, name: str) -> bool | None:
        """Return whether a pair is from the validation files."""
        return None if self.validation is None else name.startswith("validation#")

    def _pairs(self, paths: list[str]) -> Iterator[str]:
        where = " and ".join(paths)
        if len(paths) == 1 and (paths[0].startswith(HUB_PREFIX) or is_saved_dataset(Path(paths[0]).expanduser())):
            path = paths[0].removeprefix(HUB_PREFIX)
            spec = {"name": "huggingface", "path": path, "split": self.split}
            columns = [build("source", spec | {"field": field}) for field in self.fields]
            sources, targets = ((one.text for one in column.documents()) for column in columns)
            yield from join_pairs(sources, targets, where)
            return
        places = [Path(path).expanduser() for path in paths]
        files = [InputFile(place, place.name, str(place)) for place in places]
        with ExitStack() as opened:
            sides = [opened.enter_context(file.open_text()) for file in files]
            if len(sides) == 2:
                yield from join_pairs(sides[0], sides[1], where)
                return
            is_json = files[0].format == ".jsonl"
            for number, line in enumerate(sides[0], start=1):
                if line.strip():
                    source, target = self._parse_line(line, is_json, f"{paths[0]}, line {number}")
                    yield from join_pairs([source], [target], where)

    def _parse_line(self, line: str, is_json: bool, where: str) -> tuple[str, str]:
        try:
            if is_json:
                record = json.loads(line)
                source, target = (record[field] for field in self.fields)
            else:
                source, target = line.rstrip("\r\n").split(SEPARATOR)
            if not isinstance(source, str) or not isinstance(target, str):
                raise TypeError("a side is not a string")
        except KeyError as error:
            raise UnmaskError(f"{where} has no field {error}; set data.source.fields.") from error
        except (ValueError, TypeError, RecursionError) as error:
            advice = "write an object with two texts" if is_json else "put one tab between both"
            raise UnmaskError(f"{where} is not a pair of texts ({error}); {advice}.") from error
        return source, target


class ToyTranslationSource(Source):
    """Sentences of a made-up language and their translations word by word, with every pair of words swapped.

    words: the size of the vocabulary. longest: the most words of a sentence; the fewest are 2. count, validation, test:
    the number of pairs of each part.
    """

    name: Literal["toy_translation"] = "toy_translation"
    words: int = Field(default=12, ge=2, le=196)
    longest: int = Field(default=4, ge=2)
    count: int = Field(default=2000, ge=1)
    validation: int = Field(default=100, ge=1)
    test: int = Field(default=100, ge=1)
    seed: int = 0

    def documents(self) -> Iterator[Document]:
        """Yield the pairs of all parts; pair i of a part depends on the seed, the part and i alone."""
        sizes: dict[str, int] = {"train": self.count, "validation": self.validation, "test": self.test}
        for part, (name, size) in enumerate(sizes.items()):
            for number in range(size):
                rng = np.random.default_rng([self.seed, part, number])
                chosen = rng.integers(self.words, size=rng.integers(2, self.longest + 1)).tolist()
                swapped = [word for i in range(0, len(chosen), 2) for word in reversed(chosen[i : i + 2])]
                source = " ".join(self.vocabularies[0][word] for word in chosen)
                target = " ".join(self.vocabularies[1][word] for word in swapped)
                yield Document(f"{name}#{number}", f"{source}{SEPARATOR}{target}")

    def held_out(self, name: str) -> bool:
        """Return whether a pair is outside the training part."""
        return not name.startswith("train#")

    @cached_property
    def vocabularies(self) -> tuple[list[str], list[str]]:
        """The words of both languages, in the order of their meanings."""
        words = [first + second for first in SYLLABLES for second in SYLLABLES]
        rng = np.random.default_rng(self.seed)
        one, other = (rng.permutation(words)[: self.words].tolist() for _ in range(2))
        return one, [word.upper() for word in other]
