"""`unmask doctor`: check the installation, the laws on this machine, and a checkpoint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from unmask.cli.common import Device, Json, console, print_json, progress

if TYPE_CHECKING:
    from unmask.doctor import CheckResult

MARKS = {True: "[green]✓[/green]", False: "[bold red]✗[/bold red]", None: "[dim]–[/dim]"}


def doctor(
    checkpoint: Annotated[
        str | None, typer.Option(help="Also check this checkpoint or shipped model.", metavar="CKPT")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Text to check the checkpoint with (default: stories). Default: the model generates one."),
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

    from unmask.doctor.checkpoint import CheckpointCheck, describe_checkpoint
    from unmask.doctor.laws import count_cases, run_laws
    from unmask.doctor.machine import check_packages, describe_machine, list_extras
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
        with progress("laws", count_cases(), quiet=as_json) as advance:
            report["laws"] = list(run_laws(where, advance))
        if not as_json:
            _print_laws(report["laws"], str(where))
    if checks is not None:
        found = []
        with progress("checkpoint", len(checks.checks()), quiet=as_json) as advance:
            for result in checks.run():
                found.append(result)
                advance(1)
        results += found
        about = describe_checkpoint(checks.lm)
        report["checkpoint"] = {"about": about, "text": checks.text, "findings": [one.as_dict() for one in found]}
        if not as_json:
            _print_checkpoint(about, checks.text, found)
    failures = sum(result.passed is False for result in results)
    failures += sum(len(axis["broken"]) for axis in report["laws"] or [])
    if as_json:
        print_json({"passed": not failures, "failures": failures, **report})
    else:
        _print(f"[bold red]{failures} checks failed.[/bold red]" if failures else "[green]All checks passed.[/green]")
    if failures:
        raise typer.Exit(1)


def _print(content: Any) -> None:
    console.print(content, highlight=False, soft_wrap=True)


def _print_result(result: CheckResult) -> None:
    value = "" if result.value is None else f": {result.value:.3g}"
    limit = "" if result.limit is None else f" (at most {result.limit:.3g})"
    _print(f"  {MARKS[result.passed]} {result.name}: {escape(result.words)}{value}{limit}")
    if result.passed is False:
        _print(f"    next: {escape(result.remedy)}")


def _print_environment(packages: list[CheckResult], report: dict[str, Any]) -> None:
    _print("[bold]Environment[/bold]")
    for result in packages:
        _print_result(result)
    machine = report["machine"]
    lines = [
        f"platform: {machine['platform']}",
        f"CPU: {machine['cores']} cores, {machine['threads']} torch threads, {_gib(machine['memory'])} of memory",
    ]
    for gpu in machine["gpus"]:
        memory = f"{_gib(gpu['memory'])} ({_gib(gpu['free'])} free)"
        bf16 = "bf16" if gpu["bf16"] else "no bf16"
        lines.append(f"GPU: {gpu['name']}, {memory}, compute capability {gpu['capability']}, {bf16}")
    if machine["driver_unused"]:
        lines.append("GPU: this build of torch cannot use the NVIDIA driver; install a CUDA build of torch")
    elif not machine["gpus"]:
        lines.append("GPU: none")
    triton = "triton" if machine["triton"] else "no triton"
    lines += [
        f"distributed: {', '.join(machine['backends']) or 'not in this build of torch'}",
        f"torch.compile: CPU: {machine['compiler'] or 'no C++ compiler'}; GPU: {triton}",
        f"cache: {machine['cache']}, {_gib(machine['cache_free'])} free",
    ]
    for line in lines:
        _print(f"    {escape(line)}")
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
        closest = axis["closest"]
        counts = (axis["axis"], str(axis["members"]), f"{axis['checks']:,}")
        table.add_row(
            MARKS[axis["passed"]], *counts, _number(closest["figure"]), _number(closest["limit"]), closest["law"]
        )
    _print(table)
    broken = [law for axis in axes for law in axis["broken"]]
    for law in broken:
        numbers = f"{_number(law['figure'])} (at most {_number(law['limit'])})"
        _print(f"  {MARKS[False]} " + escape(f"{law['subject']}: {law['law']}: {law['words']}: {numbers}"))
    if broken:
        _print("    next: reinstall unmask, fix the member if you changed or added it, or report this")


def _print_checkpoint(about: dict[str, Any], text: str | None, results: list[CheckResult]) -> None:
    _print(f"[bold]Checkpoint[/bold] {escape(about['path'])}")
    conditioned = "conditioned on alpha" if about["conditioned"] else "not conditioned"
    tokenizer = about["tokenizer"]
    tokens = "none"
    if tokenizer is not None:
        eos = "no EOS" if tokenizer["eos"] is None else f"EOS {tokenizer['eos']} = {tokenizer['eos_token_id']}"
        mask = f"mask {tokenizer['mask']} = {tokenizer['mask_token_id']}"
        tokens = f"{tokenizer['kind']}, {tokenizer['vocabulary']:,} tokens, {mask}, {eos}"
    steps = "unknown steps" if about["steps"] is None else f"{about['steps']:,} steps"
    for line in (
        f"network: {about['network']}, {about['parameters']:,} parameters in {about['precision']}, {conditioned}",
        f"rows: {about['length']} tokens (at most {about['longest']}), vocabulary {about['vocabulary']:,}",
        f"schedule: {about['schedule']}",
        f"objective: {about['objective']}",
        f"policy: {about['policy']}",
        f"tokenizer: {tokens}",
        f"trained: {steps}, unmask {about['version']}",
        f"text: {'random tokens' if text is None else repr(text)}",
    ):
        _print(f"    {escape(line)}")
    for result in results:
        _print_result(result)


def _number(value: float | None) -> str:
    return f"{math.inf if value is None else value:.2g}"


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
