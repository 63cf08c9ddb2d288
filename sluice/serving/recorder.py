"""Draws a few requests by chance and keeps what both arms said of them, until they are reported."""

from collections import deque

from sluice.rollout.samples import Sample
from sluice.serving.limits import RateLimit

_KEPT = 500
"""Samples that wait for the next report; the oldest go first when reports fail."""

_BURST = 5
_FAILURES_PER_S = 10.0
_FAILURES_AT_ONCE = 50


class Recorder:
    """Samples of one server; touched by its event loop only."""

    def __init__(self, *, per_s: float) -> None:
        """Prepare.

        Args:
            per_s: Requests drawn a second at most; 0 draws none.
        """
        self._bucket = RateLimit(per_s=per_s, burst=_BURST) if per_s > 0 else None
        self._failures = RateLimit(per_s=_FAILURES_PER_S, burst=_FAILURES_AT_ONCE)
        self._waiting: deque[Sample] = deque(maxlen=_KEPT)

    def wants(self, now: float) -> bool:
        """Say whether a request that begins now [s, monotonic] is drawn."""
        return self._bucket is not None and self._bucket.take(now)

    def has_enough(self, now: float) -> bool:
        """Say whether no request that begins now [s, monotonic] is drawn, whoever sent it."""
        return self._bucket is None or self._bucket.is_empty(now)

    def wants_failure(self, now: float) -> bool:
        """Say whether a request that failed now [s, monotonic] is kept; most are."""
        return self._bucket is not None and self._failures.take(now)

    def add(self, sample: Sample) -> None:
        """Keep a sample until it is taken."""
        self._waiting.append(sample)

    def take(self) -> tuple[Sample, ...]:
        """Return what was kept since, oldest first, and forget it."""
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken

    def give_back(self, samples: tuple[Sample, ...]) -> None:
        """Keep samples again whose report failed; those beyond the room are lost."""
        room = _KEPT - len(self._waiting)
        if room > 0:
            self._waiting.extendleft(reversed(samples[-room:]))
