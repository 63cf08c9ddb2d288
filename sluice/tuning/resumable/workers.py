"""Whether a worker is free for a trial that waits for one."""

import time
from typing import Any

from sluice.tuning.resumable import tune_trials

_GRANTED_WITHIN_S = 0.25
"""Resources that are free are granted within this time, on a loaded machine as well [s]."""

_KNOWN_FOR_S = 30.0
"""How long a full cluster is taken to be full; nodes may join [s]."""


class FreeWorkers:
    """Learns from requests that wait how many workers there are.

    Args:
        limit: Trials that have a worker at a time; None for as many as there are.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._asked_at: float | None = None
        self._capacity, self._known_until = 0, 0.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def is_at_limit(self, controller: Any) -> bool:
        """Return whether no further worker may be asked for."""
        if self._limit is None or tune_trials.has_idle_worker(controller):
            return False
        return sum(tune_trials.workers(controller)) >= self._limit

    def is_full(self, controller: Any) -> bool:
        """Return whether a trial gets a worker only when another one gives it up."""
        now = time.monotonic()
        live, pending = tune_trials.workers(controller)
        if tune_trials.has_idle_worker(controller):
            return False
        if self.is_at_limit(controller):
            return True
        if live >= self._capacity and now < self._known_until:
            return True
        if not pending:
            self._asked_at = None
            return False
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at < _GRANTED_WITHIN_S:
            return False
        self._asked_at = None
        self._capacity, self._known_until = live, now + _KNOWN_FOR_S
        return True
