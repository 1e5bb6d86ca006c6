"""Fine-tune a checkpoint with a fresh head on each task of GLUE or of DNA, for several learning rates and seeds.

Any checkpoint can be evaluated: a head sees pooled rows of `hidden` alone. The rows of a bidirectional network are
averaged over the text, because no position of a DiT, or of a BERT without next-sentence prediction, was trained to
summarise it; of an autoregressive network the last row is used, the only one that has seen the whole text.

The protocol is the paper's: all weights are trained for 3 epochs in batches of 16, and the development set is scored
once, after the last epoch. AdamW has weight decay 0.01, and a rate that rises over 6% of the steps and then falls
linearly to 0. The paper has one rate, 2e-5; smaller networks need higher ones, so several are tried, the same for all
checkpoints, and the one with the highest mean score over the seeds is reported. As in the paper there is no other
set to choose it on, so reported scores are slightly too high, for all checkpoints alike.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.glue import Task, TaskData
from unmask.data.rows import permute
from unmask.errors import UnmaskError
from unmask.evaluation.processes import run_side_by_side
from unmask.evaluation.tables.base import Cell, Table, Unfinished, seeds_cell
from unmask.evaluation.tables.workspace import Workspace
from unmask.optimizers.base import AdamW
from unmask.pipeline import MaskedDiffusionLM, load

if TYPE_CHECKING:
    from unmask.likelihood import Progress

Row = list[int]
DROPOUT = 0.1
WEIGHT_DECAY = 0.01
WARM_UP = 0.06
"""Share of the steps over which the learning rate rises."""
POOL_BATCHES = 64
"""Batches whose examples are sorted by length together, so that a batch has little padding."""
AVERAGE = "average"


@dataclass(frozen=True)
class GlueSettings:
    """How every checkpoint is fine-tuned. limit: examples of each file at most, evenly spread; None: all of them."""

    learning_rates: tuple[float, ...] = (2e-5, 5e-5, 1e-4)
    seeds: int = 3
    epochs: int = 3
    batch_size: int = 16
    limit: int | None = None


@dataclass(frozen=True)
class GlueResult:
    """The scores of one fine-tuning in percent, and its numbers of training examples and of truncated examples."""

    checkpoint: str
    task: str
    learning_rate: float
    seed: int
    scores: dict[str, float]
    examples: int
    truncated: int


# ---- texts to rows --------------------------------------------------------------------------------------------------


def encode_examples(lm: MaskedDiffusionLM, texts: Sequence[tuple[str, ...]]) -> tuple[list[Row], int]:
    """A row for each sentence or pair, and the number of those that were truncated to the length of the model's rows.

    The checkpoint's tokenizer adds tokens before and after a text, unless the network adds its own `frame`, as encoders
    do. Sentences of a pair are separated by the separator token, or else EOS, or else a newline. A pair that is too
    long loses tokens of the longer sentence.
    """
    tokenizer = lm.text_processor.tokenizer
    parts = iter(lm.text_processor.encode([text for pair in texts for text in pair]))  # refuses unknown letters
    known = next((text for pair in texts for text in pair if text), "a")
    begin, end = ([], []) if getattr(lm.denoiser.config, "frame", None) else _frame(tokenizer, known)
    separator = _separator(lm) if any(len(pair) > 1 for pair in texts) else []
    rows, truncated = [], 0
    for pair in texts:
        sentences = [next(parts) for _ in pair]
        room = lm.row_length - len(begin) - len(end) - len(separator) * (len(pair) - 1)
        kept = _cut(sentences, room)
        truncated += kept != sentences
        row = [*begin, *kept[0]]
        for sentence in kept[1:]:
            row += [*separator, *sentence]
        rows.append([*row, *end])
    if not all(rows):  # an empty text without special tokens
        raise UnmaskError(f"The tokenizer of '{lm.path}' gives no tokens for {texts[rows.index([])]!r}; remove it.")
    return rows, truncated


def _frame(tokenizer: Any, text: str) -> tuple[Row, Row]:
    """The tokens that a tokenizer adds before and after a text."""
    whole, bare = (tokenizer(text, add_special_tokens=special)["input_ids"] for special in (True, False))
    start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]


def _separator(lm: MaskedDiffusionLM) -> Row:
    tokenizer = lm.text_processor.tokenizer
    token = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    if token is None:
        return lm.text_processor.encode(["\n"])[0]
    single, pair = (tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
    return [token] * max(1, pair - single)  # RoBERTa has two


def _cut(sentences: Sequence[Row], room: int) -> list[Row]:
    """Take tokens off the end of the longest sentence until all fit."""
    sizes = [len(sentence) for sentence in sentences]
    while sum(sizes) > room:
        longest = sizes.index(max(sizes))
        others = sum(sizes) - sizes[longest]
        next_longest = max((size for i, size in enumerate(sizes) if i != longest), default=0)
        sizes[longest] = max(room - others, min(next_longest, sizes[longest] - 1))
    return [sentence[:size] for sentence, size in zip(sentences, sizes, strict=True)]


def batch_rows(sizes: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[npt.NDArray[np.int64]]:
    """The rows of every batch of an epoch, a function of the seed and the epoch alone.

    Rows are shuffled, sorted by length within `POOL_BATCHES` batches, and the batches are shuffled.
    """
    order = permute(seed, 2 * epoch, len(sizes), np.arange(len(sizes)))
    lengths = np.asarray(sizes)
    batches = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = order[start : start + POOL_BATCHES * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in permute(seed, 2 * epoch + 1, len(batches), np.arange(len(batches)))]


def collate(rows: Sequence[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [B, L], padded on the right."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    sizes = torch.tensor([len(row) for row in rows])
    mask = torch.arange(width) < sizes[:, None]
    return ids.to(device, non_blocking=True), mask.to(device, non_blocking=True)


# ---- fine-tuning ----------------------------------------------------------------------------------------------------


class SequenceClassifier(nn.Module):
    """A network with a fresh head: a layer with tanh as in BERT's pooler, dropout, and a linear layer.

    A network that reads both strands of DNA has rows of twice its width; their sum is the same for both strands.
    """

    def __init__(self, network: Any, outputs: int, causal: bool) -> None:
        super().__init__()
        self.network = network
        self.causal = causal
        width = network.config.hidden_size
        self.dense = nn.Linear(width, width)
        self.dropout = nn.Dropout(DROPOUT)
        self.out = nn.Linear(width, outputs)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits or scores [B, outputs] of ids [B, L], in float32."""
        rows_BLD = self.network.hidden(input_ids, attention_mask=attention_mask).float()
        sizes = attention_mask.sum(dim=1)
        if self.causal:
            pooled_BD = rows_BLD[torch.arange(len(sizes), device=sizes.device), sizes - 1]
        else:
            pooled_BD = (rows_BLD * attention_mask[..., None]).sum(dim=1) / sizes[:, None]
        pooled_BD = pooled_BD.unflatten(-1, (-1, self.dense.in_features)).sum(dim=1)
        return self.out(self.dropout(torch.tanh(self.dense(self.dropout(pooled_BD))))).float()


