"""Samples rows of a series, ever fewer as it gets longer."""


class LogSpacedSampler:
    """Chooses rows of a series so that their number grows with the logarithm of its length.

    Args:
        initial_rows: Number of first rows that are all kept. Afterwards the interval between kept
            rows doubles after every ``initial_rows // 2`` of them.
    """

    __slots__ = ("_every", "_left", "_next", "_rows", "_seen")

    def __init__(self, initial_rows: int) -> None:
        self._rows = self._left = initial_rows
        self._every, self._seen, self._next = 1, 0, 0

    def skips_all(self, num: int) -> bool:
        """Skip the next ``num`` rows if none of them is kept; return whether they were skipped."""
        if self._seen + num > self._next:
            return False
        self._seen += num
        return True

    def keeps_next(self) -> bool:
        """Return whether the next row of the series is kept."""
        num_seen = self._seen
        self._seen = num_seen + 1
        if num_seen < self._next:
            return False
        self._left -= 1
        if not self._left:
            self._left, self._every = self._rows // 2, self._every * 2
        self._next = -(-(num_seen + 1) // self._every) * self._every
        return True
