"""Samples rows of a series, at an interval that grows with its length."""


class LogSpacedSampler:
    """Chooses rows of a series so that their number grows with the logarithm of its length.

    Args:
        initial_rows: Number of first rows that are all kept. Afterwards the interval between kept
            rows doubles after every ``initial_rows // 2`` of them.
    """

    __slots__ = ("_initial_rows", "_interval", "_left_at_interval", "_next_position", "_num_seen")

    def __init__(self, initial_rows: int) -> None:
        self._initial_rows = self._left_at_interval = initial_rows
        self._interval, self._num_seen, self._next_position = 1, 0, 0

    def skips_all(self, num: int) -> bool:
        """Skip the next ``num`` rows if none of them is kept; return whether they were skipped."""
        if self._num_seen + num > self._next_position:
            return False
        self._num_seen += num
        return True

    def keeps_next(self) -> bool:
        """Return whether the next row of the series is kept."""
        position = self._num_seen
        self._num_seen = position + 1
        if position < self._next_position:
            return False
        self._left_at_interval -= 1
        if not self._left_at_interval:
            self._left_at_interval, self._interval = self._initial_rows // 2, self._interval * 2
        self._next_position = -(-(position + 1) // self._interval) * self._interval
        return True