@dataclass(frozen=True)
class EncodedTask:
    """The rows and labels of a task for one checkpoint."""

    task: Task
    train: list[Row]
    labels: list[float]
    dev: list[list[Row]]
    dev_labels: list[list[float]]
    truncated: int

    @classmethod
    def of(cls, lm: MaskedDiffusionLM, data: TaskData) -> EncodedTask:
        """Encode all examples of a task."""
        train, cut = encode_examples(lm, data.train.texts)
        dev = [encode_examples(lm, part.texts) for part in data.dev]
        rows = [rows for rows, _ in dev]
        labels = [part.labels for part in data.dev]
        return cls(data.task, train, data.train.labels, rows, labels, cut + sum(count for _, count in dev))


def fine_tune(
    lm: MaskedDiffusionLM,
    encoded: EncodedTask,
    learning_rate: float,
    seed: int,
    settings: GlueSettings,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Fine-tune a copy of the network on a task and return its scores; `progress` counts training examples.

    On a CPU equal arguments give equal bits.
    """
    task, device = encoded.task, lm.device
    targets = torch.tensor(encoded.labels)
    if not task.classes:  # correlations do not depend on scale and offset
        targets = (targets - targets.mean()) / targets.std(correction=0).clamp_min(1e-6)
    targets = targets.to(device, torch.int64 if task.classes else torch.float32)
    steps = settings.epochs * math.ceil(len(encoded.train) / settings.batch_size)
    options = AdamW(
        learning_rate=learning_rate, weight_decay=WEIGHT_DECAY, warmup=math.ceil(WARM_UP * steps), cooldown=1.0
    )
    sizes = [len(row) for row in encoded.train]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        model = SequenceClassifier(copy.deepcopy(lm.denoiser), len(task.classes) or 1, lm.causal).to(device).train()
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = options.build(parameters, device)
        step = 0
        for epoch in range(settings.epochs):
            for chosen in batch_rows(sizes, settings.batch_size, seed, epoch):
                inputs = collate([encoded.train[i] for i in chosen], device)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    outputs = model(*inputs)
                target = targets[torch.from_numpy(chosen).to(device, non_blocking=True)]
                loss = F.cross_entropy(outputs, target) if task.classes else F.mse_loss(outputs[:, 0], target)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters.values(), options.clip)
                for group in optimizer.param_groups:
                    group["lr"] = options.rate(step, steps)
                optimizer.step()
                step += 1
                if progress is not None:
                    progress(len(chosen))
    predictions = [predict(model, rows, task, settings.batch_size, device) for rows in encoded.dev]
    return score(task, predictions, encoded.dev_labels)


@torch.no_grad()
def predict(
    model: SequenceClassifier, rows: Sequence[Row], task: Task, batch_size: int, device: torch.device
) -> npt.NDArray[np.float64]:
    """The number of the most likely class, or the predicted score, of each row."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found = []
    for start in range(0, len(order), 4 * batch_size):
        inputs = collate([rows[i] for i in order[start : start + 4 * batch_size]], device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = model(*inputs)
        found.append(outputs.argmax(dim=1) if task.classes else outputs[:, 0])
    predictions = np.empty(len(rows))
    predictions[order] = torch.cat(found).double().cpu().numpy()
    return predictions


def score(
    task: Task, predictions: Sequence[npt.NDArray[np.float64]], labels: Sequence[Sequence[float]]
) -> dict[str, float]:
    """All scores of a task in percent; a correlation with constant predictions is 0."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    functions = {
        "accuracy": accuracy_score,
        "F1": lambda truth, found: f1_score(truth, found, zero_division=0.0),
        "Matthews": matthews_corrcoef,
        "Pearson": lambda truth, found: pearsonr(truth, found).statistic,
        "Spearman": lambda truth, found: spearmanr(truth, found).statistic,
    }
    values = []
    for metric in (*task.metrics, *task.more):
        for found, truth in zip(predictions, labels, strict=True):
            constant = not task.classes and (np.ptp(found) == 0 or not np.isfinite(found).all())
            values.append(0.0 if constant else 100 * float(functions[metric](truth, found)))
    return dict(zip(task.all_scores, values, strict=True))


# ---- all tasks, rates and seeds -------------------------------------------------------------------------------------


def count_work(tasks: Sequence[TaskData], settings: GlueSettings) -> int:
    """Training examples of one checkpoint, over all epochs, rates and seeds."""
    runs = settings.epochs * settings.seeds * len(settings.learning_rates)
    return runs * sum(len(data.train) for data in tasks)


def evaluate_glue(
    lm: MaskedDiffusionLM,
    name: str,
    tasks: Sequence[TaskData],
    settings: GlueSettings,
    workspace: Workspace,
    progress: Progress | None = None,
) -> list[GlueResult]:
    """Fine-tune a checkpoint on all tasks. A finished fine-tuning is kept in the workspace and not repeated.

    Those that the workspace leaves to other processes have no result.
    """
    results = []
    for one in _fine_tunings(lm, name, tasks, settings):
        if progress is not None and workspace.has_measured(one.label, **one.inputs):
            progress(settings.epochs * len(one.encoded.train))
        task, truncated = one.encoded.task.name, one.encoded.truncated
        with suppress(Unfinished):
            scores = one.run(lm, settings, workspace, progress)
            results.append(GlueResult(name, task, one.rate, one.seed, scores, len(one.encoded.train), truncated))
    return results


def fine_tune_side_by_side(
    models: Sequence[tuple[MaskedDiffusionLM, str]],
    tasks: Sequence[TaskData],
    settings: GlueSettings,
    workspace: Workspace,
) -> None:
    """Run the fine-tunings of checkpoints, with their names, that the workspace does not have, in its processes."""
    left = [
        (lm, one)
        for lm, name in models
        for one in _fine_tunings(lm, name, tasks, settings)
        if not workspace.has_measured(one.label, **one.inputs)
    ]
    left.sort(key=lambda part: len(part[1].encoded.train), reverse=True)  # so that no long one is left for the end
    calls = [(str(lm.path), str(lm.device), one, settings, workspace.folder) for lm, one in left]
    for _ in run_side_by_side(_run_in_process, calls, workspace.jobs):
        pass


@dataclass(frozen=True)
class _FineTuning:
    """One fine-tuning; the result is kept in a workspace under `label` and `inputs`."""

    label: str
    encoded: EncodedTask
    rate: float
    seed: int
    inputs: dict[str, Any]

    def run(
        self, lm: MaskedDiffusionLM, settings: GlueSettings, workspace: Workspace, progress: Progress | None = None
    ) -> dict[str, float]:
        return workspace.measure(
            self.label, lambda: fine_tune(lm, self.encoded, self.rate, self.seed, settings, progress), **self.inputs
        )


def _fine_tunings(
    lm: MaskedDiffusionLM, name: str, tasks: Sequence[TaskData], settings: GlueSettings
) -> Iterator[_FineTuning]:
    """All fine-tunings of a checkpoint, task by task."""
    weights = fingerprint(lm.denoiser)
    for data in tasks:
        encoded = EncodedTask.of(lm, data)
        examples = [(part.texts, part.labels) for part in (data.train, *data.dev)]
        inputs = {
            "weights": weights,
            "task": data.task.name,
            "data": blake2b(repr(examples).encode(), digest_size=10).hexdigest(),
            "length": lm.row_length,
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
        }
        label = f"glue-{Path(name).name}-{data.task.name}"
        for rate in settings.learning_rates:
            for seed in range(settings.seeds):
                yield _FineTuning(label, encoded, rate, seed, {**inputs, "learning_rate": rate, "seed": seed})


_load_once = cache(load)
"""Each process of `fine_tune_side_by_side` opens a checkpoint once."""


def _run_in_process(path: str, device: str, one: _FineTuning, settings: GlueSettings, folder: Path) -> None:
    one.run(_load_once(path, device=device, dtype="float32"), settings, Workspace(folder))


def fingerprint(network: nn.Module) -> str:
    """A digest of all weights."""
    digest = blake2b(digest_size=10)
    for name, weight in network.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


# ---- the table ------------------------------------------------------------------------------------------------------


def choose_rate(results: Sequence[GlueResult], task: Task) -> list[GlueResult]:
    """The results, one per seed, of the learning rate with the highest mean of the task's selection scores.

    results: those of one checkpoint on the task. Of equally good rates the lowest is chosen.
    """
    rates = sorted({one.learning_rate for one in results})
    by_rate = {rate: [one for one in results if one.learning_rate == rate] for rate in rates}
    names = task.selection_scores
    best = max(rates, key=lambda rate: statistics.fmean(one.scores[name] for one in by_rate[rate] for name in names))
    return sorted(by_rate[best], key=lambda one: one.seed)


def glue_table(
    results: Sequence[GlueResult], tasks: Sequence[Task], settings: GlueSettings, notes: Sequence[str] = ()
) -> Table:
    """A row for each score and a column for each checkpoint, at the chosen learning rates.

    The average is over the scores of Table 4, in which MNLI counts twice; its deviation is that of the seeds' averages.
    """
    columns = list(dict.fromkeys(one.checkpoint for one in results))
    rows: dict[str, dict[str, Cell | str]] = {}
    per_column = []
    averages: dict[str, Cell | str] = {}
    for column in columns:
        scores_by_seed: list[list[float]] = [[] for _ in range(settings.seeds)]
        rates: dict[float, list[str]] = {}
        cut = []
        for task in tasks:
            own = [one for one in results if (one.checkpoint, one.task) == (column, task.name)]
            if not own:
                continue
            chosen = choose_rate(own, task)
            rates.setdefault(chosen[0].learning_rate, []).append(task.name)
            for name in task.reported_scores:
                rows.setdefault(f"{task.name}, {name}", {})[column] = seeds_cell([one.scores[name] for one in chosen])
            for seed, one in enumerate(chosen):
                scores_by_seed[seed] += [one.scores[name] for name in task.scores]
            if chosen[0].truncated:
                cut.append(f"{chosen[0].truncated} of {task.name}")
        if all(len(scores) == sum(len(task.scores) for task in tasks) for scores in scores_by_seed):
            averages[column] = seeds_cell([statistics.fmean(scores) for scores in scores_by_seed])
        words = "; ".join(f"{rate:g} for {', '.join(names)}" for rate, names in sorted(rates.items()))
        shorter = f" Examples that were cut to its length: {', '.join(cut)}." if cut else ""
        per_column.append(f"{column}: learning rate {words}.{shorter}")
    if len(tasks) > 1:
        rows[AVERAGE] = averages
    tried = ", ".join(f"{rate:g}" for rate in settings.learning_rates)
    selects = all(task.selection for task in tasks)
    about = (
        f"Percent on the {'test' if selects else 'development'} set; epochs: {settings.epochs}, seeds: {settings.seeds}"
    )
    about += " (± standard deviation)." if settings.seeds > 1 else "."
    if len(settings.learning_rates) > 1:
        about += (
            f" Of the learning rates {tried} the one with the highest mean score on "
            f"{'the development' if selects else 'the same'} set is shown, for each checkpoint and task."
        )
    if settings.limit is not None:
        about += f" At most {settings.limit} examples of each file."
    return Table("GLUE", columns, rows, notes=[about, *per_column, *notes], bars=True, axes=("", "percent"))
