"""Status of a rollout for display, from the ledger and the reports of servers."""

from datetime import datetime

from pydantic import AwareDatetime, Field

from sluice.base.errors import UnknownVersion
from sluice.base.settings import Record
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.samples import ServerState
from sluice.rollout.state import GuardReading, Rollout, Transition
from sluice.rollout_control.controller import live_servers


class RolloutStatus(Record):
    """Status of a model's last rollout at one moment."""

    at: AwareDatetime
    rollout: Rollout
    production: int | None = Field(description="Number of the version in production.")
    window: TrafficCounts = Field(description="Counts of the current step over all servers.")
    guards: tuple[GuardReading, ...] = Field(description="Readings of the last check.")
    quality: str | None = Field(
        description="Newest verdict of the promotion gate on labelled requests that both arms "
        "answered; None before the first verdict."
    )
    servers: tuple[ServerState, ...] = Field(description="Servers that reported recently.")
    transitions: tuple[Transition, ...] = Field(
        description="Transitions, oldest first, without checks that had the outcome wait."
    )

    @property
    def lease_left_s(self) -> float:
        """Time until servers return to production unless the lease is renewed [s].

        The time is 0 if the lease or the rollout has ended.
        """
        if self.rollout.is_over:
            return 0.0
        return max(0.0, (self.rollout.lease_until - self.at).total_seconds())


def read_status(ledger: RolloutLedger, model: str, *, now: datetime) -> RolloutStatus:
    """Return the status of the model's last rollout, without writing anything.

    Args:
        ledger: Ledger with the rollout.
        model: Name of the model.
        now: Current time.

    Raises:
        UnknownVersion: The model has had no rollout.
        StorageError: The ledger cannot be read.
    """
    rollout = ledger.rollout(model)
    if rollout is None:
        raise UnknownVersion(
            f"{model} has had no rollout.",
            fix="Set 'rollout' in the pipeline file and run the pipeline, or rehearse one: "
            f"sluice rollout rehearse {model}",
        )
    verdicts = ledger.observations.quality(rollout.id)
    return RolloutStatus(
        at=now,
        rollout=rollout,
        production=ledger.production_number(model),
        window=ledger.observations.traffic_counts(rollout),
        guards=read_guards(rollout.evidence, rollout.settings),
        quality=verdicts[-1].outcome if verdicts else None,
        servers=tuple(live_servers(ledger, model, now=now)),
        transitions=tuple(ledger.rollout_transitions(rollout.id)),
    )
