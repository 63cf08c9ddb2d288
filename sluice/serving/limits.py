"""How often clients may ask."""

from sluice.serving.refusals import TooMany


class RateLimit:
    """A bucket of requests that fills at a steady rate; touched by the event loop only."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._left = float(burst)
        self._at: float | None = None

    def is_empty(self, now: float) -> bool:
        """Say whether there is no request to take.

        Args:
            now: The moment [s, monotonic].
        """
        if self._at is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        return self._left < 1

    def take(self, now: float) -> bool:
        """Take one request out; False when the bucket is empty.

        Args:
            now: The moment [s, monotonic].
        """
        if self.is_empty(now):
            return False
        self._left -= 1
        return True

    def require(self, now: float) -> None:
        """Take one request out.

        Args:
            now: The moment [s, monotonic].

        Raises:
            TooMany: The bucket is empty.
        """
        if not self.take(now):
            raise TooMany(
                f"At most {self._per_s:g} requests a second are answered, with {self._burst:g} at "
                "once, and more came.",
                fix="Wait a second and send fewer; several windows fit into one request.",
            )
