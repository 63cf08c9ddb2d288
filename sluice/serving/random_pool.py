"""Random bytes of the system, read many at a time.

Each call of ``os.urandom`` releases the interpreter lock, and the event loop waited up to 0.1 ms
to get it back from the thread that computes predictions.
"""

import os

_DRAWN_BYTES = 4096
_UNIFORM_BYTES = 8


class RandomPool:
    """Unpredictable bytes, each used once; used by one thread only."""

    def __init__(self) -> None:
        self._drawn = b""
        self._used = 0

    def take(self, num_bytes: int) -> bytes:
        """Return bytes that were not returned before, at most 4096."""
        if self._used + num_bytes > len(self._drawn):
            self._drawn, self._used = os.urandom(_DRAWN_BYTES), 0
        start = self._used
        self._used += num_bytes
        return self._drawn[start : self._used]

    def uniform(self) -> float:
        """Return a uniform random number in [0, 1)."""
        # A float has 53 bits: with more, the largest would round up to 1.
        return (int.from_bytes(self.take(_UNIFORM_BYTES)) >> 11) / 2**53
