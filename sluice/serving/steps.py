"""What was seen of both arms since the weights last changed: counts, never payloads (ROLL-2)."""

from collections import deque
from datetime import datetime

import numpy as np

from sluice.rollout.observations import ArmCounts, Window
from sluice.rollout.samples import ArmName, Fault
from sluice.rollout.weights import Weights

ARMS: tuple[ArmName, ...] = ("production", "challenger")
KINDS = ("requests", "errors", "timeouts", "not_finite", "slower")

_RECENT = 2000
"""Latencies of production that its p95 is taken from."""
_ENOUGH = 100
"""With fewer the p95 says little: nothing counts as slower until production has so many."""
_PROCESS_S = 0.002
"""What a challenger may be slower for its process alone: the pipe and two wake-ups. Small networks
answer within less than that, and once promoted they have no pipe [s]."""


class Steps:
    """Counts of the step under way; a new epoch or rollout begins a new one.

    Without a challenger there is no step: what production did alone, before it was loaded or after
    its lease, would be compared with what the challenger did beside it.

    Touched by the event loop only. ``slower`` is measured against production's p95 when the step
    began, and what a process of its own costs. A server that has just started has none: it takes
    the first that production gives it, and until then counts no request of either arm as slower.
    """

    def __init__(self, weights: Weights, *, now: datetime) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow_s: float | None = None
        self._begin(weights, now)

    @property
    def slow_s(self) -> float | None:
        """What counts as slower in this step [s]; None while it is not known."""
        return self._slow_s

    def follow(self, weights: Weights, *, now: datetime) -> None:
        """Begin a new step when the weights are of another epoch."""
        if not self._is_of(weights):
            self._begin(weights, now)

    def count(
        self, arm: ArmName, *, weights: Weights, seconds: float | None, fault: Fault | None
    ) -> None:
        """Count one request that was routed to an arm.

        Args:
            arm: Where it was routed, whoever answered in the end.
            weights: That routed it; a request of an earlier step, or of none, is not counted.
            seconds: How long the arm took, or was given; None for a shadow copy, which waits for
                production on purpose.
            fault: What went wrong, if anything.
        """
        if seconds is not None and arm == "production" and fault in (None, "timeouts"):
            self._recent.append(seconds)
            if self._slow_s is None:
                self._slow_s = self._limit_s()
        if not self._is_of(weights):
            return
        counts = self._counts[arm]
        counts["requests"] += 1
        if fault is not None:
            counts[fault] += 1
        # What raised at once was not fast, and says so by its error.
        if self._weights.shadow:  # copies have no latency, and one arm alone must not be judged
            return
        if seconds is not None and self._slow_s is not None and fault != "errors":
            counts["slower"] += not seconds <= self._slow_s

    def count_dropped(self) -> None:
        """Count a shadow copy that there was no room for."""
        self._dropped += 1

    def window(self, now: datetime) -> Window | None:
        """Return the counts of the step; None without a rollout."""
        weights = self._weights
        if weights.rollout is None:
            return None
        return Window(
            rollout=weights.rollout,
            epoch=weights.epoch,
            since=self._since,
            until=max(now, self._since),
            production=ArmCounts(**self._counts["production"]),
            challenger=ArmCounts(**self._counts["challenger"]),
            shadow_dropped=self._dropped,
        )

    def _is_of(self, weights: Weights) -> bool:
        return (weights.rollout, weights.epoch) == (self._weights.rollout, self._weights.epoch)

    def _begin(self, weights: Weights, now: datetime) -> None:
        self._weights = weights
        self._since = now
        self._slow_s = self._limit_s()
        self._dropped = 0
        self._counts: dict[ArmName, dict[str, int]] = {arm: dict.fromkeys(KINDS, 0) for arm in ARMS}

    def _limit_s(self) -> float | None:
        if len(self._recent) < _ENOUGH:
            return None
        return float(np.quantile(np.array(self._recent), 0.95)) + _PROCESS_S
