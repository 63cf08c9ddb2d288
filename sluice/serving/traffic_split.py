"""Sources of the traffic split, and the rule that decides whether a split is newer.

Another process writes the split, and servers poll it. A read may fail or return an outdated split.
A server accepts a split only if it has a higher epoch than the known split, or renews the lease of
the known split.
"""

import threading
from typing import Protocol

from sluice.rollout.traffic_split import TrafficSplit


class TrafficSplitSource(Protocol):
    """Source of the split. It is called from a thread, and may block or raise ``SluiceError``."""

    def read(self) -> TrafficSplit:
        """Return the current split."""


def is_newer(new_split: TrafficSplit, known_split: TrafficSplit | None) -> bool:
    """Return whether a split that was read replaces the known split.

    A split of a lower epoch never replaces the known split. A split of the same epoch does so only
    if it renews the lease. Other differences are an error of the writer.
    """
    return (
        known_split is None
        or new_split.epoch > known_split.epoch
        or new_split.is_renewal_of(known_split)
    )


class InMemoryTrafficSplit:
    """Traffic split in memory, for rehearsals and tests."""

    def __init__(self, split: TrafficSplit) -> None:
        self._split = split
        self._lock = threading.Lock()

    def read(self) -> TrafficSplit:
        """Return the split that was set last."""
        with self._lock:
            return self._split

    def set(self, split: TrafficSplit) -> None:
        """Replace the split."""
        with self._lock:
            self._split = split
