"""A finding about a cluster, its severity, and the diagnosis: all findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """What a finding means for kshare."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing to do."""
    WARNING = "warning"
    """kshare works, and what it confirmed may be lost, or is slower than it could be."""
    REFUSAL = "refusal"
    """kshare cannot work with the cluster as it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about the cluster; `command` changes it, empty where no command does."""

    severity: Severity
    text: str
    command: str = ""


@dataclass(slots=True)
class Diagnosis:
    """The findings in the order of the examination."""

    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, text: str, command: str = "") -> None:
        self.findings.append(Finding(severity, text, command))

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def is_refused(self) -> bool:
        return bool(self.of(Severity.REFUSAL))
