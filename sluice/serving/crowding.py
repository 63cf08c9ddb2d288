"""Whether a request waits behind those of one other network: that says nothing about the arm.

A client knows its arm, and with a few heavy requests makes everybody behind it late there, while
the other arm is idle. So a request that found such a queue is no evidence, whatever became of it;
while the queue lasts, too few requests are left for a step to end.
"""

import asyncio
from collections import Counter

from sluice.serving.tried import Tried


class Crowding:
    """Windows under way at one arm, by network; touched by the event loop only."""

    def __init__(self) -> None:
        self._windows: Counter[str] = Counter()

    def enter(self, network: str, windows: int) -> bool:
        """Note a request; say whether another network has more than half of what is under way."""
        self._windows[network] += windows
        if len(self._windows) == 1:
            return False
        others = [held for name, held in self._windows.items() if name != network]
        return max(others, default=0) > self._windows.total() / 2

    def leave(self, network: str, windows: int, tried: Tried, *, linger_s: float) -> None:
        """Note the end of a request.

        Args:
            network: That it came from.
            windows: As given to ``enter``.
            tried: How it ended. An arm goes on to compute what it was too late with.
            linger_s: How long it may go on [s].
        """
        if tried.is_begun and tried.fault == "timeouts":
            asyncio.get_running_loop().call_later(linger_s, self._remove, network, windows)
        else:
            self._remove(network, windows)

    def _remove(self, network: str, windows: int) -> None:
        self._windows[network] -= windows
        if self._windows[network] <= 0:
            del self._windows[network]
