"""Where a server reads the split of the traffic, and which news about it may be believed.

The split is written elsewhere and read again and again. A reader may be told old things, or nothing
at all: it believes an epoch that is newer than its own, and otherwise stays with what it has.
"""

import threading
from typing import Protocol

from sluice.rollout.weights import Weights


class WeightsSource(Protocol):
    """Where the weights are written; called from a thread, may block or raise ``SluiceError``."""

    def read(self) -> Weights:
        """Return the weights as they are now."""


def is_news(arrived: Weights, known: Weights | None) -> bool:
    """Say whether weights that arrived replace the known ones.

    An older epoch never does. Of the same epoch only a renewed lease does: two different splits
    under one number are a mistake of the writer, and the first one stands.
    """
    return known is None or arrived.epoch > known.epoch or arrived.renews(known)


class MemoryWeights:
    """Weights of one process: for rehearsals and tests."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._lock = threading.Lock()

    def read(self) -> Weights:
        """Return the weights set last."""
        with self._lock:
            return self._weights

    def set(self, weights: Weights) -> None:
        """Replace the weights."""
        with self._lock:
            self._weights = weights
