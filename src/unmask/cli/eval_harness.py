"""`unmask eval harness`: tasks of lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import common
from unmask.errors import UnmaskError, first_line


@common.option_groups
def harness(
    checkpoint: common.Checkpoint = None,
    *,
    tasks: Annotated[str, typer.Option(help="Names of tasks, separated by commas.")],
    include: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder with task definitions of your own (YAML).")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use this many items of each task.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Examples before each item.")] = None,
    precision: Annotated[
        float, typer.Option(min=1e-5, help="Monte-Carlo error of the bounds to reach, in bits per token.")
    ] = 0.05,
    steps: common.Steps = None,
    seed: common.Seed = 0,
    batch_size: common.BatchSize = None,
    out: common.Out = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Run tasks of lm-evaluation-harness; needs the extra 'harness'.

    The likelihood of an answer is that of an autoregressive model, or the bound of a masked one, with the same random
    numbers for all answers to a question. Items that do not fit into the model's rows are cut and counted.

    Examples:

        unmask eval harness runs/mine --tasks lambada_openai,arc_easy --limit 200

        unmask eval harness stories-ar --tasks my_task --include my_tasks/ --out harness.json
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UnmaskError("'unmask eval harness' needs lm_eval; run: pip install 'unmask[harness]'.") from error
    from unmask.evaluation.harness import HarnessLM

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    manager = TaskManager(include_path=None if include is None else str(include))
    if unknown := [name for name in names if not manager.match_tasks([name])]:
        raise UnmaskError(f"lm_eval has no task named '{unknown[0]}'; name others, or their folder with --include.")
    if not names:
        raise UnmaskError(f"--tasks must name at least one task, got '{tasks}'.")
    common.check_outputs(out, None)
    lm = model.load(checkpoint)
    with common.out_of_memory_advice(batch_size), common.progress("scoring", None, quiet=as_json) as advance:
        wrapped = HarnessLM(lm, precision=precision, steps=steps, seed=seed, batch_size=batch_size, progress=advance)
        try:
            found = lm_eval.simple_evaluate(
                wrapped, tasks=names, task_manager=manager, limit=limit, num_fewshot=num_fewshot, log_samples=False
            )
        except (ConnectionError, FileNotFoundError, ValueError) as error:
            reason = first_line(error)
            raise UnmaskError(f"A task could not be run ({reason}); check its data and the network.") from error
    report = {
        "results": {name: _figures(values) for name, values in found["results"].items()},
        "items": {name: count["effective"] for name, count in found["n-samples"].items()},
        "truncated": dict(wrapped.truncated),
        "versions": found["versions"],
    }
    common.print_report(report, lambda: _print_results(report), out, as_json)


def _figures(values: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Value and standard error by the name of the metric; lm_eval's keys are 'metric,filter'."""
    figures = {}
    for key, value in values.items():
        metric, _, kind = key.partition(",")
        if isinstance(value, (int, float)) and kind and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{kind}")
            name = metric if kind == "none" else f"{metric} ({kind})"
            figures[name] = {"value": float(value), "stderr": float(error) if isinstance(error, (int, float)) else None}
    return figures


def _print_results(report: dict[str, Any]) -> None:
    rows = []
    for task, figures in report["results"].items():
        for metric, figure in figures.items():
            error = "" if figure["stderr"] is None else f" ± {figure['stderr']:.4f}"
            rows.append((task, str(report["items"].get(task, "")), metric, f"{figure['value']:.4f}{error}"))
    common.print_table(("task", "items", "metric", "value"), rows, left=(0, 2))
    common.print_notes(
        f"{count} {what} did not fit into the model's rows and were cut." for what, count in report["truncated"].items()
    )
