"""Counts of both arms in one step of a rollout; never request contents."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.base.settings import Record


class ArmCounts(Record):
    """Responses of one arm since the step began; counts only grow, also over restarts."""

    requests: int = Field(0, ge=0, description="Requests routed to the arm.")
    errors: int = Field(
        0,
        ge=0,
        description="Requests for which the arm raised, including those answered by the fallback.",
    )
    timeouts: int = Field(
        0, ge=0, description="Requests answered later than the challenger's deadline."
    )
    not_finite: int = Field(0, ge=0, description="Requests whose prediction holds NaN or infinity.")
    slower: int = Field(
        0,
        ge=0,
        description="Requests slower than production's p95 latency at the start of the step.",
    )

    @model_validator(mode="after")
    def _within_requests(self) -> Self:
        if max(self.errors, self.timeouts, self.not_finite, self.slower) > self.requests:
            raise ValueError(f"no count may exceed the {self.requests} requests, got {self!r}")
        return self


class EvidenceCounts(Record):
    """The part of the counts that is evidence: faults that only one arm has.

    A fault is left out when the other arm failed on the same request too (for production's
    faults: unless they are about time), or when its client already reached its limit of faults.
    Requests of clients that send far more than others are left out as well.
    """

    production: ArmCounts = ArmCounts()
    challenger: ArmCounts = ArmCounts()


class BothArms(Record):
    """Counts of both arms on one server."""

    production: ArmCounts = ArmCounts()
    challenger: ArmCounts = ArmCounts()
    evidence_counts: EvidenceCounts | None = Field(
        None, description="The part that is evidence; None from a server that compared no faults."
    )

    @property
    def evidence(self) -> EvidenceCounts:
        """The counts that the guards test."""
        if self.evidence_counts is not None:
            return self.evidence_counts
        return EvidenceCounts(production=self.production, challenger=self.challenger)


class TrafficCounts(Record):
    """Counts of both arms in one step of one rollout."""

    rollout: str = Field(description="Id of the rollout.")
    epoch: int = Field(ge=0, description="Epoch of the traffic split in force.")
    since: AwareDatetime = Field(description="When the step began.")
    until: AwareDatetime = Field(description="Time of the counts.")
    production: ArmCounts
    challenger: ArmCounts
    evidence_counts: EvidenceCounts | None = Field(
        None, description="The part that is evidence, from one server; None for several servers."
    )
    shadow_dropped: int = Field(
        0,
        ge=0,
        description="Shadow requests, and failures to compare with the other arm, dropped "
        "because the queue was full.",
    )
    servers: dict[str, BothArms] = Field(
        default_factory=dict,
        description="Counts by server; empty in the report of a single server.",
    )

    @property
    def served_share(self) -> float:
        """Share of the requests that were routed to the challenger [rate]; NaN without requests.

        About one half in a step with shadow traffic.
        """
        total = self.challenger.requests + self.production.requests
        return self.challenger.requests / total if total else math.nan

    @property
    def by_server(self) -> Mapping[str, BothArms]:
        """Counts of each server; one unnamed server when they were not counted separately."""
        return self.servers or {"": self.combined}

    @property
    def combined(self) -> BothArms:
        """The counts of all servers together."""
        return BothArms(
            production=self.production,
            challenger=self.challenger,
            evidence_counts=self.evidence_counts,
        )

    @property
    def comparable(self) -> BothArms:
        """Evidence from the servers that asked the challenger; from all while none did.

        Only those servers can show a difference. A server without the challenger has its own
        load and its own users, and would make production look better or worse than it is beside
        the challenger.
        """
        servers = self.by_server.values()
        both = [arms for arms in servers if arms.challenger.requests] or servers
        return BothArms(
            production=_sum(arms.evidence.production for arms in both),
            challenger=_sum(arms.evidence.challenger for arms in both),
        )


def merge_counts(
    windows: Mapping[str, TrafficCounts], *, rollout: str, epoch: int, since: datetime
) -> TrafficCounts:
    """Return the counts of all servers in one step; an empty window when none reported.

    A server that ended keeps its counts, and a restarted one counts as another server, so the
    sums only grow.

    Args:
        windows: Last counts of each server, by server id.
        rollout: Id of the rollout.
        epoch: Epoch of its traffic split; counts of other epochs are ignored.
        since: When the step began, for the case that no server reported.
    """
    found = {s: w for s, w in windows.items() if (w.rollout, w.epoch) == (rollout, epoch)}
    ours = list(found.values())
    return TrafficCounts(
        rollout=rollout,
        epoch=epoch,
        since=min((w.since for w in ours), default=since),
        until=max((w.until for w in ours), default=since),
        production=_sum(w.production for w in ours),
        challenger=_sum(w.challenger for w in ours),
        shadow_dropped=sum(w.shadow_dropped for w in ours),
        servers={server: w.combined for server, w in found.items()},
    )


def _sum(counts: Iterable[ArmCounts]) -> ArmCounts:
    all_counts = list(counts)
    names = ArmCounts.model_fields
    return ArmCounts(**{name: sum(getattr(c, name) for c in all_counts) for name in names})
