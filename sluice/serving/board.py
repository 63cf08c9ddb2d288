"""What several replicas of one server tell each other: their counts, and that the end is near.

A client behind one address meets any of them. Counts of one replica after those of another would
look as if they went back; so each answers with the sum of all.
"""

import asyncio
from collections.abc import Iterable

from sluice.rollout.observations import ArmCounts, Window


class Board:
    """Runs as an actor of its own; keeps what replicas that are gone had counted."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._closing = asyncio.Event()

    async def put(self, replica: str, window: Window) -> Window:
        """Note the counts of one replica; return those of all that are at the same step."""
        self._windows[replica] = window
        return added(
            other
            for other in self._windows.values()
            if (other.rollout, other.epoch) == (window.rollout, window.epoch)
        )

    async def close(self) -> None:
        """Tell all replicas that no more requests are wanted."""
        self._closing.set()

    async def closing(self) -> None:
        """Return once no more requests are wanted."""
        await self._closing.wait()


def added(windows: Iterable[Window]) -> Window:
    """Return the sum of at least one window of the same step, from the first to the last moment."""
    first, *others = windows
    for other in others:
        first = first.model_copy(
            update={
                "since": min(first.since, other.since),
                "until": max(first.until, other.until),
                "production": _sum(first.production, other.production),
                "challenger": _sum(first.challenger, other.challenger),
                "shadow_dropped": first.shadow_dropped + other.shadow_dropped,
            }
        )
    return first


def _sum(one: ArmCounts, other: ArmCounts) -> ArmCounts:
    return ArmCounts(
        **{name: getattr(one, name) + getattr(other, name) for name in ArmCounts.model_fields}
    )
