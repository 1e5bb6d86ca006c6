"""`unmask doctor`: what is here, whether the mathematics holds here, and whether a checkpoint is well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import Device, Json, console, print_json, progress

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

    from unmask.doctor.lawful import Verdict
    from unmask.doctor.patient import Patient
    from unmask.doctor.report import Report


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

    from unmask.cli import diagnosis
    from unmask.devices import device_named
    from unmask.doctor import machine, packages
    from unmask.doctor.report import Report

    where = device_named(device, dtype=torch.float64)  # that of laws and likelihoods
    patient = None if checkpoint is None and text is None else _admit(checkpoint, text, where)
    report = Report(packages.version_findings(), machine.look(), packages.extras(), str(where))
    _show(diagnosis.environment(report), quiet=as_json)
    if not quick:
        report = replace(report, laws=_judge(where, quiet=as_json))
        _show(diagnosis.laws(report), quiet=as_json)
    if patient is not None:
        report = _examine(report, patient, quiet=as_json)
        _show(diagnosis.checkpoint(report), quiet=as_json)
    _show(diagnosis.summary(report), quiet=as_json)
    if as_json:
        print_json(report.as_dict())
    if report.failures:
        raise typer.Exit(1)


def _admit(checkpoint: str | None, text: str | None, device: torch.device) -> Patient:
    from unmask.doctor.patient import admit
    from unmask.generation import load

    return admit(load(checkpoint, device=device, dtype="float32"), text)


def _judge(device: torch.device, quiet: bool) -> list[Verdict]:
    from unmask.doctor import lawful

    with progress("laws", lawful.work(), quiet=quiet) as advance:
        return list(lawful.judge(device, advance))


def _examine(report: Report, patient: Patient, quiet: bool) -> Report:
    from unmask.doctor.examination import checks, examine
    from unmask.doctor.patient import about

    findings = []
    with progress("checkpoint", len(checks(patient)), quiet=quiet) as advance:
        for finding in examine(patient):
            findings.append(finding)
            advance(1)
    return replace(report, about=about(patient.lm), text=patient.text, findings=findings)


def _show(lines: Iterable[RenderableType], quiet: bool) -> None:
    for line in () if quiet else lines:
        console.print(line, highlight=False, soft_wrap=True)
