"""Every how many steps statistics are worth their time."""

import math
import statistics
from collections import deque

_COSTS = 9
"""So many of the last costs count, by their median: the first ones warm up."""

_STEPS = 33
"""So many of the last steps count, by their median: a pause is no reason to look more often."""


class Cadence:
    """Chooses the steps with statistics so that they take a set share of the program's time.

    The first steps are looked at often and those that follow ever more rarely, so that a short run
    has some, too. Norms of
    gradients and weights are taken every ``most_between`` steps at least, cost or not; all the rest
    only as often as the share allows.

    Args:
        cost_share: Of the program's own time.
        most_between: A step in so many has norms, whatever they cost.
    """

    def __init__(self, *, cost_share: float, most_between: int) -> None:
        self._share = cost_share
        self._most = most_between
        self._costs: deque[int] = deque(maxlen=_COSTS)
        self._steps: deque[int] = deque(maxlen=_STEPS)
        self._later = 0.0
        self._seen = self._due = self._origin = self._untimed = 0
        self._left = 0
        """Looks at norms alone until the next whole one."""
        self.every = 1

    @property
    def is_whole(self) -> bool:
        """Whether the look that is due is one at everything."""
        return not self._left

    @property
    def due_in(self) -> int:
        """Steps to hear of until the one that comes next has statistics."""
        return self._due - self._seen

    def add_flush(self, *, cost_ns: int, num_statistics: int) -> None:
        """Hear what reading and writing the statistics of so many steps took."""
        self._later = cost_ns / max(num_statistics, 1)

    @property
    def step_ns(self) -> float:
        """Time of a step without looks, the median of the last ones [ns]; 0 before the first."""
        return statistics.median(self._steps) if self._steps else 0.0

    def add_repeats(self, num: int) -> None:
        """Hear of steps without a look; how long they took is told with the next one."""
        self._seen += num
        self._untimed += num

    def add(self, *, step_ns: int, cost_ns: int) -> bool:
        """Hear how long a step took, and those that were not timed before it.

        A look at something else, at a step that was not due, puts nothing off.

        Args:
            step_ns: Of all of them, with the looks.
            cost_ns: Of the looks in it; 0 for none.

        Returns:
            Whether the step that comes next has statistics.
        """
        self._steps.append((step_ns - cost_ns) // (self._untimed + 1))
        self._untimed = 0
        if cost_ns and self._seen >= self._due:
            self._looked(cost_ns)
        self._seen += 1
        return self._seen >= self._due

    def begin_again(self) -> None:
        """Look at the step that comes next, and at those after it as at the first ones."""
        self._origin = self._due = self._seen
        self._left = 0

    def _looked(self, cost_ns: int) -> None:
        past = self._seen - self._origin
        if self._left:
            self._left -= 1
        else:
            self._costs.append(cost_ns)
            cost = statistics.median(self._costs) + self._later
            step = max(self.step_ns, 1)
            wanted = max(math.ceil(cost / (self._share * step)), 1)
            self.every = min(wanted, self._most)
            if past >= self._most:
                self._left = -(-wanted // self._most) - 1
        gap = min(self.every, max(past, 1))
        # Odd, so that of two optimizers that take turns it is not always the same one.
        self._due = self._seen + gap - (gap % 2 == 0)
