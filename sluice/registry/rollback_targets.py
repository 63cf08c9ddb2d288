"""Determines from the history to which versions rollbacks lead."""

from collections.abc import Sequence

from sluice.registry.records import HistoryEntry


def production_trail(entries: Sequence[HistoryEntry]) -> tuple[int, ...]:
    """Return the versions to which successive rollbacks lead, in reverse order.

    The last element is the version in production, the element before it is the target of the next
    rollback, and so on. A promotion appends its version. A rollback removes the last version. Until
    this version is promoted again, its earlier occurrences are skipped, too. So a second rollback
    goes further back, and no rollback returns to a version that was rolled back.

    Args:
        entries: History of a model, oldest first.
    """
    trail: list[int] = []
    rolled_back_versions: set[int] = set()
    for entry in entries:
        if entry.action == "promote":
            trail.append(entry.to_version)
            rolled_back_versions.discard(entry.to_version)
        elif entry.action == "rollback" and trail:
            rolled_back_versions.add(trail.pop())
            while trail and trail[-1] != entry.to_version:
                trail.pop()
    if not trail:
        return ()
    current_version = trail[-1]
    targets = (
        version
        for version in trail[:-1]
        if version not in rolled_back_versions and version != current_version
    )
    return (*targets, current_version)
