"""Detects requests that wait behind many requests of one other subnet (a noisy neighbour).

A client knows its arm. With a few large requests it could make all later requests to this arm
late, while the other arm is idle. So a request that waited behind such requests is no evidence,
whatever its result. While that lasts, few requests are evidence, and the rollout step does not end.
"""

import asyncio
from collections import Counter

from sluice.serving.arm_result import ArmResult


class Crowding:
    """Number of windows in progress at one arm, by client subnet; used by the event loop only."""

    def __init__(self) -> None:
        self._windows: Counter[str] = Counter()

    def enter(self, subnet: str, windows: int) -> bool:
        """Add a request; return whether another subnet has more than half of all windows.

        Args:
            subnet: Subnet of the client.
            windows: Number of windows of the request.
        """
        self._windows[subnet] += windows
        if len(self._windows) == 1:
            return False
        others = [num for name, num in self._windows.items() if name != subnet]
        return max(others, default=0) > self._windows.total() / 2

    def leave(self, subnet: str, windows: int, result: ArmResult, *, linger_s: float) -> None:
        """Remove a request.

        Args:
            subnet: Subnet of the client.
            windows: Number of windows that was passed to ``enter``.
            result: Result of the request. If it timed out, the arm still computes it, so it is
                removed later.
            linger_s: Time after which a request that timed out is removed [s].
        """
        if result.is_begun and result.fault == "timeouts":
            asyncio.get_running_loop().call_later(linger_s, self._remove, subnet, windows)
        else:
            self._remove(subnet, windows)

    def _remove(self, subnet: str, windows: int) -> None:
        self._windows[subnet] -= windows
        if self._windows[subnet] <= 0:
            del self._windows[subnet]
