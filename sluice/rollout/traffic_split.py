"""The traffic split between production and a challenger, which servers read and apply."""

from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.base.settings import Record
from sluice.rollout.state import Rollout


class TrafficSplit(Record):
    """Which version answers which users of one model.

    A server applies the split with the highest epoch that it has read. Once ``expires_at`` has
    passed, production answers all users.
    """

    epoch: int = Field(
        ge=0,
        description="Number of times that this model's split has changed, including moves of "
        "production. This number never decreases.",
    )
    production: str = Field(description="Candidate digest of the production version.")
    rollout: str | None = Field(
        None, description="Id of the rollout, which clients get with each response."
    )
    secret: str = Field(
        "",
        repr=False,
        description="Secret of the model from the registry, with which users are assigned to arms "
        "and client names in samples are hashed. The secret must not occur in a response, report, "
        "log or page.",
    )
    challenger: str | None = Field(None, description="Candidate digest of the challenger.")
    share: float = Field(
        0.0, ge=0, le=1, description="Share of the users that the challenger answers."
    )
    shadow: bool = Field(
        False,
        description="Whether the arm that answers no user gets shadow requests. This arm is "
        "production at a share of 1, and otherwise the challenger.",
    )
    expires_at: AwareDatetime | None = Field(
        None,
        description="End of the lease: from this time on production serves alone, unless the lease "
        "is renewed.",
    )

    @model_validator(mode="after")
    def _require_rollout_with_challenger(self) -> Self:
        if (self.challenger is None) != (self.rollout is None):
            raise ValueError(f"challenger and rollout must be set together, got {self!r}")
        if self.challenger is None and (self.share > 0 or self.shadow):
            raise ValueError(f"share and shadow need a challenger, got {self!r}")
        return self

    @property
    def salt(self) -> str:
        """Salt of the user assignment. It cannot be computed from the rollout id alone."""
        return f"{self.secret}:{self.rollout}"

    def without_challenger(self) -> "TrafficSplit":
        """Return the split without the challenger."""
        return self.model_copy(
            update={"rollout": None, "challenger": None, "share": 0.0, "shadow": False}
        )

    def is_expired(self, now: datetime) -> bool:
        """Return whether the lease has ended at ``now``."""
        return self.expires_at is not None and not now < self.expires_at

    def is_renewal_of(self, other: "TrafficSplit") -> bool:
        """Return whether this is the same split as ``other`` with a later end of the lease."""
        if self.expires_at is None or other.expires_at is None:
            return False
        is_same = self.model_copy(update={"expires_at": other.expires_at}) == other
        return is_same and self.expires_at > other.expires_at


def split_in_force(
    rollout: Rollout | None, *, production: str, pointer_revision: int, secret: str
) -> TrafficSplit:
    """Return the split in force, from the model's last rollout and its production pointer.

    The epoch is the number of moves of the pointer plus the number of changes by rollouts. Neither
    number decreases. So a manual promotion during a rollout also increases the epoch. The promotion
    ends the traffic of the challenger.

    Args:
        rollout: Last rollout of the model; None without one.
        production: Candidate digest of the production version.
        pointer_revision: Number of moves of the pointer.
        secret: Secret of the model.
    """
    if rollout is None:
        return TrafficSplit(epoch=pointer_revision, production=production, secret=secret)
    epoch = pointer_revision + rollout.epoch - rollout.pointer_revision
    if rollout.is_over or pointer_revision != rollout.pointer_revision:
        return TrafficSplit(epoch=epoch, production=production, secret=secret)
    return TrafficSplit(
        epoch=epoch,
        production=production,
        secret=secret,
        rollout=rollout.id,
        challenger=rollout.candidate,
        share=rollout.share,
        shadow=rollout.current_step.is_shadowed,
        expires_at=rollout.lease_until,
    )
