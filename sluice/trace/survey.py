"""When it is asked who belongs to whom, and what the parameters hold: rarely, and on changes."""

from sluice.trace.evidence.values import ValueFact
from sluice.trace.inventory import Inventory
from sluice.trace.recorder import Recorder
from sluice.trace.valuing import ask_values


class Survey:
    """Looks at all networks and optimizers at the first step, at powers of two, and on changes."""

    def __init__(self, inventory: Inventory, recorder: Recorder) -> None:
        self._inventory, self._recorder = inventory, recorder
        self._last = self._next_membership = self._next_values = self._origin = 0
        self._count = 0
        self._values: list[list[ValueFact]] = []
        self.due = 0
        """From this step on there is something to look at."""

    def look(self, step: int) -> None:
        """Look at what is due before the step that follows ``step``."""
        # A program that adds modules at every step is looked at ever more rarely.
        changed = self._inventory.is_stale and step - self._last >= self._count // 8
        if changed or step >= self._next_membership:
            self._last, self._next_membership = step, self._after(step)
            self._count += 1
            taken = self._inventory.take(step + 1)
            if taken is not None:
                self._recorder.write("membership", taken)
        if step >= self._next_values:
            self._next_values = self._after(step)
            self._values += ask_values(self._inventory, step + 1, self._recorder.deferred)
        self.due = min(self._next_membership, self._next_values)

    def begin_again(self, step: int) -> None:
        """Look before the step that comes next, and before those after it at powers of two."""
        self._origin = self._next_membership = self._next_values = self.due = step

    def _after(self, step: int) -> int:
        return step + max(step - self._origin, 1)

    def look_first(self, step: int) -> None:
        """Look if nothing was looked at yet."""
        if not self._count:
            self.look(step)

    def write(self) -> None:
        """Write what was asked for and is read."""
        for told in self._values:
            for value in told:
                self._recorder.write("value", value)
        self._values = []
