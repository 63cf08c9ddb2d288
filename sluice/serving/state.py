"""What one app answers from."""

from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from sluice.serving.admission import Admission
from sluice.serving.following import Follower
from sluice.serving.metrics import Metrics
from sluice.serving.reporting import Reporter
from sluice.serving.rollback import Hook
from sluice.serving.router import Router
from sluice.serving.settings import ServingSettings
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens

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
    tokens: Tokens
    log: Any
    hook: Hook | None = None
    token_file: TokenFileWatch | None = None
    draining: bool = False
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.settings, self.tokens)

    def set_tokens(self, tokens: Tokens) -> None:
        """Ask for other tokens from the next request on."""
        self.tokens = tokens
        self.admission.set_tokens(tokens)

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


def serving_of(request: Request) -> Serving:
    """Return what the app of a request answers from."""
    found: Serving = request.app.state.serving
    return found
