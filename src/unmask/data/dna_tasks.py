"""Classification of DNA sequences: the sets of GUE and of the Genomic Benchmarks, from their files as distributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from unmask.data.glue import BINARY, Examples, Task, TaskData, read_examples
from unmask.data.sources.fasta import INVALID, letter_table
from unmask.data.sources.files import find_file
from unmask.errors import UnmaskError

MOTIF = "TATAAA"
HELD_OUT_EVERY = 10
"""One in this many training examples of a Genomic Benchmark is held out to choose the learning rate."""


def dna_task(name: str, classes: Sequence[str], metrics: tuple[str, ...], more: tuple[str, ...] = ()) -> Task:
    """A task whose learning rate is chosen on the development file, and whose test file is reported."""
    return Task(name, ("sequence",), "label", tuple(classes), metrics, more, ("dev", "test"), selection="dev")


def read_gue(folder: Path, limit: int | None = None) -> list[TaskData]:
    """The tasks of GUE in a folder: NAME/train.csv, dev.csv and test.csv, with the columns sequence and label."""
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        paths = [place / f"{part}.csv" for part in ("train", "dev", "test")]
        if not all(map(find_file, paths)):
            continue
        numbers = dna_task(place.name, (), ("Matthews",), ("accuracy",))
        parts = [_cleaned(read_examples(numbers, path), str(path)) for path in paths]
        classes = range(1 + int(max(label for part in parts for label in part.labels)))
        train, *others = (part.spread(limit) for part in parts)
        found.append(TaskData(replace(numbers, classes=tuple(map(str, classes))), train, tuple(others)))
    return found


def read_genomic_benchmarks(folder: Path, limit: int | None = None) -> list[TaskData]:
    """The Genomic Benchmarks in a folder: NAME/train/CLASS/*.txt and NAME/test/CLASS/*.txt, a sequence in each file."""
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not ((place / "train").is_dir() and (place / "test").is_dir()):
            continue
        classes = sorted(one.name for one in (place / "train").iterdir() if one.is_dir())
        parts = []
        for part in ("train", "test"):
            files = [
                (file, number)
                for number, name in enumerate(classes)
                for file in sorted((place / part / name).glob("*.txt"))
            ]
            Random(0).shuffle(files)
            sequences = [file.read_text(encoding="ascii", errors="replace").strip() for file, _ in files]
            examples = Examples([(one,) for one in sequences], [float(number) for _, number in files])
            parts.append(_cleaned(examples, str(place / part)))
        train, test = parts
        if not (len(train) >= HELD_OUT_EVERY and len(test)):
            raise UnmaskError(f"'{place}' has too few sequences in train/CLASS/*.txt or test/CLASS/*.txt; check it.")
        dev = train.take(range(0, len(train), HELD_OUT_EVERY))
        rest = train.take([number for number in range(len(train)) if number % HELD_OUT_EVERY])
        train, *others = (part.spread(limit) for part in (rest, dev, test))
        found.append(TaskData(dna_task(place.name, classes, ("accuracy",)), train, tuple(others)))
    return found


def _cleaned(examples: Examples, where: str) -> Examples:
    """The examples in upper case, with N for ambiguous bases."""
    texts: list[tuple[str, ...]] = []
    for (text,) in examples.texts:
        letters = text.encode("ascii", "replace").translate(letter_table())
        if (place := letters.find(INVALID)) >= 0:
            raise UnmaskError(f"'{where}' has '{text[place]}' in a sequence, which is not a nucleotide code; give DNA.")
        texts.append((letters.decode("ascii"),))
    return replace(examples, texts=texts)


def motif_task() -> TaskData:
    """Made-up sequences of 48 bases whose label is whether a motif was written into them."""
    random = Random(0)
    parts = []
    for size in (64, 32, 32):
        texts: list[tuple[str, ...]] = []
        labels = []
        for _ in range(size):
            bases, label = random.choices("ACGT", k=48), random.randrange(2)
            if label:
                place = random.randrange(len(bases) - len(MOTIF))
                bases[place : place + len(MOTIF)] = MOTIF
            texts.append(("".join(bases),))
            labels.append(float(label))
        parts.append(Examples(texts, labels))
    train, *others = parts
    return TaskData(dna_task("motif", BINARY, ("Matthews",), ("accuracy",)), train, tuple(others))
