"""The whole of a diagnosis, as one object for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.doctor.findings import Finding
from unmask.doctor.lawful import Verdict
from unmask.doctor.machine import Machine
from unmask.doctor.packages import Extra


@dataclass(frozen=True)
class Report:
    """What was found. `laws` is None where they were left out, `about` and `findings` where there is no checkpoint."""

    versions: list[Finding]
    machine: Machine
    extras: list[Extra]
    device: str
    laws: list[Verdict] | None = None
    about: dict[str, Any] | None = None
    text: str | None = None
    findings: list[Finding] | None = None

    @property
    def failures(self) -> int:
        """How many versions, laws and checks of the checkpoint are not as they should be."""
        broken = sum(len(verdict.broken) for verdict in self.laws or [])
        return broken + sum(finding.failed for finding in [*self.versions, *(self.findings or [])])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        checkpoint = None
        if self.about is not None:
            findings = [finding.as_dict() for finding in self.findings or []]
            checkpoint = {"about": self.about, "text": self.text, "findings": findings}
        return {
            "passed": not self.failures,
            "failures": self.failures,
            "device": self.device,
            "versions": [finding.as_dict() for finding in self.versions],
            "machine": self.machine.as_dict(),
            "extras": [extra.as_dict() for extra in self.extras],
            "laws": None if self.laws is None else [verdict.as_dict() for verdict in self.laws],
            "checkpoint": checkpoint,
        }
