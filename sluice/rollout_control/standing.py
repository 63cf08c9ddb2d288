"""Where a rollout stands, read whole for people: the ledger's record and what servers reported."""

from datetime import datetime

from pydantic import AwareDatetime, Field

from sluice.base.errors import UnknownVersion
from sluice.base.settings import Record
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import Window
from sluice.rollout.samples import ServerState
from sluice.rollout.state import GuardReading, Rollout, Transition
from sluice.rollout_control.drive import live_servers


class Standing(Record):
    """One model's last rollout at one moment."""

    at: AwareDatetime
    rollout: Rollout
    production: int | None = Field(description="Number of the version in production.")
    window: Window = Field(description="Counts of the step it stands at, of all servers.")
    guards: tuple[GuardReading, ...] = Field(description="As of the last look.")
    quality: str | None = Field(description="Newest verdict on labelled pairs; None before one.")
    servers: tuple[ServerState, ...] = Field(description="Those heard of a moment ago.")
    transitions: tuple[Transition, ...] = Field(description="Oldest first; a hold leaves none.")

    @property
    def lease_left_s(self) -> float:
        """Seconds until servers go back by themselves; 0 when they have, or it is over."""
        if self.rollout.is_over:
            return 0.0
        return max(0.0, (self.rollout.lease_until - self.at).total_seconds())


def read_standing(ledger: RolloutLedger, model: str, *, now: datetime) -> Standing:
    """Return where the model's last rollout stands; nothing is written.

    Args:
        ledger: Holds it.
        model: Its name.
        now: The present moment.

    Raises:
        UnknownVersion: The model never had a rollout.
        StorageError: The ledger cannot be read.
    """
    rollout = ledger.rollout(model)
    if rollout is None:
        raise UnknownVersion(
            f"{model} never had a rollout.",
            fix="Set 'rollout' in the pipeline's file and run it, or rehearse one: "
            f"sluice rollout rehearse {model}",
        )
    verdicts = ledger.observations.quality(rollout.id)
    return Standing(
        at=now,
        rollout=rollout,
        production=ledger.production_number(model),
        window=ledger.observations.window(rollout),
        guards=read_guards(rollout.evidence, rollout.settings),
        quality=verdicts[-1].outcome if verdicts else None,
        servers=tuple(live_servers(ledger, model, now=now)),
        transitions=tuple(ledger.rollout_transitions(rollout.id)),
    )
