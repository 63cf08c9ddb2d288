"""Selects a few random requests and buffers their samples until they are reported."""

from collections import deque

from sluice.rollout.samples import Sample
from sluice.serving.rate_limit import RateLimit

_MAX_WAITING = 500
"""Most samples that wait for the next report; the oldest are dropped when reports fail."""

_BURST = 5
_FAILURES_PER_S = 10.0
_FAILURES_BURST = 50


class SampleBuffer:
    """Samples of one server; used by its event loop only."""

    def __init__(self, *, per_s: float) -> None:
        """Prepare.

        Args:
            per_s: Largest rate of sampled requests; 0 samples none [1/s].
        """
        self._bucket = RateLimit(per_s=per_s, burst=_BURST) if per_s > 0 else None
        self._failures = RateLimit(per_s=_FAILURES_PER_S, burst=_FAILURES_BURST)
        self._waiting: deque[Sample] = deque(maxlen=_MAX_WAITING)

    def should_sample(self, now: float) -> bool:
        """Return whether a request that begins at ``now`` [s, monotonic] is sampled."""
        return self._bucket is not None and self._bucket.take(now)

    def is_exhausted(self, now: float) -> bool:
        """Return whether no request at ``now`` [s, monotonic] can be sampled, from any client."""
        return self._bucket is None or self._bucket.is_empty(now)

    def should_keep_failure(self, now: float) -> bool:
        """Return whether a request that failed at ``now`` [s, monotonic] is kept; most are."""
        return self._bucket is not None and self._failures.take(now)

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self._waiting.append(sample)

    def take(self) -> tuple[Sample, ...]:
        """Remove and return all samples, oldest first."""
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken

    def give_back(self, samples: tuple[Sample, ...]) -> None:
        """Add samples of a failed report again; those beyond the capacity are lost."""
        room = _MAX_WAITING - len(self._waiting)
        if room > 0:
            self._waiting.extendleft(reversed(samples[-room:]))
