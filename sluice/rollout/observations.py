"""What was seen of both arms at one step of a rollout: counts, never payloads (ROLL-2)."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.base.settings import Record


class ArmCounts(Record):
    """Answers of one arm since the step began. Counts only grow; a restarted server adds up."""

    requests: int = Field(0, ge=0, description="Requests that were routed to the arm.")
    errors: int = Field(0, ge=0, description="Of them, the arm raised; fallback answers included.")
    timeouts: int = Field(0, ge=0, description="Of them, later than the challenger's deadline.")
    not_finite: int = Field(0, ge=0, description="Of them, the answer held NaN or infinity.")
    slower: int = Field(
        0, ge=0, description="Of them, slower than production's p95 at the start of the step."
    )

    @model_validator(mode="after")
    def _within_requests(self) -> Self:
        if max(self.errors, self.timeouts, self.not_finite, self.slower) > self.requests:
            raise ValueError(f"no count may exceed the {self.requests} requests, got {self!r}")
        return self


class Unshared(Record):
    """What of the counts is evidence: faults that the other arm does not share.

    A fault is left out when the other arm failed on the same request too (of production only those
    that are not about time), or when its client had
    its share of the faults already; so are requests of clients that send far more than others.
    """

    production: ArmCounts = ArmCounts()
    challenger: ArmCounts = ArmCounts()


class BothArms(Record):
    """What one server counted of both arms."""

    production: ArmCounts = ArmCounts()
    challenger: ArmCounts = ArmCounts()
    unshared: Unshared | None = Field(
        None, description="What of it is evidence; None from a server that compared no faults."
    )

    @property
    def evidence(self) -> Unshared:
        """What the guards judge."""
        if self.unshared is not None:
            return self.unshared
        return Unshared(production=self.production, challenger=self.challenger)


class Window(Record):
    """Both arms at one step of one rollout."""

    rollout: str = Field(description="Id of the rollout.")
    epoch: int = Field(ge=0, description="Epoch of the weights that were in force.")
    since: AwareDatetime = Field(description="When the step began.")
    until: AwareDatetime = Field(description="Now.")
    production: ArmCounts
    challenger: ArmCounts
    unshared: Unshared | None = Field(
        None, description="What of both is evidence, as of one server; None of several."
    )
    shadow_dropped: int = Field(
        0,
        ge=0,
        description="Copies, and failures to ask the other arm, that found no room.",
    )
    servers: dict[str, BothArms] = Field(
        default_factory=dict, description="The same by server; empty in what one server tells."
    )

    @property
    def served_share(self) -> float:
        """Share of the requests that were routed to the challenger [rate]; NaN without requests.

        Of a step whose other arm gets copies it is about one half.
        """
        total = self.challenger.requests + self.production.requests
        return self.challenger.requests / total if total else math.nan

    @property
    def by_server(self) -> Mapping[str, BothArms]:
        """What each server counted; one without a name when nobody told them apart."""
        return self.servers or {"": self.together}

    @property
    def together(self) -> BothArms:
        """The counts without regard to who counted them."""
        return BothArms(
            production=self.production, challenger=self.challenger, unshared=self.unshared
        )

    @property
    def compared(self) -> BothArms:
        """What is evidence of the servers that asked the challenger; of all while none did.

        Only they can show a difference: a server without the challenger, with its own load and its
        own users, would make production look better or worse than the arm beside the challenger.
        """
        told = self.by_server.values()
        both = [arms for arms in told if arms.challenger.requests] or told
        return BothArms(
            production=_sum(arms.evidence.production for arms in both),
            challenger=_sum(arms.evidence.challenger for arms in both),
        )


def merge(windows: Mapping[str, Window], *, rollout: str, epoch: int, since: datetime) -> Window:
    """Return what all servers together counted at one step; an empty window when none did.

    A server that ended keeps its counts, and one that started again counts as another, so the sums
    only grow.

    Args:
        windows: The last of each server, by its id.
        rollout: Id of the rollout.
        epoch: Of its weights; windows of another are passed over.
        since: When the step began, for a window that nobody counted.
    """
    found = {s: w for s, w in windows.items() if (w.rollout, w.epoch) == (rollout, epoch)}
    ours = list(found.values())
    return Window(
        rollout=rollout,
        epoch=epoch,
        since=min((w.since for w in ours), default=since),
        until=max((w.until for w in ours), default=since),
        production=_sum(w.production for w in ours),
        challenger=_sum(w.challenger for w in ours),
        shadow_dropped=sum(w.shadow_dropped for w in ours),
        servers={server: w.together for server, w in found.items()},
    )


def _sum(counts: Iterable[ArmCounts]) -> ArmCounts:
    all_counts = list(counts)
    names = ArmCounts.model_fields
    return ArmCounts(**{name: sum(getattr(c, name) for c in all_counts) for name in names})
