"""When a checkpoint is written: every so many epochs, or as often as costs little."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.training.checkpoint import save_checkpoint
from sluice.training.loop import TrainState

_PAUSE = 50.0
"""Training goes on for this many times the last checkpoint's cost before the next: 2 %."""
_FIRST_COST_S = 0.02
"""Taken for the cost before it is known, so the first is written after a second of training. Less
than that is trained again sooner than a process starts."""


class CheckpointWriter:
    """Write the states of one training that are due; which ones are changes no bit of it.

    Args:
        folder: As ``save_checkpoint`` takes it.
        subject: As ``save_checkpoint`` takes it.
        every_epochs: Write exactly every so many epochs. When absent, write once training went on
            for 50 times as long as the last checkpoint took: what a kill costs is that much.
        clock: Monotonic time [s]; training begins now.
    """

    def __init__(
        self,
        folder: Path,
        *,
        subject: Mapping[str, Any],
        every_epochs: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._folder, self._subject, self._every = folder, subject, every_epochs
        self._clock, self._last_end = clock, clock()
        self._cost_s = _FIRST_COST_S
        self.spent_s = 0.0
        """Time all checkpoints so far took [s]."""

    def offer(self, state: TrainState, *, must: bool = False) -> None:
        """Write ``state`` if it is due, or in any case when it ``must`` be.

        Raises:
            StorageError: As ``save_checkpoint``.
        """
        if not (must or self._due(len(state.history))):
            return
        began = self._clock()
        save_checkpoint(self._folder, state, subject=self._subject)
        self._last_end = self._clock()
        self._cost_s = self._last_end - began
        self.spent_s += self._cost_s

    def _due(self, epochs: int) -> bool:
        if self._every is not None:
            return epochs % self._every == 0
        return self._clock() - self._last_end >= _PAUSE * self._cost_s
