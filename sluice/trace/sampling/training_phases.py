"""Restarts frequent sampling when a new phase of the training begins: faults may begin late.

A phase begins with a new optimizer, such as one that trains a new head, or with a jump of the loss.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from torch import Tensor

from sluice.trace.recording.device_reads import BatchedDeviceReads
from sluice.trace.recording.ended_step import EndedStep

_MIN_STEPS = 64
"""Minimum number of steps before a second phase begins."""

_NUM_RECENT, _NUM_BASELINE = 32, 256
"""Numbers of losses that are compared. The loss has jumped if the median of the last 32 losses
exceeds the maximum of the 256 before them, or if all 32 are 0. Causes are other data, another loss
function, or a failure."""

_COMPARISON_INTERVAL = 16
"""Number of losses between two comparisons: half the number of recent losses, so that a jump is
found before its losses enter the baseline."""


class TrainingPhases:
    """Detects new phases of the training.

    If a phase began at step n, the next one begins at step 2 n or later. So the sampling rate still
    falls in a search that creates many optimizers, or if the loss jumps often.
    """

    def __init__(self) -> None:
        self._next_phase_step = _MIN_STEPS
        self._losses: deque[float] = deque(maxlen=_NUM_RECENT + _NUM_BASELINE)
        self._pending_reads, self._is_on_device = BatchedDeviceReads(), False
        """Losses that are not read yet, and whether some of them are on a device."""
        self._num_since_comparison = 0
        """Losses received since the last comparison."""
        self.has_loss_jump = False
        """Whether the loss has jumped since the current phase began."""

    def may_begin(self, step: int) -> bool:
        """Return whether enough steps have passed since the last phase began."""
        return step >= self._next_phase_step

    def begin(self, step: int) -> None:
        """Begin a phase after a step."""
        self._next_phase_step = 2 * step
        self._losses.clear()
        self.has_loss_jump = False

    def add_steps(self, rows: Iterable[EndedStep]) -> None:
        """Add the losses of ended steps; losses on a device wait for the next ``read``."""
        losses_by_step: list[tuple[int, list[Any]]] = []
        for row in rows:
            if row.ended_ns:
                losses_by_step.append((row.step, row.losses))
            else:  # repeated steps: step numbers and losses alternate in ``row.losses``
                losses_by_step += zip(row.losses[::2], row.losses[1::2], strict=True)
        # Repeated steps of two alternating optimizers arrive one optimizer after the other.
        losses_by_step.sort(key=itemgetter(0))
        losses = [*chain.from_iterable(of_step for _, of_step in losses_by_step)]
        self._pending_reads.request(losses, self._add_losses)
        self._is_on_device |= any(isinstance(loss, Tensor) and not loss.is_cpu for loss in losses)
        if not self._is_on_device:
            self.read()

    def read(self) -> None:
        """Read the losses that are still on a device."""
        self._pending_reads.read()
        self._is_on_device = False

    def _add_losses(self, losses: Sequence[float]) -> None:
        for loss in losses:
            self._losses.append(loss)
            self._num_since_comparison += 1
            if (
                self._num_since_comparison >= _COMPARISON_INTERVAL
                and len(self._losses) == _NUM_RECENT + _NUM_BASELINE
            ):
                self._num_since_comparison, values = 0, [*self._losses]
                recent, baseline = values[_NUM_BASELINE:], values[:_NUM_BASELINE]
                if statistics.median(recent) > max(baseline) or not any(recent):
                    self.has_loss_jump = True
