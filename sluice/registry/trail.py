"""Which versions a rollback may go back to, read from the history alone."""

from collections.abc import Sequence

from sluice.registry.records import HistoryEntry


def production_trail(entries: Sequence[HistoryEntry]) -> tuple[int, ...]:
    """Return the good versions a rollback walks back through; the last one is in production.

    A promotion adds its version. A rollback takes off the last one, and marks it bad until it is
    promoted again: no place that it had earlier in the trail counts any more. So a second rollback
    goes further back, and none returns to what a rollback left.
    """
    trail: list[int] = []
    bad: set[int] = set()
    for entry in entries:
        if entry.action == "promote":
            trail.append(entry.to_version)
            bad.discard(entry.to_version)
        elif entry.action == "rollback" and trail:
            bad.add(trail.pop())
            while trail and trail[-1] != entry.to_version:
                trail.pop()
    if not trail:
        return ()
    current = trail[-1]
    return (*(v for v in trail[:-1] if v not in bad and v != current), current)
