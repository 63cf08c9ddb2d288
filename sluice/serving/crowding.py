"""Detects requests that wait behind those of one other network (a noisy neighbour).

A client knows its arm, and with a few heavy requests can make all requests behind it late there,
while the other arm is idle. So a request that waited in such a queue is no evidence, whatever
its result; while the queue lasts, too few requests are left for a step to end.
"""

import asyncio
from collections import Counter

from sluice.serving.arm_result import ArmResult


class Crowding:
    """Windows in progress at one arm, by network; used by the event loop only."""

    def __init__(self) -> None:
        self._windows: Counter[str] = Counter()

    def enter(self, network: str, windows: int) -> bool:
        """Add a request; return whether another network has more than half of all windows."""
        self._windows[network] += windows
        if len(self._windows) == 1:
            return False
        others = [held for name, held in self._windows.items() if name != network]
        return max(others, default=0) > self._windows.total() / 2

    def leave(self, network: str, windows: int, result: ArmResult, *, linger_s: float) -> None:
        """Remove a request.

        Args:
            network: Network of the client.
            windows: Number passed to ``enter``.
            result: Result of the request. An arm continues to compute a request that timed out.
            linger_s: How long it may continue [s].
        """
        if result.is_begun and result.fault == "timeouts":
            asyncio.get_running_loop().call_later(linger_s, self._remove, network, windows)
        else:
            self._remove(network, windows)

    def _remove(self, network: str, windows: int) -> None:
        self._windows[network] -= windows
        if self._windows[network] <= 0:
            del self._windows[network]
