"""Counts of both arms in one step of a rollout; they contain no request data."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.base.settings import Record


class ArmCounts(Record):
    """Counts of one arm's responses since the step began."""

    requests: int = Field(0, ge=0, description="Number of requests routed to the arm.")
    errors: int = Field(
        0,
        ge=0,
        description="Number of requests for which the arm raised an error, including requests "
        "that the other arm answered in its place.",
    )
    timeouts: int = Field(
        0,
        ge=0,
        description="Number of requests that the arm did not answer within "
        "challenger_deadline_s, or within shadow_deadline_s for a shadow request.",
    )
    not_finite: int = Field(
        0, ge=0, description="Number of requests whose prediction contains NaN or infinity."
    )
    slower: int = Field(
        0,
        ge=0,
        description="Number of requests that took longer than production's p95 latency plus the "
        "overhead of a separate process.",
    )

    @model_validator(mode="after")
    def _require_counts_within_requests(self) -> Self:
        if max(self.errors, self.timeouts, self.not_finite, self.slower) > self.requests:
            raise ValueError(f"no count may exceed the {self.requests} requests, got {self!r}")
        return self


class EvidenceCounts(Record):
    """The part of the counts that is evidence: compared requests, and faults of only one arm.

    A fault is not evidence if the other arm failed on the same request as well, or if the client
    has reached its limit of faults. Timeouts and slow responses of production are evidence even if
    the challenger failed as well. Requests of clients that send far more than others are excluded.
    """

    production: ArmCounts = ArmCounts()
    challenger: ArmCounts = ArmCounts()


class BothArms(Record):
    """Counts of both arms, of one server or the sum over several servers."""

    production: ArmCounts = ArmCounts()
    challenger: ArmCounts = ArmCounts()
    evidence_counts: EvidenceCounts | None = Field(
        None,
        description="The part of the counts that is evidence; None if the server does not compare "
        "faults.",
    )

    @property
    def evidence(self) -> EvidenceCounts:
        """Counts on which the guards are based."""
        if self.evidence_counts is not None:
            return self.evidence_counts
        return EvidenceCounts(production=self.production, challenger=self.challenger)


class TrafficCounts(Record):
    """Counts of both arms in one step of one rollout."""

    rollout: str = Field(description="Id of the rollout.")
    epoch: int = Field(ge=0, description="Epoch of the traffic split in force.")
    since: AwareDatetime = Field(description="Time at which the step began.")
    until: AwareDatetime = Field(description="Time up to which requests were counted.")
    production: ArmCounts
    challenger: ArmCounts
    evidence_counts: EvidenceCounts | None = Field(
        None,
        description="The part of the counts that is evidence, for one server; None for several "
        "servers.",
    )
    shadow_dropped: int = Field(
        0,
        ge=0,
        description="Number of dropped shadow requests, and of failed requests that were not "
        "repeated on the other arm, because the queue was full or user requests had priority.",
    )
    servers: dict[str, BothArms] = Field(
        default_factory=dict,
        description="Counts by server; empty in the report of a single server.",
    )

    @property
    def served_share(self) -> float:
        """Share of the requests that were routed to the challenger; NaN without requests.

        Shadow requests count: in a step with shadow requests, the share is about one half.
        """
        num_requests = self.challenger.requests + self.production.requests
        return self.challenger.requests / num_requests if num_requests else math.nan

    @property
    def arms_by_server(self) -> Mapping[str, BothArms]:
        """Counts of each server. If servers were not counted separately, the name is ""."""
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
    def comparable_counts(self) -> BothArms:
        """Evidence counts of the servers on which the challenger got requests.

        Servers without the challenger have another load and other users, so their production arms
        are not comparable with the challenger. If the challenger got no request on any server, the
        counts of all servers are returned.
        """
        servers = self.arms_by_server.values()
        compared_servers = [arms for arms in servers if arms.challenger.requests] or servers
        return BothArms(
            production=_sum(arms.evidence.production for arms in compared_servers),
            challenger=_sum(arms.evidence.challenger for arms in compared_servers),
        )


def merge_counts(
    counts_by_server: Mapping[str, TrafficCounts], *, rollout: str, epoch: int, since: datetime
) -> TrafficCounts:
    """Return the counts of all servers in one step; zero counts if no server has reported.

    The counts of a server that has ended are kept, and a restarted server counts as another server,
    so the sums never decrease.

    Args:
        counts_by_server: Last counts of each server, by server id.
        rollout: Id of the rollout.
        epoch: Epoch of the traffic split; counts of other epochs are ignored.
        since: Start of the step, used if no server has reported.
    """
    step_counts_by_server = {
        server: counts
        for server, counts in counts_by_server.items()
        if (counts.rollout, counts.epoch) == (rollout, epoch)
    }
    all_counts = list(step_counts_by_server.values())
    return TrafficCounts(
        rollout=rollout,
        epoch=epoch,
        since=min((counts.since for counts in all_counts), default=since),
        until=max((counts.until for counts in all_counts), default=since),
        production=_sum(counts.production for counts in all_counts),
        challenger=_sum(counts.challenger for counts in all_counts),
        shadow_dropped=sum(counts.shadow_dropped for counts in all_counts),
        servers={server: counts.combined for server, counts in step_counts_by_server.items()},
    )


def _sum(counts: Iterable[ArmCounts]) -> ArmCounts:
    all_counts = list(counts)
    field_names = ArmCounts.model_fields
    return ArmCounts(**{name: sum(getattr(c, name) for c in all_counts) for name in field_names})
