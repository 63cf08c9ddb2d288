"""What a rule found in a trace, and what a rule is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from sluice.settings import Record
from sluice.trace.evidence.trace import Trace

Severity = Literal["error", "confirm", "warning"]
"""Certainly wrong; wrong unless it is meant; worth a look."""

Number = float | int | str


class Finding(Record):
    """One thing that is wrong, with the evidence for it."""

    rule: str
    requirement: str = Field(description="Such as 'TRACE-12'.")
    severity: Severity
    step: int = Field(description="The first step that shows it.")
    what: str = Field(description="What was seen, where, how often.")
    cause: str = Field(description="What it does to the training.")
    fix: str
    evidence: dict[str, Number] = Field(description="The numbers that it stands on.")
    contradicted_by: str = Field(description="What would show that it is wrong.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One policy over recorded evidence."""

    name: str
    """A sentence that is true when nothing is wrong."""
    requirement: str
    requires: str
    """The evidence without which it says nothing."""
    contradicted_by: str
    abstains: str
    """When the evidence is there and it says nothing all the same."""
    judge: Callable[["Rule", Trace], tuple[Finding, ...]]

    def __call__(self, trace: Trace) -> tuple[Finding, ...]:
        """Return what is wrong."""
        return self.judge(self, trace)

    def finding(
        self,
        *,
        severity: Severity,
        step: int,
        what: str,
        cause: str,
        fix: str,
        **evidence: Number,
    ) -> Finding:
        """Return a finding of this rule."""
        return Finding(
            rule=self.name,
            requirement=self.requirement,
            severity=severity,
            step=step,
            what=what,
            cause=cause,
            fix=fix,
            evidence=evidence,
            contradicted_by=self.contradicted_by,
        )
