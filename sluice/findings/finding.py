"""The finding of a detector: one problem, with cause, fix and evidence."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field

from sluice.base.settings import Record
from sluice.findings.catalogue import FaultName, find_fault
from sluice.findings.fault import Severity

EvidenceValue = float | int | str
"""Value that supports an observation: a number, or a text such as the name of a layer."""


class Finding(Record):
    """One problem that the POC gate, the tracer or the training diagnosis found."""

    fault: FaultName
    severity: Severity
    what: str = Field(description="Observation: what happened, where and how often.")
    cause: str = Field(description="Likely cause, or the effect on the training.")
    fix: str = Field(description="Recommended change.")
    evidence: dict[str, EvidenceValue] = Field(
        description="Values that support the observation, by name."
    )

    @classmethod
    def of(
        cls,
        fault: FaultName,
        *,
        what: str,
        evidence: Mapping[str, EvidenceValue],
        cause: str = "",
        fix: str = "",
    ) -> Self:
        """Return a finding with the usual severity of its fault.

        ``cause`` and ``fix`` default to the texts of the fault in the catalogue.
        """
        entry = find_fault(fault)
        return cls(
            fault=fault,
            severity=entry.severity,
            what=what,
            cause=cause or entry.cause,
            fix=fix or entry.fix,
            evidence=dict(evidence),
        )

    @property
    def explain_command(self) -> str:
        """Command that prints the catalogue entry of the fault."""
        return find_fault(self.fault).explain_command
