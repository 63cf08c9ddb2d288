"""Result of a rehearsal, compared with the expected result."""

from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.rehearsal.faults import InjectedFault
from sluice.rehearsal.settings import MAX_SECONDS, RATE_PER_S
from sluice.rollout.evidence import GuardName
from sluice.rollout.state import Transition

RehearsalEnd = Literal["promoted", "rolled_back", "paused", "timed_out"]

EXPECTED_END: dict[InjectedFault, RehearsalEnd] = {
    "none": "promoted",
    "errors": "rolled_back",
    "latency": "rolled_back",
    "nan": "rolled_back",
    "drift": "rolled_back",
    "quality": "rolled_back",
    "crash": "rolled_back",
    "no_traffic": "paused",
}
_FAULT_MARKERS: dict[InjectedFault, tuple[str, ...]] = {
    "none": ("",),
    "errors": ("errors in",),
    "latency": ("above the latency limit", "after the deadline"),
    "nan": ("NaN or infinity",),
    "drift": ("differ too much from production's",),
    "quality": ("Labelled rows show that the challenger is worse",),
    "crash": ("SIGSEGV",),
    "no_traffic": ("0 of",),
}
"""Texts of which at least one must occur in the reason or in the server's problems, by fault."""

_END_TEXTS: dict[RehearsalEnd, str] = {
    "promoted": "promoted",
    "rolled_back": "rolled back",
    "paused": "paused as inconclusive",
    "timed_out": "did not end in time",
}


class RehearsalSample(Record):
    """Counts and evidence at one check of the rollout."""

    at_s: float = Field(description="Time since the rollout started [s].")
    share: float
    step: int
    challenger: int = Field(description="Number of requests of the challenger in this step so far.")
    production: int = Field(description="Number of requests of production in this step so far.")
    evidence: dict[GuardName, float]
    distance: float | None = Field(
        description="Mean difference of both arms' predictions, as a multiple of their difference "
        "on held-out rows; None while unknown."
    )


class Rehearsal(Record):
    """Result of a finished rehearsal."""

    model: str
    version: int = Field(
        description="Version in production in the real registry, which does not change."
    )
    fault: InjectedFault
    seed: int
    seconds: float = Field(description="Planned duration of a rollout without a fault [s].")
    started_at: AwareDatetime
    held_out_rows: int
    ended: RehearsalEnd
    reason: str = Field(description="Reason of the last transition.")
    duration_s: float = Field(
        description="Time from the rollout's start to its end, or to the rehearsal's time limit "
        "[s]."
    )
    sync_delay_s: float | None = Field(
        description="Time from the rollout's end until the server applied the final traffic split "
        "[s]; None if it did not."
    )
    sent: int = Field(description="Number of sent requests.")
    answered: int
    failed: int
    failure: str = Field(description="Error of the first failed request; empty without one.")
    problems: tuple[str, ...] = Field(description="Problems that the server reported.")
    limits: dict[GuardName, float] = Field(description="Minimum evidence for a rollback, by guard.")
    drift_limit: float
    transitions: tuple[Transition, ...]
    samples: tuple[RehearsalSample, ...]

    @property
    def expected(self) -> RehearsalEnd:
        """End of the rollout that is expected with the injected fault."""
        return EXPECTED_END[self.fault]

    @property
    def deviations(self) -> tuple[str, ...]:
        """Deviations from the expected result; empty when it matches."""
        deviations = []
        if self.ended != self.expected:
            deviations.append(
                f"Expected: {_END_TEXTS[self.expected]}; observed: {_END_TEXTS[self.ended]}."
            )
        elif not self._is_fault_named:
            deviations.append(
                "Neither the reason nor the server's problems name the planted fault."
            )
        if self.sync_delay_s is None:
            deviations.append("The server did not apply the final traffic split.")
        if self.failed:
            deviations.append(
                f"{pluralize(self.failed, 'request')} failed, the first with: {self.failure}"
            )
        if num_unanswered := self.sent - self.answered - self.failed:
            deviations.append(f"{pluralize(num_unanswered, 'request')} got no response.")
        return tuple(deviations)

    @property
    def is_as_expected(self) -> bool:
        """Whether there are no deviations from the expected result."""
        return not self.deviations

    @property
    def remedy(self) -> str:
        """What to do after an unexpected result; empty after the expected result.

        The remedy of the last transition is not used. It is meant for a rollout to real users, such
        as 'Resume or abort the rollout', but the sandbox is removed at the end.
        """
        if self.is_as_expected:
            return ""
        command = f"sluice rollout rehearse {self.model} --fault {self.fault}"
        longer_command = f"{command} --seconds {min(2 * self.seconds, MAX_SECONDS):g}"
        is_unexpected_end = self.ended != self.expected
        is_too_slow = is_unexpected_end and self.ended in ("paused", "timed_out")
        if is_too_slow or self.sync_delay_s is None:
            return (
                f"{self._rate_note}Rehearse again when the machine is less busy, with more time: "
                f"{longer_command}"
            )
        if self.failed:
            return (
                "Production must answer when the challenger cannot. Correct the error of the first "
                f"failed request, and rehearse again: {command}"
            )
        if is_unexpected_end and self.ended == "promoted":
            return (
                "The guards did not detect the fault. Rehearse again with more time. If the "
                "rollout is promoted again, compare rollout.alpha and rollout.odds_ratios with "
                f"their defaults. Run: {longer_command}"
            )
        if is_unexpected_end or not self._is_fault_named:
            cause = (
                "No fault was planted, but something"
                if self.fault == "none"
                else "Something other than the planted fault"
            )
            return (
                f"{cause} ended the rollout: see the reason and the server's problems. Correct "
                "the problem, or wait until the machine is less busy. Then rehearse again: "
                f"{command}"
            )
        return (
            "The rollout ended as expected, but some requests got neither a response nor an error. "
            "If the load generator failed, its traceback is in the terminal. Rehearse again when "
            f"the machine is less busy: {command}"
        )

    @property
    def _is_fault_named(self) -> bool:
        """Whether the reason or the server's problems name the planted fault."""
        texts = " ".join((self.reason, *self.problems))
        return any(marker in texts for marker in _FAULT_MARKERS[self.fault])

    @property
    def _rate_note(self) -> str:
        """Comparison of the measured rate of requests with the planned rate, for ``remedy``."""
        if self.fault == "no_traffic":
            return ""
        rate = self.sent / self.duration_s if self.duration_s else 0.0
        return (
            f"The server got {pluralize(self.sent, 'request')} in {self.duration_s:.0f} s, which "
            f"is {rate:.1f} per second; {RATE_PER_S:g} per second are planned. A busy machine "
            "answers fewer requests. "
        )

    @property
    def summary(self) -> str:
        """Summary in one line."""
        sync_text = (
            ""
            if self.sync_delay_s is None
            else f", applied by the server {self.sync_delay_s:.1f} s later"
        )
        return (
            f"{self.fault}: {_END_TEXTS[self.ended]} after {self.duration_s:.1f} s{sync_text}; "
            f"{pluralize(self.sent, 'request')}, {self.failed:,} failed"
        )
