"""Result of each check, the report of the POC gate, and the receipt that training requires."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.config.poc_settings import TimeLimit
from sluice.findings.catalogue import FaultName
from sluice.findings.check_outcome import CheckOutcome, HardExample, Outcome
from sluice.findings.finding import EvidenceValue, Finding
from sluice.reports.notebook import card, details, fragment, heading, paragraph, text_table
from sluice.reports.page import Tone

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "insufficient": "unsure"}
_OUTCOMES = {"pass": "passed", "fail": "failed", "insufficient": "insufficient evidence"}

Level = Literal["minimum", "full"]


class CheckResult(Record):
    """Result of one check of the POC gate: observation, likely cause and fix."""

    name: str = Field(description="Statement that is true when the check passes.")
    check_id: str = Field(description="Stable identifier of the check, such as 'gradient_flow'.")
    outcome: Outcome
    numbers: dict[str, EvidenceValue]
    seconds: float = Field(description="Run time of the check [s].")
    typical_s: float = Field(description="Run time above which a passed check warns [s].")
    max_s: float = Field(description="Run time above which the check fails [s].")
    summary: str = Field(description="What was observed, and where.")
    cause: str = Field("", description="Likely cause; empty when nothing is wrong.")
    fix: str = Field("", description="What to do; empty when nothing is wrong.")
    fault: FaultName | None = Field(
        None,
        description="Name of the problem in the fault catalogue; null when nothing is wrong, and "
        "for errors that are not in the catalogue.",
    )
    examples: tuple[HardExample, ...] = Field(
        (), description="Rows to inspect, highest loss first."
    )

    @classmethod
    def of(
        cls, outcome: CheckOutcome, *, name: str, check_id: str, seconds: float, limit: TimeLimit
    ) -> Self:
        """Return the result of a check: its outcome with name, time limits, cause and fix."""
        cause, fix = outcome.response
        return cls(
            name=name,
            check_id=check_id,
            outcome=outcome.outcome,
            numbers=dict(outcome.numbers),
            seconds=seconds,
            typical_s=limit.typical_s,
            max_s=limit.max_s,
            summary=outcome.summary,
            cause=cause,
            fix=fix,
            fault=outcome.fault,
            examples=outcome.examples,
        )

    @property
    def passed(self) -> bool:
        """Whether the outcome is a pass or a warning; a skipped check did not pass."""
        return self.outcome in ("pass", "warn")

    @property
    def explain_command(self) -> str:
        """Command that explains the fault of the catalogue; without such a fault, the check."""
        finding = self.finding
        return f"sluice explain {self.name}" if finding is None else finding.explain_command

    @property
    def card(self) -> str:
        """The observation, its likely cause and the fix, as HTML for a notebook."""
        return card(
            f"{self.name}: {self.outcome}",
            "unsure" if self.outcome in ("warn", "insufficient") else "bad",
            (("result:", self.summary), ("cause:", self.cause), ("fix:", self.fix)),
        )

    @property
    def finding(self) -> Finding | None:
        """The problem that the check found; None without a fault of the catalogue."""
        if self.fault is None:
            return None
        return Finding(
            fault=self.fault,
            severity="warning" if self.outcome == "warn" else "error",
            what=self.summary,
            cause=self.cause,
            fix=self.fix,
            evidence=self.numbers,
        )


class GateReport(Record):
    """Results of all checks of one run of the POC gate."""

    level: Level
    workload: str
    results: tuple[CheckResult, ...] = Field(min_length=1)
    seconds: float = Field(description="Wall time of the whole gate [s].")

    @property
    def passed(self) -> bool:
        """Whether every check passed: a warning counts as passed, a skipped check does not."""
        return all(result.passed for result in self.results)

    @property
    def outcome(self) -> Literal["pass", "fail", "insufficient"]:
        """Outcome: "pass" if ``passed`` is true, "fail" if a check failed, else "insufficient"."""
        if self.passed:
            return "pass"
        outcomes = {result.outcome for result in self.results}
        return "insufficient" if "fail" not in outcomes else "fail"

    @property
    def blocking_failures(self) -> tuple[CheckResult, ...]:
        """Results of the checks with outcome "fail" or "insufficient"."""
        return tuple(r for r in self.results if r.outcome in ("fail", "insufficient"))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The problems that the checks found, in the order of the checks."""
        return tuple(r.finding for r in self.results if r.finding is not None)

    @property
    def counts_text(self) -> str:
        """Numbers of passed checks and of warnings, such as '16 of 17 checks passed, 1 warning'."""
        outcomes = [result.outcome for result in self.results]
        text = f"{outcomes.count('pass')} of {len(outcomes)} checks passed"
        num_warnings = outcomes.count("warn")
        return f"{text}, {pluralize(num_warnings, 'warning')}" if num_warnings else text

    @property
    def reason(self) -> str:
        """Summary of the first blocking check, or a sentence that no check blocks."""
        # Warnings are not mentioned: the reason is part of the receipt, whose digest must not
        # depend on slow checks, which only warn.
        if self.passed:
            return f"None of the {len(self.results)} checks of the {self.level} gate blocks."
        first, *others = self.blocking_failures or self.results
        more = f" ({len(others)} more)" if others else ""
        return f"{first.name}: {first.summary}{more}"

    def _repr_html_(self) -> str:
        return fragment(
            heading(f"POC gate of {self.workload}", _OUTCOMES[self.outcome], _TONES[self.outcome]),
            paragraph(
                f"{self.counts_text}, in {self.seconds:.1f} s ({self.level} gate).",
                soft=True,
            ),
            *(r.card for r in self.results if r.outcome not in ("pass", "skipped")),
            details(
                f"All {len(self.results)} checks",
                text_table(
                    ("check", "outcome", "seconds", "result"),
                    [(r.name, r.outcome, f"{r.seconds:.2f}", r.summary) for r in self.results],
                    numbers=frozenset({2}),
                ),
            ),
        )

    def receipt(self, subject: dict[str, str], decided_at: datetime) -> Receipt:
        """Return the receipt of the gate's decision.

        Args:
            subject: Digests of the data, code and settings that the gate evaluated, by role.
            decided_at: Time of the decision.
        """
        # Run times are omitted, and warnings are stored as "pass": both depend on the machine, but
        # equal decisions must have equal digests.
        checks = {
            result.check_id: {
                "outcome": "pass" if result.passed else result.outcome,
                "numbers": result.numbers,
            }
            for result in self.results
        }
        return Receipt(
            gate="poc",
            outcome=self.outcome,
            passed=self.passed,
            subject=subject,
            evidence={"level": self.level, "workload": self.workload, "checks": checks},
            reason=self.reason,
            decided_at=decided_at,
        )
