"""The split of the traffic, as the ledger says it and as a server follows it (ROLL-1)."""

from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.base.settings import Record
from sluice.rollout.state import Rollout


class Weights(Record):
    """Who answers whom, of one model: all that a server needs to know.

    A server keeps the highest epoch it has seen, and answers with production alone once
    ``expires_at`` has passed.
    """

    epoch: int = Field(
        ge=0,
        description="Counts every change for this model, moves of production included; never "
        "falls.",
    )
    production: str = Field(description="Candidate digest.")
    rollout: str | None = Field(None, description="Id of the rollout; clients are told it.")
    secret: str = Field(
        "",
        repr=False,
        description="The model's own, kept in the registry: salt of the split and of the names "
        "that samples give to clients. In no answer, report, log or page.",
    )
    challenger: str | None = Field(None, description="Candidate digest.")
    share: float = Field(0.0, ge=0, le=1, description="Of users that the challenger answers.")
    shadow: bool = Field(
        False,
        description="The arm that answers nobody gets copies: production at a share of 1, else the "
        "challenger.",
    )
    expires_at: AwareDatetime | None = Field(
        None, description="From then on production serves alone, unless the lease is renewed."
    )

    @model_validator(mode="after")
    def _a_challenger_belongs_to_a_rollout(self) -> Self:
        if (self.challenger is None) != (self.rollout is None):
            raise ValueError(f"challenger and rollout come together, got {self!r}")
        if self.challenger is None and (self.share > 0 or self.shadow):
            raise ValueError(f"share and shadow need a challenger, got {self!r}")
        return self

    @property
    def salt(self) -> str:
        """What places users; whoever knows the rollout alone cannot compute it."""
        return f"{self.secret}:{self.rollout}"

    def production_only(self) -> "Weights":
        """Return the weights without the challenger."""
        return self.model_copy(
            update={"rollout": None, "challenger": None, "share": 0.0, "shadow": False}
        )

    def expired(self, now: datetime) -> bool:
        """Say whether the lease is over at a moment."""
        return self.expires_at is not None and not now < self.expires_at

    def renews(self, other: "Weights") -> bool:
        """Say whether these are the same weights with a later end."""
        if self.expires_at is None or other.expires_at is None:
            return False
        same = self.model_copy(update={"expires_at": other.expires_at}) == other
        return same and self.expires_at > other.expires_at


def weights_of(
    rollout: Rollout | None, *, production: str, pointer_revision: int, secret: str
) -> Weights:
    """Return the weights in force, of the model's last rollout and its production pointer.

    The epoch adds the pointer's moves and the changes by rollouts. Neither falls, so a promotion
    by hand in the middle of a rollout also has a higher epoch; it ends the challenger's share.

    Args:
        rollout: The model's last one; None when it never had one.
        production: Digest of the candidate that the pointer names.
        pointer_revision: How often the pointer moved.
        secret: Of the model.
    """
    if rollout is None:
        return Weights(epoch=pointer_revision, production=production, secret=secret)
    epoch = pointer_revision + rollout.epoch - rollout.pointer_revision
    if rollout.is_over or pointer_revision != rollout.pointer_revision:
        return Weights(epoch=epoch, production=production, secret=secret)
    return Weights(
        epoch=epoch,
        production=production,
        secret=secret,
        rollout=rollout.id,
        challenger=rollout.candidate,
        share=rollout.share,
        shadow=rollout.current_step.shadow,
        expires_at=rollout.lease_until,
    )
