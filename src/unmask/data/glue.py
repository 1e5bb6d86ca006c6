"""Tasks of texts with a class or a score, and those of GLUE, from the files as distributed.

A task is a folder with train.tsv and dev.tsv, or files named otherwise, plain or compressed. The files have no quoting:
a quotation mark is text, and only a tab (in .csv a comma) ends a field.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.data.protocols import DATA_VARIABLE
from unmask.data.rows import spread_indices
from unmask.data.sources.files import InputFile, find_file
from unmask.errors import UnmaskError, did_you_mean

ENTAILMENT = ("not_entailment", "entailment")
BINARY = ("0", "1")


@dataclass(frozen=True)
class Task:
    """A task: its columns, classes and metrics.

    texts: the columns of the one or two sentences. label: the column of the answer. classes: its values, in the order
    of their numbers; none for a score. metrics: those of the paper; more: others that are reported. dev: the files that
    are evaluated, each on its own. header: the columns of files without a header line. selection: a file of `dev` that
    only serves to choose the learning rate; without it the rate is chosen on the files that are reported.
    """

    name: str
    texts: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    more: tuple[str, ...] = ()
    dev: tuple[str, ...] = ("dev",)
    header: tuple[str, ...] | None = None
    selection: str | None = None

    @property
    def scores(self) -> tuple[str, ...]:
        """The figures of the paper: each metric on each reported file."""
        return self._names(self.metrics, self._reported)

    @property
    def selection_scores(self) -> tuple[str, ...]:
        """The figures that the learning rate is chosen by."""
        return self.scores if self.selection is None else self._names(self.metrics, (self.selection,))

    @property
    def reported_scores(self) -> tuple[str, ...]:
        """The figures of the paper, then the others, on each reported file."""
        return self._names((*self.metrics, *self.more), self._reported)

    @property
    def all_scores(self) -> tuple[str, ...]:
        """Every figure that is measured: each metric on each file."""
        return self._names((*self.metrics, *self.more), self.dev)

    @property
    def _reported(self) -> tuple[str, ...]:
        return tuple(file for file in self.dev if file != self.selection)

    def _names(self, metrics: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
        alone = len(self._reported) == 1
        return tuple(
            metric if alone and file != self.selection else f"{metric}, {file.removeprefix('dev_')}"
            for metric in metrics
            for file in files
        )


TASKS = {
    task.name: task
    for task in (
        Task(
            "MNLI",
            ("sentence1", "sentence2"),
            "gold_label",
            ("contradiction", "entailment", "neutral"),
            ("accuracy",),
            dev=("dev_matched", "dev_mismatched"),
        ),
        Task("QQP", ("question1", "question2"), "is_duplicate", BINARY, ("F1",), more=("accuracy",)),
        Task("QNLI", ("question", "sentence"), "label", ENTAILMENT, ("accuracy",)),
        Task("SST-2", ("sentence",), "label", BINARY, ("accuracy",)),
        Task(
            "CoLA", ("sentence",), "label", BINARY, ("Matthews",), header=("source", "label", "annotation", "sentence")
        ),
        Task("STS-B", ("sentence1", "sentence2"), "score", (), ("Spearman",), more=("Pearson",)),
        Task("MRPC", ("#1 String", "#2 String"), "Quality", BINARY, ("F1",), more=("accuracy",)),
        Task("RTE", ("sentence1", "sentence2"), "label", ENTAILMENT, ("accuracy",)),
    )
}
"""In the order of Table 4."""


@dataclass(frozen=True)
class Examples:
    """Sentences, or pairs of them, with their labels: the number of a class, or a score.

    malformed: lines that were left out because they have too few or too many fields, as some of QQP do.
    """

    texts: list[tuple[str, ...]]
    labels: list[float]
    malformed: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Examples:
        return Examples([self.texts[i] for i in indices], [self.labels[i] for i in indices], self.malformed)

    def spread(self, limit: int | None) -> Examples:
        """At most `limit` examples, evenly spread."""
        return self.take(spread_indices(len(self), limit))


@dataclass(frozen=True)
class TaskData:
    """The examples of a task: those for training, and those of each development file."""

    task: Task
    train: Examples
    dev: tuple[Examples, ...]


def parse_tasks(words: str | None) -> list[Task]:
    """Tasks by their names, separated by commas, in the order of Table 4; case and hyphens do not matter."""
    if words is None:
        return list(TASKS.values())
    names = {_plain(name): name for name in TASKS}
    for word in words.split(","):
        if _plain(word) not in names:
            raise UnmaskError(f"There is no task '{word.strip()}' in GLUE.{did_you_mean(word.strip(), TASKS)}")
    chosen = {names[_plain(word)] for word in words.split(",")}
    return [task for name, task in TASKS.items() if name in chosen]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "")


def glue_folder(folder: Path | None) -> Path:
    """The folder with one folder per task, by default the one below UNMASK_DATA."""
    root = os.environ.get(DATA_VARIABLE)
    if folder is None and root is None:
        raise UnmaskError(
            f"GLUE is not part of the package; set {DATA_VARIABLE} to a folder that has glue/SST-2/train.tsv and so "
            "on, or give --data."
        )
    found = Path(str(root), "glue") if folder is None else folder
    if not found.is_dir():
        raise UnmaskError(f"There is no folder '{found}' with the tasks of GLUE; give another with --data.")
    return found


def find_tasks(tasks: Sequence[Task], folder: Path) -> tuple[list[Task], list[str]]:
    """The tasks whose files are all there, at least one, and a sentence for each of the others."""
    complete, missing = [], []
    for task in tasks:
        names = [f"{task.name}/{name}.tsv" for name in ("train", *task.dev)]
        if absent := [name for name in names if find_file(folder / name) is None]:
            missing.append(f"{task.name} is left out: '{folder}' has no {' and '.join(absent)}.")
        else:
            complete.append(task)
    if not complete:
        raise UnmaskError(f"{missing[0].removesuffix('.')}; add the files or name other tasks.")
    return complete, missing


def read_task(task: Task, folder: Path, limit: int | None = None) -> TaskData:
    """Read a task, or at most `limit` examples of each of its files."""
    files = (folder / task.name / f"{name}.tsv" for name in ("train", *task.dev))
    train, *dev = (read_examples(task, file).spread(limit) for file in files)
    return TaskData(task, train, tuple(dev))


def read_examples(task: Task, path: Path) -> Examples:
    """The examples of a file, which may be compressed."""
    found = find_file(path)
    if found is None:
        raise UnmaskError(f"There is no file '{path}'; download {task.name} or name other tasks.")
    file = InputFile(found, found.name, str(found))
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    malformed = 0
    separator = "," if file.format == ".csv" else "\t"
    with file.open_text() as lines:
        numbered = enumerate((line.rstrip("\r\n").split(separator) for line in lines), start=1)
        header = task.header or next(numbered, (0, []))[1]
        columns = (*task.texts, task.label)
        if absent := [name for name in columns if name not in header]:
            raise UnmaskError(f"'{found}' has no column '{absent[0]}'; use the file of {task.name} as distributed.")
        *places, answer = map(header.index, columns)
        for number, fields in numbered:
            if len(fields) != len(header):
                malformed += fields != [""]
                continue
            texts.append(tuple(fields[place].strip() for place in places))
            labels.append(_read_label(task, fields[answer], f"'{found}', line {number}"))
    if not labels:
        raise UnmaskError(f"'{found}' has no examples; download it again.")
    return Examples(texts, labels, malformed)


def _read_label(task: Task, text: str, where: str) -> float:
    if task.classes:
        if text not in task.classes:
            raise UnmaskError(f"{where}: {task.label} must be one of {', '.join(task.classes)}, got '{text}'.")
        return task.classes.index(text)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UnmaskError(f"{where}: {task.label} must be a number, got '{text}'.")
    return score
