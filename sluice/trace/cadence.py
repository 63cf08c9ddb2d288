"""Every how many steps statistics are worth their time."""

import math
import statistics
from collections import deque

_KEEP = 0.9
"""Weight of what was measured before in the running mean of a step's time."""

_COSTS = 9
"""So many of the last costs count, by their median: the first ones warm up."""


class Cadence:
    """Chooses the steps with statistics so that they take a set share of the program's time.

    The first steps are looked at on powers of two, so that a short run has some, too.

    Args:
        cost_share: Of the program's own time.
        most_between: A step in so many has statistics, whatever they cost.
    """

    def __init__(self, *, cost_share: float, most_between: int) -> None:
        self._share = cost_share
        self._most = most_between
        self._costs: deque[int] = deque(maxlen=_COSTS)
        self._step: float | None = None
        self._seen = 0
        self._due = 0
        self.every = 1

    def is_due(self) -> bool:
        """Tell whether the step that comes next has statistics."""
        return self._seen >= self._due

    def add(self, *, step_ns: int, cost_ns: int) -> None:
        """Hear how long the last step took, and the statistics in it; 0 for none."""
        own = max(step_ns - cost_ns, 1)
        self._step = own if self._step is None else _KEEP * self._step + (1 - _KEEP) * own
        if cost_ns:
            self._costs.append(cost_ns)
            wanted = math.ceil(statistics.median(self._costs) / (self._share * self._step))
            self.every = min(max(wanted, 1), self._most)
            self._due = min(self._seen + self.every, max(2 * self._seen, self._seen + 1))
        self._seen += 1
