"""Random bytes of the operating system, read in blocks.

Each call of ``os.urandom`` releases the interpreter lock. The event loop then waited up to 0.1 ms
until the thread that computes predictions released the lock again.
"""

import os

_BLOCK_BYTES = 4096
"""Number of random bytes that are read from the system at a time."""
_FLOAT_BYTES = 8
"""Number of random bytes from which a float is computed."""


class RandomPool:
    """Unpredictable bytes, each returned once; used by one thread only."""

    def __init__(self) -> None:
        self._block = b""
        self._num_used = 0

    def take(self, num_bytes: int) -> bytes:
        """Return bytes that were not returned before, at most 4096."""
        if self._num_used + num_bytes > len(self._block):
            self._block, self._num_used = os.urandom(_BLOCK_BYTES), 0
        start = self._num_used
        self._num_used += num_bytes
        return self._block[start : self._num_used]

    def uniform(self) -> float:
        """Return a uniform random number in [0, 1)."""
        # A float has 53 bits of precision; with more bits the largest number would round up to 1.
        return (int.from_bytes(self.take(_FLOAT_BYTES)) >> 11) / 2**53
