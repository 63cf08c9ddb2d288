"""A rollout, its transitions and the readings of its guards."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.settings import Record
from sluice.rollout.evidence import GuardName, HarmEvidence
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.settings import RolloutSettings, RolloutStep

RolloutPhase = Literal["rolling", "paused", "awaiting_promotion", "promoted", "rolled_back"]
TransitionOutcome = Literal[
    "start",
    "wait",
    "advance",
    "inconclusive",
    "roll_back",
    "pause",
    "resume",
    "abort",
    "promote",
]


class Rollout(Record):
    """State of the rollout of one challenger.

    Phases: in phase rolling, steps end when their conditions are satisfied. In phase paused, the
    share does not change and the guards are active, but no step ends. In phase awaiting_promotion,
    every step has passed, and the production pointer can be moved. The phases promoted and
    rolled_back are final.
    """

    id: str = Field(
        description="Id of the rollout. Clients get the id with each response; the arm of a user "
        "cannot be computed from the id alone."
    )
    model: str
    version: int = Field(description="Version number of the challenger.")
    candidate: str = Field(description="Digest of the challenger.")
    production: str = Field(description="Digest of the version that the challenger would replace.")
    production_version: int
    pointer_revision: int = Field(description="Revision of the production pointer at the start.")
    settings: RolloutSettings
    phase: RolloutPhase
    step: int = Field(ge=0, description="Index of the step, from 0.")
    epoch: int = Field(ge=1, description="Epoch of the traffic split; each change increases it.")
    revision: int = Field(
        ge=0, description="Number of transitions after the start, without checks that only waited."
    )
    started_at: AwareDatetime
    step_since: AwareDatetime = Field(description="Time at which the step began.")
    step_times_out_at: AwareDatetime = Field(
        description="Time at which the step becomes inconclusive."
    )
    checked_at: AwareDatetime = Field(description="Time of the last check.")
    evidence: HarmEvidence

    @property
    def is_over(self) -> bool:
        """Whether the phase is final."""
        return self.phase in ("promoted", "rolled_back")

    @property
    def is_at_last_step(self) -> bool:
        """Whether the current step is the last one."""
        return self.step == len(self.settings.steps) - 1

    @property
    def share(self) -> float:
        """Share of the users that the challenger answers; always 0 once the rollout is over."""
        return 0.0 if self.is_over else self.current_step.share

    @property
    def users_share(self) -> float:
        """Share of the users that the challenger's version answers; 1 after a promotion.

        The router reads ``share`` instead: a rollout that is over splits no traffic.
        """
        return 1.0 if self.phase == "promoted" else self.share

    @property
    def current_step(self) -> RolloutStep:
        """The current step."""
        return self.settings.steps[self.step]

    @property
    def lease_until(self) -> datetime:
        """Time at which servers return to production, unless the rollout is checked earlier."""
        return self.checked_at + timedelta(seconds=self.settings.lease_s)


class GuardReading(Record):
    """Current reading of one guard."""

    guard: GuardName
    evidence: float = Field(
        description="E-value against the hypothesis that the challenger is not worse."
    )
    limit: float = Field(description="Minimum evidence for a rollback.")
    challenger: int = Field(
        description="Number of the challenger's faults in this step that count as evidence."
    )
    production: int = Field(
        description="Number of production's faults in this step that count as evidence, on servers "
        "where the challenger got requests."
    )
    verdict: Literal["ok", "warn", "breach"]


class PredictionDrift(Record):
    """Distance between both arms' predictions on the same requests.

    The caller must choose a limit that is valid for all checks of the rollout together.
    """

    distance: float = Field(
        description="Mean difference of both arms' predictions, as a multiple of their difference "
        "on held-out rows; NaN if unknown."
    )
    limit: float = Field(description="Maximum of ``distance``; a larger distance rolls back.")
    rows: int = Field(ge=0, description="Number of requests that both arms answered.")


class Transition(Record):
    """Result of a check or of a person's request: outcome, reason and evidence."""

    outcome: TransitionOutcome
    rollout: Rollout = Field(description="State after the transition.")
    at: AwareDatetime
    actor: str
    reason: str = Field(description="Reason of the transition, in sentences.")
    remedy: str = Field("", description="Action for a person; empty if none is needed.")
    window: TrafficCounts | None = Field(
        None, description="Counts of both arms in the step so far; None if no counts were used."
    )
    guards: tuple[GuardReading, ...] = ()
    quality: str | None = Field(
        None,
        description="Newest verdict of the promotion gate on labelled pairs; None without one.",
    )
    drift: PredictionDrift | None = Field(
        None,
        description="Distance between the predictions of both arms; None if it was not measured.",
    )

    @property
    def summary(self) -> str:
        """Outcome, state, reason and remedy as one line of text."""
        rollout = self.rollout
        state = f"{rollout.phase}, {100 * rollout.users_share:g} % of traffic"
        subject = f"{rollout.model} version {rollout.version}, {state}"
        return f"{self.outcome} ({subject}): {self.reason} {self.remedy}".rstrip()
