"""Detects jumps of the loss, at which a new phase of the training begins.

In a new phase, samples are taken as often as at the start of the training, because faults may begin
late. A phase also begins with a new optimizer, for example for a new head (see ``StepRecorder``).
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

_MIN_FIRST_PHASE_STEPS = 64
"""Minimum number of steps before the second phase begins."""

_NUM_RECENT_LOSSES = 32
"""Number of latest losses that are compared with the baseline. The loss has jumped if the median of
the latest losses exceeds the maximum of the baseline, or if all latest losses are 0. Possible
causes are a change of the data or of the loss function, or a failure."""

_NUM_BASELINE_LOSSES = 256
"""Number of losses in the baseline, which precede the recent losses."""

_COMPARISON_INTERVAL = 16
"""Number of losses from one comparison to the next. It is half the number of recent losses, so that
a jump is detected before its losses become part of the baseline."""


class TrainingPhases:
    """Detects jumps of the loss, and limits how often a phase begins.

    If a phase began at step n, the next phase begins at step 2 n or later. So the sampling interval
    still grows if the loss jumps often, or in a search that creates many optimizers.
    """

    def __init__(self) -> None:
        self._next_phase_step = _MIN_FIRST_PHASE_STEPS
        """Number of steps after which another phase may begin."""
        self._losses: deque[float] = deque(maxlen=_NUM_RECENT_LOSSES + _NUM_BASELINE_LOSSES)
        """Latest losses of the current phase: the baseline, then the recent losses."""
        self._pending_reads, self._has_device_losses = BatchedDeviceReads(), False
        """Losses that are not read yet, and whether any such loss is on a device."""
        self._num_uncompared_losses = 0
        """Number of losses received since the last comparison."""
        self.has_loss_jump = False
        """Whether the loss has jumped since the current phase began."""

    def may_begin(self, step: int) -> bool:
        """Return whether a phase may begin after ``step`` steps.

        False if too few steps were made since the last phase began.
        """
        return step >= self._next_phase_step

    def begin(self, step: int) -> None:
        """Begin a phase after ``step`` steps."""
        self._next_phase_step = 2 * step
        self._losses.clear()
        self.has_loss_jump = False

    def add_steps(self, steps: Iterable[EndedStep]) -> None:
        """Add the losses of ended steps; losses on a device wait for the next ``read``."""
        losses_by_step: list[tuple[int, list[Any]]] = []
        for step in steps:
            if step.ended_ns:
                losses_by_step.append((step.step, step.losses))
            else:  # repeated steps: step numbers and losses alternate in ``step.losses``
                losses_by_step += zip(step.losses[::2], step.losses[1::2], strict=True)
        # If two optimizers alternate, their repeated steps arrive grouped by optimizer.
        losses_by_step.sort(key=itemgetter(0))
        losses = [*chain.from_iterable(step_losses for _, step_losses in losses_by_step)]
        self._pending_reads.request(losses, self._add_losses)
        self._has_device_losses |= any(
            isinstance(loss, Tensor) and not loss.is_cpu for loss in losses
        )
        if not self._has_device_losses:
            self.read()

    def read(self) -> None:
        """Read the losses that are still on a device."""
        self._pending_reads.read()
        self._has_device_losses = False

    def _add_losses(self, losses: Sequence[float]) -> None:
        for loss in losses:
            self._losses.append(loss)
            self._num_uncompared_losses += 1
            if (
                self._num_uncompared_losses >= _COMPARISON_INTERVAL
                and len(self._losses) == _NUM_RECENT_LOSSES + _NUM_BASELINE_LOSSES
            ):
                self._num_uncompared_losses, values = 0, [*self._losses]
                baseline = values[:_NUM_BASELINE_LOSSES]
                recent_losses = values[_NUM_BASELINE_LOSSES:]
                if statistics.median(recent_losses) > max(baseline) or not any(recent_losses):
                    self.has_loss_jump = True
