"""What one run of the fault benchmark came to."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.tracer.case import FaultCase, HealthyCase, NetName
from sluice.trace.diagnosis import Diagnosis
from sluice.trace.faults import Fault
from sluice.trace.finding import Severity

Kind = Literal["fault", "twin", "healthy"]
"""A program with a fault; the same program without it; an unusual program that learns."""

_EARLY = 1
"""Steps that a verdict may lie before the first step that a fault changes."""


class Answer(Record):
    """One cause that was told."""

    fault: Fault
    severity: Severity
    step: int
    confidence: float
    what: str
    explains: tuple[Fault, ...]

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> "Answer":
        """Return a diagnosis without its evidence."""
        return cls(
            fault=diagnosis.fault,
            severity=diagnosis.finding.severity,
            step=diagnosis.step,
            confidence=diagnosis.confidence,
            what=diagnosis.finding.what,
            explains=tuple(finding.fault for finding in diagnosis.explains),
        )


class RunResult(Record):
    """One program, one network, one seed."""

    number: int
    name: str
    kind: Kind
    net: NetName
    seed: int
    right: tuple[Fault, ...] = Field(description="Any of these is right; none of a healthy run.")
    needs: Literal["error", "confirm"]
    starts_at: int = Field(description="First step that the fault changes.")
    within: int = Field(description="Steps from there to that of the verdict, at most.")
    steps: int = Field(description="That were made.")
    seconds: float = Field(description="Of the traced run [s].")
    answers: tuple[Answer, ...] = Field(description="Ranked.")
    notes: tuple[str, ...] = Field((), description="Of the tracer, such as what it could not see.")
    failed: str = Field("", description="Why there is no verdict; '' when there is one.")
    has_same_bits: bool | None = Field(
        None, description="Final weights traced and untraced agree; None when that was not tried."
    )
    alarms: dict[str, int] | None = Field(
        None, description="Baselines that raised an alarm, with the step; None when none watched."
    )

    @classmethod
    def of(
        cls,
        case: FaultCase | HealthyCase,
        *,
        has_fault: bool,
        net: NetName,
        seed: int,
        answers: tuple[Answer, ...] = (),
        steps: int = 0,
        seconds: float = 0.0,
        notes: tuple[str, ...] = (),
        failed: str = "",
        has_same_bits: bool | None = None,
        alarms: dict[str, int] | None = None,
    ) -> "RunResult":
        """Return the result of one run of a case."""
        is_fault = isinstance(case, FaultCase)
        kind: Kind = "fault" if has_fault else "twin" if is_fault else "healthy"
        expected = case if isinstance(case, FaultCase) and has_fault else None
        return cls(
            number=case.number,
            name=case.name,
            kind=kind,
            net=net,
            seed=seed,
            right=() if expected is None else tuple(sorted(expected.answers)),
            needs="error" if expected is None else expected.needs,
            starts_at=1 if expected is None else expected.starts_at,
            within=0 if expected is None else expected.within,
            steps=steps,
            seconds=seconds,
            answers=answers,
            notes=notes,
            failed=failed,
            has_same_bits=has_same_bits,
            alarms=alarms,
        )

    @property
    def place(self) -> int | None:
        """Place of the right answer among the ranked ones, from 1; None when none is right.

        It has to be an error, or, where only intent decides, at least need confirmation.
        """
        enough = ("error", "confirm") if self.needs == "confirm" else ("error",)
        for place, answer in enumerate(self.answers, start=1):
            if answer.fault in self.right and answer.severity in enough:
                return place
        return None

    @property
    def late(self) -> int | None:
        """Steps from the first one that the fault changes to that of the verdict."""
        return None if self.place is None else self.answers[self.place - 1].step - self.starts_at

    @property
    def is_in_time(self) -> bool:
        """Whether the right answer names a step that is near enough."""
        return self.late is not None and -_EARLY <= self.late <= self.within

    def told(self, severity: Severity) -> tuple[Answer, ...]:
        """Return the answers of one severity."""
        return tuple(answer for answer in self.answers if answer.severity == severity)
