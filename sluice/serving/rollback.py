"""Interface between the webhook and the registry: rollbacks that an alert can request."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from pydantic import Field

from sluice.base.settings import Record
from sluice.serving.rate_limit import RateLimit

_MAX_REQUESTS_PER_S = 1.0
"""Maximum sustained rate of webhook requests [1/s]."""
_MAX_BURST_REQUESTS = 10
"""Maximum number of webhook requests that may arrive at once."""

RollbackEffect = Literal["aborted", "rolled_back", "nothing"]
RollbackAction = Literal["rollback", "rollback_production"]
"""Action that an alert requests. Both actions abort the rollout in progress if the alert began to
fire after the rollout started. Otherwise, rollback does nothing, and rollback_production moves
production back to the previous good version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """A firing alert that requests a rollback."""

    action: RollbackAction
    key: str
    """Id of one firing of the alert, the same in all notifications of this firing."""

    reason: str
    began_at: datetime
    """Time at which the alert began to fire."""


class RollbackResult(Record):
    """Effect of a rollback request."""

    act: RollbackEffect = Field(
        description="Effect of the request. aborted: the rollout in progress was aborted; "
        "rolled_back: production was moved back to its last good version; nothing: no effect."
    )
    what: str = Field(description="Effect in one sentence, or the reason why nothing was changed.")


class RollbackHandler(Protocol):
    """Executes rollbacks: the only changes that the app can make in the registry."""

    def handle(self, request: RollbackRequest) -> RollbackResult:
        """Execute a request, at most once.

        Raises:
            SluiceError: The registry cannot be read or written.
        """
        ...


@dataclass(slots=True, eq=False)
class RollbackWebhook:
    """Handler and rate limit of the webhook; tokens decide who may use it."""

    rollback: RollbackHandler
    limit: RateLimit = field(
        default_factory=lambda: RateLimit(per_s=_MAX_REQUESTS_PER_S, burst=_MAX_BURST_REQUESTS)
    )
    handling_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an alert is handled, so that rollbacks do not run concurrently."""
