"""`unmask doctor`: check the installation, the laws on this machine, and a checkpoint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from unmask.cli.common import Device, Json, console, print_fitting, print_json, progress

if TYPE_CHECKING:
    from unmask.doctor import CheckResult

MARKS = {True: "[green]✓[/green]", False: "[bold red]✗[/bold red]", None: "[dim]–[/dim]"}


def doctor(
    checkpoint: Annotated[
        str | None, typer.Option(help="Also check this checkpoint or shipped model.", metavar="CKPT")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Text to check the checkpoint (default: stories) with. Default: one that the model generates."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the laws, which take half a minute.")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check versions, devices and extras, the laws on this machine, and optionally a checkpoint.

    Exits with code 1 if a check fails, and prints what to do about it.

    Examples:

        unmask doctor

        unmask doctor --quick --checkpoint stories

        unmask doctor --checkpoint runs/mine --text "Return a copy of the list." --json
    """
    import torch

    from unmask import laws
    from unmask.doctor import check_packages, describe_machine, list_extras, run_laws
    from unmask.doctor.checkpoint import CheckpointCheck, describe_checkpoint
    from unmask.models.inference import select_device
    from unmask.pipeline import load

    where = select_device(device, dtype=torch.float64)  # laws and likelihoods are in float64
    checks = None
    if checkpoint is not None or text is not None:
        checks = CheckpointCheck(load(checkpoint, device=where, dtype="float32"), text)
    packages = check_packages()
    results = list(packages)
    report: dict[str, Any] = {
        "device": str(where),
        "versions": [result.as_dict() for result in packages],
        "machine": describe_machine(),
        "extras": list_extras(),
        "laws": None,
        "checkpoint": None,
    }
    if not as_json:
        _print_environment(packages, report)
    if not quick:
        cases = sum(len(laws.cases(axis)) for axis in laws.AXES)
        with progress("laws", cases, quiet=as_json, even=False) as advance:
            report["laws"] = list(run_laws(where, advance))
        if not as_json:
            _print_laws(report["laws"], str(where))
    if checks is not None:
        found = []
        with progress("checkpoint", len(checks.checks()), quiet=as_json, even=False) as advance:
            for result in checks.run():
                found.append(result)
                advance(1)
        results += found
        about = describe_checkpoint(checks.lm)
        report["checkpoint"] = {"about": about, "text": checks.text, "findings": [one.as_dict() for one in found]}
        if not as_json:
            _print(f"[bold]Checkpoint[/bold] {escape(about['path'])}")
            _print_values(about | {"text": "random tokens" if checks.text is None else repr(checks.text)})
            for result in found:
                _print_result(result)
    failures = sum(result.passed is False for result in results)
    failures += sum(len(axis["broken"]) for axis in report["laws"] or [])
    if as_json:
        print_json({"passed": not failures, "failures": failures, **report})
    else:
        _print(f"[bold red]{failures} checks failed.[/bold red]" if failures else "[green]All checks passed.[/green]")
    if failures:
        raise typer.Exit(1)


def _print(content: Any) -> None:
    console.print(content, soft_wrap=True)


def _print_result(result: CheckResult) -> None:
    value = "" if result.value is None else f": {result.value:.3g}"
    limit = "" if result.limit is None else f" (at most {result.limit:.3g})"
    _print(f"  {MARKS[result.passed]} {result.name}: {escape(result.words)}{value}{limit}")
    if result.passed is False:
        _print(f"    next: {escape(result.remedy)}")


def _print_values(values: dict[str, Any]) -> None:
    """Print one line per value; sizes are in bytes."""
    for name, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_format(key, one)}" for key, one in value.items())
        _print(f"    {name.replace('_', ' ')}: {escape(_format(name, value))}")


def _format(name: str, value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in ("memory", "free", "cache_free"):
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_environment(packages: list[CheckResult], report: dict[str, Any]) -> None:
    _print("[bold]Environment[/bold]")
    for result in packages:
        _print_result(result)
    machine = dict(report["machine"])
    gpus, driver_unused = machine.pop("gpus"), machine.pop("driver_unused")
    _print_values(machine | ({f"GPU {index}": gpu for index, gpu in enumerate(gpus)} or {"GPU": None}))
    if driver_unused:
        _print("    next: install a CUDA build of torch; this one cannot use the NVIDIA driver")
    _print("[bold]Extras[/bold]")
    for extra in report["extras"]:
        found = [f"{one['name']} {one['version']}" for one in extra["packages"] if one["supported"]]
        missing = [f"{one['name']}{one['wanted']}" for one in extra["packages"] if not one["supported"]]
        _print(f"  {MARKS[None if missing else True]} {extra['name']}: {', '.join(found) or 'not installed'}")
        if missing:
            _print(f"    missing: {', '.join(missing)}; {escape(extra['install'])}")
    if not report["extras"]:
        _print("  not known: unmask is not installed")


def _print_laws(axes: list[dict[str, Any]], device: str) -> None:
    _print(f"[bold]Laws[/bold] on {device}, {sum(axis['seconds'] for axis in axes):.0f} s")
    table = Table(box=None, header_style="bold", padding=(0, 0, 0, 2))
    for column in ("", "axis", "members", "checks", "worst", "limit", "law"):
        table.add_column(column, justify="left" if column in ("", "axis", "law") else "right")
    for axis in axes:
        closest, counts = axis["closest"], (axis["axis"], str(axis["members"]), f"{axis['checks']:,}")
        table.add_row(
            MARKS[axis["passed"]], *counts, _number(closest["figure"]), _number(closest["limit"]), closest["law"]
        )
    print_fitting(table)
    broken = [law for axis in axes for law in axis["broken"]]
    for law in broken:
        numbers = f"{_number(law['figure'])} (at most {_number(law['limit'])})"
        _print(f"  {MARKS[False]} " + escape(f"{law['subject']}: {law['law']}: {law['words']}: {numbers}"))
    if broken:
        _print("    next: reinstall unmask, fix the member if you changed or added it, or report this")


def _number(value: float | None) -> str:
    return f"{math.inf if value is None else value:.2g}"
