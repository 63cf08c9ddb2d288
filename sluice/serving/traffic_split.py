"""Sources of the traffic split, and the rule which of two splits is newer.

The split is written elsewhere and polled. A read may return outdated data or fail: a reader
accepts a split with a higher epoch than its own, and otherwise keeps what it has.
"""

import threading
from typing import Protocol

from sluice.rollout.traffic_split import TrafficSplit


class TrafficSplitSource(Protocol):
    """Source of the split; called from a thread, may block or raise ``SluiceError``."""

    def read(self) -> TrafficSplit:
        """Return the present split."""


def is_newer(arrived: TrafficSplit, known: TrafficSplit | None) -> bool:
    """Return whether a split that was read replaces the known one.

    A lower epoch never does. With the same epoch only a renewed lease does: two different splits
    with one epoch are an error of the writer, and the first one stays.
    """
    return known is None or arrived.epoch > known.epoch or arrived.renews(known)


class InMemoryTrafficSplit:
    """Traffic split in memory, for rehearsals and tests."""

    def __init__(self, split: TrafficSplit) -> None:
        self._weights = split
        self._lock = threading.Lock()

    def read(self) -> TrafficSplit:
        """Return the split that was set last."""
        with self._lock:
            return self._weights

    def set(self, split: TrafficSplit) -> None:
        """Replace the split."""
        with self._lock:
            self._weights = split
