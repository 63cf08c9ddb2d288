"""Requests that an arm computes in the background, beside the answer: nobody waits for them.

Shape legend: N = windows, L = rows of a window, D = features.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.serving.arm import Arm
from sluice.serving.settings import ServingSettings
from sluice.serving.tried import Tried, try_arm


class Copies:
    """The copies under way, as many as there is room for; touched by the event loop only."""

    def __init__(self, settings: ServingSettings) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._settings = settings

    @property
    def has_room(self) -> bool:
        """Whether one more may begin."""
        return len(self.tasks) < self._settings.shadow_waiting

    def begin(self, copy: Coroutine[Any, Any, None]) -> None:
        """Run a copy in the background."""
        task = asyncio.get_running_loop().create_task(copy)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, arm: Arm, x_NLD: NDArray[np.float32], *, name: str) -> Tried:
        """Ask an arm with the deadline and the queue of copies.

        Args:
            arm: Who is asked.
            x_NLD: Windows (N, L, D).
            name: What the arm is to the request, for the span.
        """
        return await try_arm(
            arm,
            x_NLD,
            name=name,
            timeout_s=self._settings.shadow_deadline_s,
            max_waiting=self._settings.shadow_waiting,
        )

    async def close(self) -> None:
        """Drop the copies that still wait."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
