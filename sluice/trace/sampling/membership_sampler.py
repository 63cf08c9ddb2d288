"""Samples which parameters belong to which networks and optimizers, and the parameter values."""

from sluice.trace.objects.membership_snapshots import MembershipSnapshots
from sluice.trace.objects.object_tracker import ObjectTracker
from sluice.trace.recording.recorder import Recorder
from sluice.trace.records.parameter_values import ParameterValuesRecord
from sluice.trace.sampling.parameter_values import request_value_statistics


class MembershipSampler:
    """Samples all networks and optimizers, and the values of their parameters.

    Samples are taken before the first step and after about 1, 2, 4, 8, ... steps: a sample that
    becomes due in a predicted step is taken at the next fully recorded step. Networks and
    optimizers are also sampled after a change.
    """

    def __init__(self, objects: ObjectTracker, recorder: Recorder) -> None:
        self._objects, self._recorder = objects, recorder
        self._snapshots = MembershipSnapshots(objects)
        self._last_membership_step = self._restart_step = 0
        """Number of steps before the last sample of the membership, and before the last restart."""
        self._next_membership_step = self._next_values_step = 0
        """Number of steps after which the membership is sampled next, and after which the values
        are sampled next."""
        self._num_samples = 0
        """Number of samples of the membership so far."""
        self._unwritten_values: list[list[ParameterValuesRecord]] = []
        """Requested values that are not written yet. The list of a parameter is filled when the
        values of the parameter are read from the device."""
        self.due_step = 0
        """Number of steps after which the next sample of either kind is due."""

    def sample_if_due(self, step: int) -> None:
        """Take the samples that are due after ``step`` steps, before the next step."""
        # A program may add modules at every step, so the minimum interval between samples grows.
        is_change_due = (
            self._objects.has_changed
            and step - self._last_membership_step >= self._num_samples // 8
        )
        if is_change_due or step >= self._next_membership_step:
            self._last_membership_step, self._next_membership_step = step, self._next_due_step(step)
            self._num_samples += 1
            membership = self._snapshots.take(step + 1)
            if membership is not None:
                self._recorder.write("membership", membership)
        if step >= self._next_values_step:
            self._next_values_step = self._next_due_step(step)
            self._unwritten_values += request_value_statistics(
                self._objects, step + 1, self._recorder.device_reads
            )
        self.due_step = min(self._next_membership_step, self._next_values_step)

    def restart(self, step: int) -> None:
        """Sample before the next step, and then 1, 2, 4, 8 and so on steps later.

        Args:
            step: Number of steps so far.
        """
        self._restart_step = self.due_step = step
        self._next_membership_step = self._next_values_step = step

    def _next_due_step(self, step: int) -> int:
        """Return the number of steps after which the next sample is due.

        From one sample to the next, the number of steps since the last restart doubles.
        """
        return step + max(step - self._restart_step, 1)

    def ensure_first_sample(self, step: int) -> None:
        """Sample after ``step`` steps, if nothing was sampled yet."""
        if not self._num_samples:
            self.sample_if_due(step)

    def write_values(self) -> None:
        """Write the requested values, after they were read from the device."""
        for records in self._unwritten_values:
            for record in records:
                self._recorder.write("value", record)
        self._unwritten_values = []
