"""Limits the rate of sampled requests, and buffers samples until they are reported."""

from collections import deque

from sluice.rollout.samples import Sample
from sluice.serving.rate_limit import RateLimit

_MAX_SAMPLES = 500
"""Maximum number of samples that wait for the next report. If reports fail and more samples arrive,
the oldest samples are dropped."""

_BURST_SAMPLES = 5
"""Maximum number of requests that are sampled in a burst; ``per_s`` limits the rate after that."""

_FAILURES_PER_S = 10.0
"""Maximum sustained rate at which failed requests are sampled [1/s]."""

_BURST_FAILURES = 50
"""Maximum number of failed requests that are sampled in a burst."""


class SampleBuffer:
    """Samples of one server; used by its event loop only."""

    def __init__(self, *, per_s: float) -> None:
        """Create an empty buffer.

        Args:
            per_s: Maximum rate of sampled requests [1/s]. 0 disables sampling, also of failures.
        """
        self._sample_limit = RateLimit(per_s=per_s, burst=_BURST_SAMPLES) if per_s > 0 else None
        self._failure_limit = RateLimit(per_s=_FAILURES_PER_S, burst=_BURST_FAILURES)
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)

    def reserve_sample(self, now: float) -> bool:
        """Return whether a request at ``now`` [s, monotonic] is sampled; count it if it is."""
        return self._sample_limit is not None and self._sample_limit.take(now)

    def is_exhausted(self, now: float) -> bool:
        """Return whether no request of any client can be sampled at ``now`` [s, monotonic]."""
        return self._sample_limit is None or self._sample_limit.is_empty(now)

    def reserve_failure(self, now: float) -> bool:
        """Return whether a request that failed at ``now`` [s, monotonic] is sampled.

        If it is, count it. Failed requests have their own rate limit.
        """
        return self._sample_limit is not None and self._failure_limit.take(now)

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self._samples.append(sample)

    def take(self) -> tuple[Sample, ...]:
        """Remove and return all samples, oldest first."""
        samples = tuple(self._samples)
        self._samples.clear()
        return samples

    def give_back(self, samples: tuple[Sample, ...]) -> None:
        """Add the samples of a failed report again; if there are too many, drop the oldest."""
        num_free = _MAX_SAMPLES - len(self._samples)
        if num_free > 0:
            self._samples.extendleft(reversed(samples[-num_free:]))
