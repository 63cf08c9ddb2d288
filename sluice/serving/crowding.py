"""Detects requests that wait behind many requests of one other subnet (a noisy neighbour).

A client knows its arm. With a few large requests a client could delay all later requests to this
arm, while the other arm is idle. So a request that waited behind many requests of another subnet is
no evidence, whatever its result. During an attack of this kind, few requests are evidence, and the
rollout step does not end.
"""

import asyncio
from collections import Counter

from sluice.serving.arm_result import ArmResult


class Crowding:
    """Counts the elements in progress at one arm by client subnet; used by the event loop only."""

    def __init__(self) -> None:
        self._num_elements: Counter[str] = Counter()

    def enter(self, subnet: str, num_elements: int) -> bool:
        """Add a request; return whether one other subnet has more than half of all elements.

        Args:
            subnet: Subnet of the client.
            num_elements: Number of elements of the request, such as windows.
        """
        self._num_elements[subnet] += num_elements
        if len(self._num_elements) == 1:
            return False
        num_by_other_subnet = [num for name, num in self._num_elements.items() if name != subnet]
        return max(num_by_other_subnet, default=0) > self._num_elements.total() / 2

    def leave(self, subnet: str, num_elements: int, result: ArmResult, *, linger_s: float) -> None:
        """Remove a request.

        Args:
            subnet: Subnet of the client.
            num_elements: Number of elements that was passed to ``enter``.
            result: Result of the request. A request that timed out is removed later, because the
                arm still computes it.
            linger_s: Time after which a request that timed out is removed [s].
        """
        if result.has_started and result.fault == "timeouts":
            asyncio.get_running_loop().call_later(linger_s, self._remove, subnet, num_elements)
        else:
            self._remove(subnet, num_elements)

    def _remove(self, subnet: str, num_elements: int) -> None:
        self._num_elements[subnet] -= num_elements
        if self._num_elements[subnet] <= 0:
            del self._num_elements[subnet]
