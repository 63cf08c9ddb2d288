"""A rollout, its transitions, and the weights a server reads: values that name their subject."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.settings import Record
from sluice.rollout.evidence import Evidence, GuardName
from sluice.rollout.observations import Window
from sluice.rollout.settings import RolloutSettings, Step

Phase = Literal["rolling", "paused", "held", "promoted", "rolled_back"]
Outcome = Literal[
    "start",
    "hold",
    "advance",
    "inconclusive",
    "roll_back",
    "pause",
    "resume",
    "abort",
    "promote",
]


class Rollout(Record):
    """Where one challenger stands on its way into production.

    rolling: steps pass. paused: the share stays and the guards watch, no step ends. held: every
    step held, and the pointer is to be moved. promoted and rolled_back are final.
    """

    id: str = Field(description="Clients are told it; it places no user.")
    model: str
    version: int = Field(description="The challenger's number.")
    candidate: str = Field(description="The challenger's digest.")
    production: str = Field(description="Digest of what it would replace.")
    production_version: int
    pointer_revision: int = Field(description="Of the production pointer at the start.")
    settings: RolloutSettings
    phase: Phase
    step: int = Field(ge=0, description="Index of the step, from 0.")
    epoch: int = Field(ge=1, description="Of the weights; each change has a higher one.")
    revision: int = Field(ge=0, description="Transitions so far, looks that changed nothing aside.")
    started_at: AwareDatetime
    step_since: AwareDatetime = Field(description="When the step's time began to count.")
    patience_until: AwareDatetime = Field(description="When the step becomes inconclusive.")
    seen_at: AwareDatetime = Field(description="When it was last looked at.")
    evidence: Evidence

    @property
    def is_over(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.phase in ("promoted", "rolled_back")

    @property
    def at_last_step(self) -> bool:
        """Whether the step is the last one."""
        return self.step == len(self.settings.steps) - 1

    @property
    def share(self) -> float:
        """Of the users, those the challenger answers as one; 0 for ever once it is over."""
        return 0.0 if self.is_over else self.current_step.share

    @property
    def users_share(self) -> float:
        """Share of the users that the challenger's version answers, after a promotion all of them.

        ``share`` is what the router reads: a rollout that is over splits no traffic.
        """
        return 1.0 if self.phase == "promoted" else self.share

    @property
    def current_step(self) -> Step:
        """The step it stands at."""
        return self.settings.steps[self.step]

    @property
    def lease_until(self) -> datetime:
        """When servers go back to production by themselves."""
        return self.seen_at + timedelta(seconds=self.settings.lease_s)


class GuardReading(Record):
    """What one guard says about the challenger up to now."""

    guard: GuardName
    evidence: float = Field(description="E-value that the challenger is worse.")
    limit: float = Field(description="Above it the rollout goes back.")
    challenger: int = Field(description="Bad answers of the challenger at this step.")
    production: int = Field(
        description="Bad answers of production at this step, on servers that asked the challenger."
    )
    verdict: Literal["calm", "suspect", "breach"]


class PredictionDrift(Record):
    """How far apart both arms' predictions are on the same requests.

    Whoever measures it chooses the limit so that it holds for every look of the rollout.
    """

    distance: float = Field(description="In the unit of the limit; NaN when not measurable.")
    limit: float = Field(description="A distance above it rolls back.")
    rows: int = Field(ge=0, description="Requests that both arms answered.")


class Transition(Record):
    """One look at a rollout: what came of it, why, and on what evidence."""

    outcome: Outcome
    rollout: Rollout = Field(description="Afterwards.")
    at: AwareDatetime
    actor: str
    reason: str = Field(description="One sentence for people.")
    remedy: str = Field("", description="What a person can do; empty when nothing is to be done.")
    window: Window | None = None
    guards: tuple[GuardReading, ...] = ()
    quality: str | None = Field(None, description="Outcome of the gate on labelled pairs.")
    drift: PredictionDrift | None = None

    @property
    def summary(self) -> str:
        """The whole story of the transition in two sentences."""
        rollout = self.rollout
        now = f"{rollout.phase}, {100 * rollout.users_share:g} % of traffic"
        where = f"{rollout.model} version {rollout.version}, {now}"
        return f"{self.outcome} ({where}): {self.reason} {self.remedy}".rstrip()
