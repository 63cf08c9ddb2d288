"""What an alert may do to the model that is served: send everybody back (ROLL-2)."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from pydantic import Field

from sluice.base.settings import Record
from sluice.serving.limits import RateLimit

_PER_S = 1.0
_BURST = 10

Act = Literal["aborted", "rolled_back", "nothing"]
Action = Literal["rollback", "rollback_production"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A firing alert that asks for a rollback."""

    action: Action
    key: str
    """The same each time this alert is told, and no other's."""

    reason: str
    began: datetime


class Done(Record):
    """What came of a complaint."""

    act: Act = Field(
        description="aborted: the rollout under way; rolled_back: production, to its last good "
        "version."
    )
    what: str = Field(description="One sentence for people.")


class Rollback(Protocol):
    """All that the app can change in the registry."""

    def answer(self, complaint: Complaint) -> Done:
        """Do what a complaint asks for, at most once.

        Raises:
            SluiceError: The registry cannot be read or written.
        """
        ...


@dataclass(slots=True, eq=False)
class Hook:
    """How often a rollback may be asked for, and what does it; who may, the tokens say."""

    rollback: Rollback
    limit: RateLimit = field(default_factory=lambda: RateLimit(per_s=_PER_S, burst=_BURST))
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
