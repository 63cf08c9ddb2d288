"""How the traffic is split, and which news about it may be believed.

The split is written elsewhere and read again and again. A reader may be told old things, or nothing
at all: it believes an epoch that is newer than its own, and otherwise stays with what it has.
"""

import threading
from datetime import datetime
from typing import Protocol, Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.settings import Record


class Weights(Record):
    """Who serves whom."""

    epoch: int = Field(
        ge=0,
        description="Counts every change for this model, moves of production included; never "
        "falls.",
    )
    production: str = Field(description="Candidate digest.")
    rollout: str | None = Field(None, description="Id of the rollout; salt of the split.")
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


class WeightsSource(Protocol):
    """Where the weights are written; called from a thread, may block or raise ``SluiceError``."""

    def read(self) -> Weights:
        """Return the weights as they are now."""


def is_news(arrived: Weights, known: Weights | None) -> bool:
    """Say whether weights that arrived replace the known ones.

    An older epoch never does. Of the same epoch only a renewed lease does: two different splits
    under one number are a mistake of the writer, and the first one stands.
    """
    return known is None or arrived.epoch > known.epoch or arrived.renews(known)


class MemoryWeights:
    """Weights of one process: for rehearsals and tests."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._lock = threading.Lock()

    def read(self) -> Weights:
        """Return the weights set last."""
        with self._lock:
            return self._weights

    def set(self, weights: Weights) -> None:
        """Replace the weights."""
        with self._lock:
            self._weights = weights
