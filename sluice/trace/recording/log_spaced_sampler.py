"""Samples rows of a series, at an interval that grows with the length of the series."""


class LogSpacedSampler:
    """Decides which rows of a series are kept.

    The number of kept rows grows with the logarithm of the length of the series.

    Args:
        initial_rows: Number of first rows that are all kept; at least 2. Later, the interval
            between kept rows doubles after every ``initial_rows // 2`` kept rows.
    """

    __slots__ = ("_initial_rows", "_interval", "_next_position", "_position", "_rows_left")

    def __init__(self, initial_rows: int) -> None:
        self._initial_rows = initial_rows
        self._position = self._next_position = 0
        """Position of the next row in the series, and of the next row that is kept."""
        self._interval, self._rows_left = 1, initial_rows
        """Interval between kept rows, and number of rows that are still kept at this interval."""

    def skip_if_none_kept(self, num_rows: int) -> bool:
        """Advance by ``num_rows`` rows and return True if none of these rows is kept.

        If one of them is kept, return False without advancing.
        """
        if self._position + num_rows > self._next_position:
            return False
        self._position += num_rows
        return True

    def advance(self) -> bool:
        """Advance by one row of the series; return whether this row is kept."""
        position = self._position
        self._position = position + 1
        if position < self._next_position:
            return False
        self._rows_left -= 1
        if not self._rows_left:
            self._interval, self._rows_left = self._interval * 2, self._initial_rows // 2
        self._next_position = -(-(position + 1) // self._interval) * self._interval
        return True
