"""The result of one run of the fault benchmark."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.tracer.case import FaultCase, HealthyCase, NetName
from sluice.findings.catalogue import FaultName
from sluice.findings.fault import Severity
from sluice.trace.diagnosis import Diagnosis

Kind = Literal["fault", "twin", "healthy"]
"""Kind of a run. ``fault``: a program with a fault. ``twin``: the same program without the fault.
``healthy``: an unusual healthy program."""

_MAX_EARLY_STEPS = 1
"""A finding is in time if its step is at most this number of steps before ``starts_at``."""


class ReportedCause(Record):
    """One cause that the tracer reported."""

    fault: FaultName
    severity: Severity
    step: int
    confidence: float
    what: str = Field(description="What the tracer observed.")
    explains: tuple[FaultName, ...] = Field(
        description="Faults that the tracer reported as consequences of this cause."
    )

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> "ReportedCause":
        """Return the cause of a diagnosis, without its evidence."""
        return cls(
            fault=diagnosis.fault,
            severity=diagnosis.finding.severity,
            step=diagnosis.step,
            confidence=diagnosis.confidence,
            what=diagnosis.finding.what,
            explains=tuple(finding.fault for finding in diagnosis.consequences),
        )


class RunResult(Record):
    """Result of one run: one program with one network and one seed."""

    number: int = Field(description="Number of the case.")
    name: str = Field(description="Name of the case.")
    kind: Kind
    net: NetName
    seed: int
    right: tuple[FaultName, ...] = Field(
        description="Causes that count as correct; empty for a healthy run."
    )
    needs: Literal["error", "confirm"] = Field(
        description="Minimum severity of a correct cause. Always 'error' for a healthy run."
    )
    starts_at: int = Field(description="First step affected by the fault; 1 for a healthy run.")
    within: int = Field(
        description="A finding is in time if its step is at most this number of steps after "
        "``starts_at``."
    )
    steps: int = Field(description="Number of optimizer steps of the run.")
    seconds: float = Field(
        description="CPU time of the traced program [s]; the maximum over its ranks."
    )
    answers: tuple[ReportedCause, ...] = Field(
        description="Reported causes, the most likely root cause first."
    )
    notes: tuple[str, ...] = Field(
        (), description="Notes of the tracer, for example about what it could not record."
    )
    failed: str = Field("", description="Why the run has no valid result; empty if it has one.")
    has_same_bits: bool | None = Field(
        None,
        description="Whether the final weights of the traced and the untraced run are equal; None "
        "if they were not compared.",
    )
    alarms: dict[str, int] | None = Field(
        None,
        description="Step of the first alarm, by name of the baseline. Baselines without an alarm "
        "are omitted. None if the baselines were not run.",
    )

    @classmethod
    def of(
        cls,
        case: FaultCase | HealthyCase,
        *,
        has_fault: bool,
        net: NetName,
        seed: int,
        answers: tuple[ReportedCause, ...] = (),
        steps: int = 0,
        seconds: float = 0.0,
        notes: tuple[str, ...] = (),
        failed: str = "",
        has_same_bits: bool | None = None,
        alarms: dict[str, int] | None = None,
    ) -> "RunResult":
        """Return the result of one run of a case."""
        fault_case = case if isinstance(case, FaultCase) else None
        kind: Kind = "fault" if has_fault else "healthy" if fault_case is None else "twin"
        expected_case = fault_case if has_fault else None
        return cls(
            number=case.number,
            name=case.name,
            kind=kind,
            net=net,
            seed=seed,
            right=() if expected_case is None else tuple(sorted(expected_case.correct_causes)),
            needs="error" if expected_case is None else expected_case.required_severity,
            starts_at=1 if expected_case is None else expected_case.starts_at,
            within=0 if expected_case is None else expected_case.max_late_steps,
            steps=steps,
            seconds=seconds,
            answers=answers,
            notes=notes,
            failed=failed,
            has_same_bits=has_same_bits,
            alarms=alarms,
        )

    @property
    def correct_rank(self) -> int | None:
        """Rank of the first correct cause, from 1.

        A correct cause has at least the severity ``needs``. None if no correct cause was reported,
        or if the run failed.
        """
        if self.failed:
            return None
        accepted_severities = ("error", "confirm") if self.needs == "confirm" else ("error",)
        for rank, answer in enumerate(self.answers, start=1):
            if answer.fault in self.right and answer.severity in accepted_severities:
                return rank
        return None

    @property
    def is_caught(self) -> bool:
        """Whether a correct cause was reported."""
        return self.correct_rank is not None

    @property
    def is_first(self) -> bool:
        """Whether a correct cause is ranked first."""
        return self.correct_rank == 1

    @property
    def has_error(self) -> bool:
        """Whether an error was reported."""
        return bool(self.causes_with_severity("error"))

    @property
    def has_warning(self) -> bool:
        """Whether a warning or a cause to confirm was reported."""
        return bool(self.causes_with_severity("confirm") or self.causes_with_severity("warning"))

    @property
    def late_steps(self) -> int | None:
        """Number of steps from the first affected step to the step of the correct cause.

        Negative if the reported step is earlier; None if the correct cause was not reported.
        """
        rank = self.correct_rank
        return None if rank is None else self.answers[rank - 1].step - self.starts_at

    @property
    def is_in_time(self) -> bool:
        """Whether the correct cause was reported with a step at or soon after ``starts_at``.

        The step may be up to ``within`` steps after ``starts_at``, or one step before it.
        """
        return self.late_steps is not None and -_MAX_EARLY_STEPS <= self.late_steps <= self.within

    def causes_with_severity(self, severity: Severity) -> tuple[ReportedCause, ...]:
        """Return the reported causes that have one severity."""
        return tuple(answer for answer in self.answers if answer.severity == severity)
