"""What one app answers from, and how many it lets in."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from sluice.serving.following import Follower
from sluice.serving.limits import RateLimit, Token
from sluice.serving.metrics import Metrics
from sluice.serving.refusals import Overloaded
from sluice.serving.reporting import Reporter
from sluice.serving.rollback import Hook
from sluice.serving.router import Router
from sluice.serving.settings import ServingSettings

_HANGS_AFTER = 10
"""Deadlines after which a batch that is still under way is taken to hang."""


@dataclass(slots=True, eq=False)
class Serving:
    """Everything that one app answers from; touched by its event loop only."""

    model: str
    router: Router
    follower: Follower
    reporter: Reporter | None
    metrics: Metrics
    settings: ServingSettings
    token: Token | None
    log: Any
    hook: Hook | None = None
    draining: bool = False
    limit: RateLimit = field(init=False)
    predicting: int = 0

    def __post_init__(self) -> None:
        self.limit = RateLimit(
            per_s=self.settings.requests_per_s, burst=self.settings.burst_requests
        )

    def drain(self) -> None:
        """Want no more requests; the server ends once the notice was given."""
        self.draining = True
        self.metrics.ready.set(0)

    def hangs_s(self, now: float) -> float:
        """Return how long production has hung [s]; 0 while a batch may still be under way.

        Args:
            now: The moment [s, monotonic].
        """
        busy_s = self.router.table.production.busy_s(now)
        return busy_s if busy_s > _HANGS_AFTER * self.settings.deadline_s else 0.0

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a prediction as under way.

        Raises:
            TooMany: They come too fast.
            Overloaded: Too many are under way.
        """
        self.limit.require(time.monotonic())
        if self.predicting >= self.settings.max_in_flight:
            raise Overloaded(
                f"At most {self.settings.max_in_flight} predictions are computed at once, and so "
                "many are under way.",
                fix="Try again in a second, with fewer at once.",
            )
        self.predicting += 1
        try:
            yield
        finally:
            self.predicting -= 1


def serving_of(request: Request) -> Serving:
    """Return what the app of a request answers from."""
    found: Serving = request.app.state.serving
    return found
