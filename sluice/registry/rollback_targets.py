"""Determines the possible targets of a rollback from the history."""

from collections.abc import Sequence

from sluice.registry.records import HistoryEntry


def production_trail(entries: Sequence[HistoryEntry]) -> tuple[int, ...]:
    """Return the versions that successive rollbacks go through; the last one is in production.

    A promotion appends its version. A rollback removes the last version and marks it as bad until
    it is promoted again, also where it occurs earlier in the trail. A second rollback therefore
    goes further back, and no rollback returns to a version that was rolled back.
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
