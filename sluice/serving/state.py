"""State of one app, shared by its endpoints and background tasks."""

from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from sluice.serving.admission import Admission
from sluice.serving.metrics import Metrics
from sluice.serving.reporting import Reporter
from sluice.serving.rollback import RollbackWebhook
from sluice.serving.router import Router
from sluice.serving.settings import ServingSettings
from sluice.serving.split_sync import SplitSync
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens

_HANG_DEADLINES = 10
"""Time after which an unfinished batch counts as hung [multiples of ``deadline_s``]."""


@dataclass(slots=True, eq=False)
class Serving:
    """Objects and state of one app; used by its event loop only."""

    model: str
    router: Router
    split_sync: SplitSync
    reporter: Reporter | None
    metrics: Metrics
    settings: ServingSettings
    tokens: Tokens
    log: Any
    webhook: RollbackWebhook | None = None
    token_file: TokenFileWatch | None = None
    is_draining: bool = False
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.settings, self.tokens)

    def set_tokens(self, tokens: Tokens) -> None:
        """Replace the tokens; new requests are checked against the new tokens."""
        self.tokens = tokens
        self.admission.set_tokens(tokens)

    def drain(self) -> None:
        """Start to drain: /readyz fails from now on, and the server ends after the drain delay."""
        self.is_draining = True
        self.metrics.ready.set(0)

    def hang_duration_s(self, now: float) -> float:
        """Return for how long production has been hanging [s]; 0 if its batch is not overdue.

        Args:
            now: Current time [s, monotonic].
        """
        busy_s = self.router.table.production.busy_s(now)
        return busy_s if busy_s > _HANG_DEADLINES * self.settings.deadline_s else 0.0


def serving_of(request: Request) -> Serving:
    """Return the state of the app that handles a request."""
    serving: Serving = request.app.state.serving
    return serving
