"""`unmask doctor`: what is here, whether the mathematics holds here, and whether a checkpoint is well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from unmask.doctor.machine import CheckResult, Extra, Machine
    from unmask.doctor.report import Report, Verdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import Device, Json, console, print_json, progress

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

    from unmask.doctor.checkpoint import CheckpointCheck
    from unmask.doctor.report import Report, Verdict


MARKS = {True: "[green]✓[/green]", False: "[bold red]✗[/bold red]", None: "[dim]–[/dim]"}


def environment(report: Report) -> Iterator[RenderableType]:
    """Versions, the machine, and the extras with what is missing of them."""
    yield "[bold]Environment[/bold]"
    for finding in report.versions:
        yield from line(finding)
    for name, words in _machine(report.machine):
        yield _fact(name, words)
    yield "[bold]Extras[/bold]"
    for extra in report.extras:
        yield from _extra(extra)
    if not report.extras:
        yield "  not known: unmask runs from its source and is not installed"


def laws(report: Report) -> Iterator[RenderableType]:
    """A row an axis, then every broken law with its numbers."""
    verdicts = report.laws or []
    seconds = sum(verdict.seconds for verdict in verdicts)
    yield f"[bold]Laws[/bold] on {report.device}, {seconds:.0f} s"
    table = Table(box=None, header_style="bold", padding=(0, 0, 0, 2))
    for column in ("", "axis", "members", "checks", "worst", "limit", "law"):
        table.add_column(column, justify="left" if column in ("", "axis", "law") else "right")
    for verdict in verdicts:
        table.add_row(MARKS[not verdict.broken], *_row(verdict))
    yield table
    for verdict in verdicts:
        for law in verdict.broken:
            yield f"  {MARKS[False]} {escape(str(law))}"
    if any(verdict.broken for verdict in verdicts):
        yield "    next: reinstall unmask; if you changed or registered that member, mend it; else report this"


def checkpoint_lines(report: Report) -> Iterator[RenderableType]:
    """What a checkpoint is, and a line a check."""
    about = report.about or {}
    yield f"[bold]Checkpoint[/bold] {escape(about['path'])}"
    for name, words in _about(about):
        yield _fact(name, words)
    yield _fact("text", repr(report.text) if report.text is not None else "none: random tokens")
    for finding in report.findings or []:
        yield from line(finding)


def summary(report: Report) -> Iterator[RenderableType]:
    """The last line."""
    count = report.failures
    yield f"[bold red]{count} of the checks failed.[/bold red]" if count else "[green]All is well.[/green]"


def line(finding: CheckResult) -> Iterator[str]:
    """One check, and below it what to do if it failed."""
    figure = "" if finding.value is None else f": {finding.value:.3g}"
    limit = "" if finding.limit is None else f" (at most {finding.limit:.3g})"
    yield f"  {MARKS[finding.passed]} {finding.name}: {escape(finding.words)}{figure}{limit}"
    if finding.failed:
        yield f"    next: {escape(finding.remedy)}"


def _extra(extra: Extra) -> Iterator[str]:
    here = ", ".join(f"{package.name} {package.version}" for package in extra.packages if package.supported)
    missing = ", ".join(f"{package.name}{package.wanted}" for package in extra.missing)
    yield f"  {MARKS[True if not extra.missing else None]} {extra.name}: {here or 'nothing yet'}"
    if missing:
        yield f"    missing: {missing}; {escape(extra.install)}"


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "platform", machine.platform
    yield (
        "processors",
        f"{machine.cores} cores, torch uses {machine.threads} threads, {_size(machine.memory)} of memory",
    )
    for gpu in machine.gpus:
        yield (
            "GPU",
            f"{gpu.name}, {_size(gpu.memory)} ({_size(gpu.free)} free), compute capability {gpu.capability}, "
            + ("bf16" if gpu.bf16 else "no bf16"),
        )
    if machine.driver_unused:
        yield "GPU", "there is an NVIDIA driver, but this torch cannot use it; install a CUDA build of torch"
    elif not machine.gpus:
        yield "GPU", "none"
    yield "distributed", ", ".join(machine.backends) or "not in this torch"
    yield "torch.compile", f"CPU: {machine.compiler or 'no C++ compiler'}; GPU: {_triton(machine)}"
    yield "cache", f"{machine.cache}, {_size(machine.cache_free)} free"


def _triton(machine: Machine) -> str:
    return "triton" if machine.triton else "no triton"


def _about(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    conditioned = "conditioned on alpha" if about["conditioned"] else "not conditioned"
    yield "network", f"{about['network']}, {about['parameters']:,} parameters in {about['precision']}, {conditioned}"
    yield "rows", f"{about['length']} tokens (at most {about['longest']}), vocabulary {about['vocabulary']:,}"
    for name in ("schedule", "objective", "policy"):
        yield name, about[name]
    yield "tokenizer", _tokenizer(about["tokenizer"])
    steps = "steps not known" if about["steps"] is None else f"{about['steps']:,} steps"
    yield "trained", f"{steps}, unmask {about['version']}"


def _tokenizer(tokenizer: dict[str, Any] | None) -> str:
    if tokenizer is None:
        return "none"
    mask = f"mask {tokenizer['mask']} = {tokenizer['mask_token_id']}"
    eos = "no EOS" if tokenizer["eos"] is None else f"EOS {tokenizer['eos']} = {tokenizer['eos_token_id']}"
    return f"{tokenizer['kind']}, {tokenizer['vocabulary']:,} tokens, {mask}, {eos}"


def _row(verdict: Verdict) -> tuple[str, ...]:
    law = verdict.closest
    counts = (verdict.axis, str(verdict.members), f"{verdict.checks:,}")
    return (*counts, f"{law.value:.2g}", f"{law.limit:.2g}", law.name)


def _fact(name: str, words: str) -> str:
    return f"    {name}: {escape(words)}"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def doctor(
    checkpoint: Annotated[
        str | None, typer.Option(help="Examine this checkpoint too, or a model that ships.", metavar="CKPT")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="The text to examine it (or the shipped 'stories') with; else the model writes one."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave the laws out, which take half a minute.")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Versions, devices and extras; the laws on this machine; and, if one is named, the health of a checkpoint.

    Exit code 1 if a check fails; what to do next stands below it.

    Examples:

        unmask doctor

        unmask doctor --quick --checkpoint stories

        unmask doctor --checkpoint runs/mine --text "Return a copy of the list." --json
    """
    import torch

    pass
    from unmask.doctor.machine import extras, look, version_findings
    from unmask.doctor.report import Report
    from unmask.models.inference import select_device

    where = select_device(device, dtype=torch.float64)  # that of laws and likelihoods
    patient = None if checkpoint is None and text is None else _admit(checkpoint, text, where)
    report = Report(version_findings(), look(), extras(), str(where))
    _show(environment(report), quiet=as_json)
    if not quick:
        report = replace(report, laws=_judge(where, quiet=as_json))
        _show(laws(report), quiet=as_json)
    if patient is not None:
        report = _examine(report, patient, quiet=as_json)
        _show(checkpoint_lines(report), quiet=as_json)
    _show(summary(report), quiet=as_json)
    if as_json:
        print_json(report.as_dict())
    if report.failures:
        raise typer.Exit(1)


def _admit(checkpoint: str | None, text: str | None, device: torch.device) -> CheckpointCheck:
    from unmask.doctor.checkpoint import admit
    from unmask.pipeline import load

    return admit(load(checkpoint, device=device, dtype="float32"), text)


def _judge(device: torch.device, quiet: bool) -> list[Verdict]:
    from unmask.doctor.report import judge, work

    with progress("laws", work(), quiet=quiet) as advance:
        return list(judge(device, advance))


def _examine(report: Report, patient: CheckpointCheck, quiet: bool) -> Report:
    from unmask.doctor.checkpoint import about, checks, examine

    findings = []
    with progress("checkpoint", len(checks(patient)), quiet=quiet) as advance:
        for finding in examine(patient):
            findings.append(finding)
            advance(1)
    return replace(report, about=about(patient.lm), text=patient.text, findings=findings)


def _show(lines: Iterable[RenderableType], quiet: bool) -> None:
    for line in () if quiet else lines:
        console.print(line, highlight=False, soft_wrap=True)
