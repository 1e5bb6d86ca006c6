"""`unmask eval glue`: checkpoints as encoders, fine-tuned on the tasks of GLUE."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import common
from unmask.cli.reproduce import print_experiment
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.data.glue import Task
    from unmask.evaluation.glue import GlueSettings


Tasks = Annotated[
    str | None,
    typer.Option(
        help="Tasks, separated by commas: MNLI, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE. Default: all.",
        metavar="TASK,...",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with TASK/train.tsv and TASK/dev.tsv, which may be compressed. Default: UNMASK_DATA/glue."
    ),
]
Rates = Annotated[str, typer.Option(help="Learning rates to try, separated by commas.", metavar="RATE,...")]
Limit = Annotated[
    int | None,
    typer.Option(min=2, help="Use at most this many examples of each file, evenly spaced, for a quick look."),
]


def glue(
    checkpoints: Annotated[
        list[str],
        common.checkpoints_argument("Checkpoints to compare: masked encoders, DiTs and autoregressive models."),
    ],
    tasks: Tasks = None,
    data: Data = None,
    learning_rates: Rates = "2e-5,5e-5,1e-4",
    seeds: Annotated[int, typer.Option(min=1, help="Fine-tunings for each rate, with the seeds 0, 1, ...")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training examples.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per step; the result depends on it.")] = 16,
    limit: Limit = None,
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Processes that fine-tune side by side; on a GPU they share it."),
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for finished fine-tunings, tables and the figure.")] = Path("glue"),
    device: common.Device = None,
    as_json: common.Json = False,
) -> None:
    """Fine-tune a head and all weights on each task of GLUE: Table 4 of the paper; needs the extra 'glue'.

    Matthews correlation for CoLA, F1 and accuracy for QQP and MRPC, Spearman and Pearson correlation for STS-B,
    accuracy for the others; mean and standard deviation over seeds, at the learning rate with the best mean on the
    development set. The rows of a network are averaged over the text; of an autoregressive one the last is used. Every
    finished fine-tuning is kept in OUT/measurements, and the same command continues after an interruption. OUT also
    gets table.json, table.md and figure.png.

    Examples:

        unmask eval glue runs/ar runs/bert-small runs/bert-small-mdlm

        unmask eval glue stories stories-ar --tasks SST-2,RTE --limit 500 --seeds 2 --learning-rates 1e-4

        unmask eval glue runs/ar runs/bert-small --jobs 12

        unmask eval glue runs/mine --data downloads/glue --epochs 5 --out glue-mine --json
    """
    if find_spec("sklearn") is None or find_spec("scipy") is None:
        raise UnmaskError("'unmask eval glue' needs scikit-learn and scipy; run: pip install 'unmask[glue]'.")
    from unmask.data.glue import find_tasks, glue_folder, parse_tasks, read_task
    from unmask.io import check_writable, unique_names

    rates = _parse_rates(learning_rates)
    folder = glue_folder(data)
    chosen, missing = find_tasks(parse_tasks(tasks), folder)
    if out.is_file():
        raise UnmaskError(f"--out must be a folder, got the file '{out}'.")
    check_writable(out / "table.json")
    examples = [read_task(task, folder, limit) for task in chosen]
    names = unique_names([Path(path).name for path in checkpoints], checkpoints)
    for sentence in missing:
        common.error_console.print(sentence, soft_wrap=True, markup=False)

    from unmask.evaluation.glue import GlueSettings, count_work, evaluate_glue, fine_tune_side_by_side, glue_table
    from unmask.evaluation.tables.workspace import Workspace, write_table
    from unmask.pipeline import load

    settings = GlueSettings(rates, seeds, epochs, batch_size, limit)
    workspace = Workspace(out, jobs=jobs)
    results = []
    work = len(names) * count_work(examples, settings)
    with common.out_of_memory_advice(batch_size), common.progress("fine-tuning", work, as_json, even=False) as advance:
        opened = [load(path, device=device, dtype="float32") for path in checkpoints]
        models = list(zip(opened, names, strict=True))
        if jobs > 1:
            fine_tune_side_by_side(models, examples, settings, workspace)
        for lm, name in models:
            results += evaluate_glue(lm, name, examples, settings, workspace, advance)
    malformed = {one.task.name: sum(part.malformed for part in (one.train, *one.dev)) for one in examples}
    broken = ", ".join(f"{count} of {task}" for task, count in malformed.items() if count)
    notes = [*missing, *([f"Lines with too few or too many fields that are left out: {broken}."] if broken else [])]
    table = glue_table(results, chosen, settings, notes)
    command = _command(checkpoints, chosen, settings, data)
    report = {
        "command": command,
        "settings": asdict(settings),
        "left_out": missing,
        "malformed": malformed,
        "results": [asdict(result) for result in results],
    }
    report = write_table(out, table, report, f"`{command}`")
    if as_json:
        common.print_json(report)
    else:
        print_experiment(table, out)


def _command(checkpoints: list[str], tasks: list[Task], settings: GlueSettings, data: Path | None) -> str:
    """The command that makes the same table."""
    options = {
        "--tasks": ",".join(task.name for task in tasks),
        "--learning-rates": ",".join(f"{rate:g}" for rate in settings.learning_rates),
        "--seeds": str(settings.seeds),
        "--epochs": str(settings.epochs),
        "--batch-size": str(settings.batch_size),
    }
    options |= {} if settings.limit is None else {"--limit": str(settings.limit)}
    options |= {} if data is None else {"--data": str(data)}
    return shlex.join(["unmask", "eval", "glue", *checkpoints, *(word for pair in options.items() for word in pair)])


def _parse_rates(text: str) -> tuple[float, ...]:
    """Learning rates, separated by commas, in ascending order."""
    rates = set()
    for word in text.split(","):
        try:
            rate = float(word)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise UnmaskError(f"--learning-rates must be positive numbers such as 2e-5,5e-5, got '{word.strip()}'.")
        rates.add(rate)
    return tuple(sorted(rates))
