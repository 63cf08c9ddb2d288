"""Requests that an arm computes in the background, without a client that waits for them.

There are three kinds: shadow requests, faulty requests that are repeated on the other arm, and
sampled requests. For a sampled request, the other arm predicts, or the embedding is computed.

Shape legend: N = elements of a request, E = width of an embedding.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.serving.arm import ArmWorker, NetworkFailed, QueueFull
from sluice.serving.arm_result import ArmResult, try_arm
from sluice.serving.model_arrays import ModelArrays
from sluice.serving.settings import ServingSettings


class BackgroundRequests:
    """Background requests in progress, up to a limit; used by the event loop only."""

    def __init__(self, settings: ServingSettings) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._settings = settings

    @property
    def has_room(self) -> bool:
        """Whether another request may start."""
        return len(self.tasks) < self._settings.max_shadow_queue

    def start(self, request: Coroutine[Any, Any, None]) -> None:
        """Run a request in the background."""
        task = asyncio.get_running_loop().create_task(request)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def predict(self, arm: ArmWorker, x: ModelArrays, *, name: str) -> ArmResult:
        """Predict with the deadline and the queue limit of shadow requests.

        Args:
            arm: Arm that predicts.
            x: Inputs of N elements.
            name: Role of the arm in the request, for the name of the span.
        """
        return await try_arm(
            arm,
            x,
            name=name,
            timeout_s=self._settings.shadow_deadline_s,
            max_waiting=self._settings.max_shadow_queue,
        )

    async def embed(self, arm: ArmWorker, x: ModelArrays) -> NDArray[np.float64] | None:
        """Return the embeddings (N, E); None if the arm fails or its queue is full."""
        try:
            return await arm.embed(
                x,
                timeout_s=self._settings.shadow_deadline_s,
                max_waiting=self._settings.max_shadow_queue,
            )
        except (QueueFull, TimeoutError, NetworkFailed):
            return None

    async def close(self) -> None:
        """Cancel all background requests and wait until they have ended."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
