"""Samples rows of a series, at an interval that grows with its length."""


class LogSpacedSampler:
    """Chooses rows of a series so that their number grows with the logarithm of its length.

    Args:
        initial_rows: Number of first rows that are all kept. Afterwards the interval between kept
            rows doubles after every ``initial_rows // 2`` of them.
    """

    __slots__ = ("_initial_rows", "_interval", "_left_at_interval", "_next_kept", "_position")

    def __init__(self, initial_rows: int) -> None:
        self._initial_rows = self._left_at_interval = initial_rows
        self._interval, self._position, self._next_kept = 1, 0, 0

    def skip_if_none_kept(self, num: int) -> bool:
        """Advance by ``num`` rows if none of them is kept; return whether the sampler advanced."""
        if self._position + num > self._next_kept:
            return False
        self._position += num
        return True

    def advance(self) -> bool:
        """Advance by one row of the series; return whether this row is kept."""
        position = self._position
        self._position = position + 1
        if position < self._next_kept:
            return False
        self._left_at_interval -= 1
        if not self._left_at_interval:
            self._left_at_interval, self._interval = self._initial_rows // 2, self._interval * 2
        self._next_kept = -(-(position + 1) // self._interval) * self._interval
        return True
