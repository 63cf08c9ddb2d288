"""Estimates whether another worker is available, from the workers that Tune requested."""

import time
from typing import Any

from sluice.tuning.resumable import tune_trials

_GRANT_TIMEOUT_S = 0.25
"""Ray grants free resources within this time, even on a machine with high load [s]. A request that
waits longer shows that the cluster is full."""

_CAPACITY_TTL_S = 30.0
"""A full cluster is assumed to stay full for this time [s]. Afterwards, nodes may have joined."""


class WorkerAvailability:
    """Estimates from waiting requests whether all workers of the cluster are in use.

    Args:
        max_workers: Maximum number of workers; None for as many as the cluster has.
    """

    def __init__(self, max_workers: int | None = None) -> None:
        self._max_workers = max_workers
        self._waiting_since: float | None = None
        """Time at which a waiting request was first observed; None if no request waits."""
        self._num_workers_when_full, self._full_until = 0, 0.0
        """Number of workers of a full cluster, and the time until which it counts as full."""

    @property
    def is_limited(self) -> bool:
        """Whether the number of workers is limited."""
        return self._max_workers is not None

    def is_at_limit(self, controller: Any) -> bool:
        """Return whether no further worker may be requested."""
        if self._max_workers is None or tune_trials.has_idle_worker(controller):
            return False
        return sum(tune_trials.count_workers(controller)) >= self._max_workers

    def is_full(self, controller: Any) -> bool:
        """Return whether all workers are in use.

        Another trial can then start only if a trial releases its worker.
        """
        now = time.monotonic()
        num_live, num_pending = tune_trials.count_workers(controller)
        if tune_trials.has_idle_worker(controller):
            return False
        if self.is_at_limit(controller):
            return True
        if num_live >= self._num_workers_when_full and now < self._full_until:
            return True
        if not num_pending:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < _GRANT_TIMEOUT_S:
            return False
        self._waiting_since = None
        self._num_workers_when_full, self._full_until = num_live, now + _CAPACITY_TTL_S
        return True
