"""Rate limit of requests."""

from sluice.serving.http_errors import TooManyRequests


class RateLimit:
    """Token bucket that fills at a constant rate; used by the event loop only."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._left = float(burst)
        self._at: float | None = None

    def is_empty(self, now: float) -> bool:
        """Return whether the bucket has no request left.

        Args:
            now: Current time [s, monotonic].
        """
        if self._at is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        return self._left < 1

    def take(self, now: float) -> bool:
        """Take one request; False when the bucket is empty.

        Args:
            now: Current time [s, monotonic].
        """
        if self.is_empty(now):
            return False
        self._left -= 1
        return True

    def require(self, now: float) -> None:
        """Take one request.

        Args:
            now: Current time [s, monotonic].

        Raises:
            TooManyRequests: The bucket is empty.
        """
        if not self.take(now):
            raise TooManyRequests(
                f"The rate limit is {self._per_s:g} requests a second with bursts of "
                f"{self._burst:g}, and it is exceeded.",
                fix="Wait a second and send fewer requests; one request may have several windows.",
            )
