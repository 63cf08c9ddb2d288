"""Rate limit of requests."""

from sluice.serving.http_errors import TooManyRequests


class RateLimit:
    """Token bucket that fills at a constant rate; used by the event loop only."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._num_available = float(burst)
        self._updated_at: float | None = None

    def is_empty(self, now: float) -> bool:
        """Return whether the bucket allows no request now.

        Args:
            now: Current time [s, monotonic].
        """
        if self._updated_at is not None:
            num_added = max(0.0, now - self._updated_at) * self._per_s
            self._num_available = min(self._burst, self._num_available + num_added)
        self._updated_at = now
        return self._num_available < 1

    def take(self, now: float) -> bool:
        """Count one request; return False, without counting, if the bucket is empty.

        Args:
            now: Current time [s, monotonic].
        """
        if self.is_empty(now):
            return False
        self._num_available -= 1
        return True

    def require(self, now: float) -> None:
        """Count one request.

        Args:
            now: Current time [s, monotonic].

        Raises:
            TooManyRequests: The bucket is empty.
        """
        if not self.take(now):
            raise TooManyRequests(
                f"The rate limit of {self._per_s:g} requests/s with bursts of {self._burst:g} "
                "requests is exceeded.",
                fix="Wait a second and send fewer requests. One request may contain several "
                "elements or alerts.",
            )
