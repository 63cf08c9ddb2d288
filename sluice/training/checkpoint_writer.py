"""Writes checkpoints at a fixed interval, or as often as possible with 2 % overhead."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.training.checkpoint import save_checkpoint
from sluice.training.train_state import TrainState

_MIN_INTERVAL_RATIO = 50.0
"""Minimum time between checkpoints, as a multiple of the time that the last checkpoint took. The
overhead is therefore at most 2 %."""
_FIRST_DURATION_S = 0.02
"""Assumed duration of a checkpoint before the first is written [s]. So the first checkpoint is due
after one second of training (50 times this duration). An earlier checkpoint would save less time
than the restart of a process takes."""


class CheckpointWriter:
    """Writes the checkpoints of one training when they are due.

    The times of the checkpoints do not affect the result of the training.

    Args:
        folder: Folder of the training, which may also contain its event log.
        subject: Everything that determines the result bit for bit (settings, data, seed), by name,
            as JSON values.
        every_epochs: Interval between checkpoints [epochs]. If None, a checkpoint is due when the
            training has run for 50 times the duration of the last checkpoint, even within an
            epoch. If the process is killed, about this time of training is lost at most.
        clock: Monotonic time [s]. The training is assumed to start when this object is created.
    """

    def __init__(
        self,
        folder: Path,
        *,
        subject: Mapping[str, Any],
        every_epochs: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._folder, self._subject, self._every_epochs = folder, subject, every_epochs
        self._clock, self._last_end_s = clock, clock()
        self._last_duration_s = _FIRST_DURATION_S
        self.spent_s = 0.0
        """Total time of all checkpoints so far [s]."""

    def is_due(self) -> bool:
        """Return whether a checkpoint within an epoch is due; cheap enough to call at every step.

        Always False if ``every_epochs`` is set.
        """
        if self._every_epochs is not None:
            return False
        return self._clock() - self._last_end_s >= _MIN_INTERVAL_RATIO * self._last_duration_s

    def write_if_due(self, state: TrainState, *, force: bool = False) -> None:
        """Write the state after an epoch if a checkpoint is due, or any state with ``force``.

        Raises:
            StorageError: The folder cannot be written or the disk is full.
        """
        if not (force or self._is_due_after(len(state.history))):
            return
        started_at = self._clock()
        save_checkpoint(self._folder, state, subject=self._subject)
        self._last_end_s = self._clock()
        self._last_duration_s = self._last_end_s - started_at
        self.spent_s += self._last_duration_s

    def _is_due_after(self, epochs: int) -> bool:
        if self._every_epochs is not None:
            return epochs % self._every_epochs == 0
        return self.is_due()
