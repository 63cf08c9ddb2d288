"""What was seen of both arms at one step of a rollout: counts, never payloads (ROLL-2)."""

from collections.abc import Iterable
from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.settings import Record


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


class Window(Record):
    """Both arms at one step of one rollout."""

    rollout: str = Field(description="Id of the rollout.")
    epoch: int = Field(ge=0, description="Epoch of the weights that were in force.")
    since: AwareDatetime = Field(description="When the step began.")
    until: AwareDatetime = Field(description="Now.")
    production: ArmCounts
    challenger: ArmCounts
    shadow_dropped: int = Field(0, ge=0, description="Shadow requests the queue had no room for.")


def merge(windows: Iterable[Window], *, rollout: str, epoch: int, since: datetime) -> Window:
    """Return what all servers together counted at one step; an empty window when none did.

    A server that ended keeps its counts, and one that started again counts as another, so the sums
    only grow.

    Args:
        windows: The last of each server.
        rollout: Id of the rollout.
        epoch: Of its weights; windows of another are passed over.
        since: When the step began, for a window that nobody counted.
    """
    ours = [w for w in windows if (w.rollout, w.epoch) == (rollout, epoch)]
    return Window(
        rollout=rollout,
        epoch=epoch,
        since=min((w.since for w in ours), default=since),
        until=max((w.until for w in ours), default=since),
        production=_sum(w.production for w in ours),
        challenger=_sum(w.challenger for w in ours),
        shadow_dropped=sum(w.shadow_dropped for w in ours),
    )


def _sum(counts: Iterable[ArmCounts]) -> ArmCounts:
    all_counts = list(counts)
    names = ArmCounts.model_fields
    return ArmCounts(**{name: sum(getattr(c, name) for c in all_counts) for name in names})
