"""Decides which steps are sampled, and takes the samples before and after an optimizer step."""

from collections.abc import Callable, Sequence
from itertools import chain

from sluice.trace.event_bus import EventBus
from sluice.trace.inspection.fingerprints import RowFingerprintCache
from sluice.trace.objects.object_tracker import ObjectTracker, OptimizerEntry
from sluice.trace.program_events import PhaseBegan
from sluice.trace.recording.ended_step import EndedStep
from sluice.trace.recording.recorder import Recorder
from sluice.trace.records.step_statistics import (
    OptimizerStatistics,
    OutputStatistics,
    StepStatistics,
)
from sluice.trace.sampling.budget import SamplingBudget
from sluice.trace.sampling.membership_sampler import MembershipSampler
from sluice.trace.sampling.step_statistics import begin_statistics, end_statistics
from sluice.trace.sampling.training_phases import TrainingPhases
from sluice.trace.settings import TraceSettings
from sluice.trace.thread_state import OpenStep


class Sampling:
    """Decides which steps of a trace are sampled, and requests and writes their statistics.

    Args:
        objects: Networks, parameters and optimizers of the program.
        recorder: Receives the samples.
        bus: Publishes the beginning of a training phase.
        settings: Settings of the tracer: sample sizes and limits of the cost.
        clock: Monotonic time [ns].
    """

    __slots__ = (
        "_bus", "_clock", "_objects", "_recorder", "_settings", "_unwritten_statistics",
        "budget", "every_step_needed_by", "fingerprint_cache", "membership", "phases",
        "samples_norms", "samples_statistics",
    )  # fmt: skip

    def __init__(
        self,
        objects: ObjectTracker,
        recorder: Recorder,
        bus: EventBus,
        settings: TraceSettings,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._objects, self._recorder, self._settings = objects, recorder, settings
        self._bus, self._clock = bus, clock
        self.samples_norms = True
        """Whether the norms of gradients and weights are sampled in the next step."""
        self.samples_statistics = True
        """Whether all other statistics are sampled in the next step, too."""
        self.every_step_needed_by: set[str] = set()
        """Names of the parts of the tracer that need every step to be recorded fully."""
        self.fingerprint_cache = RowFingerprintCache()
        self.budget = SamplingBudget(
            cost_share=settings.cost_share, max_interval=settings.max_steps_between_samples
        )
        self.membership = MembershipSampler(objects, recorder)
        self.phases = TrainingPhases()
        self._unwritten_statistics: list[
            tuple[int, list[OptimizerStatistics], list[list[OutputStatistics]]]
        ] = []
        """Requested statistics that are not written yet: step number, statistics of the optimizer,
        and statistics of each module output. The lists are filled when the values are read from the
        device."""

    def begin_phase(self, step: int) -> None:
        """Begin a training phase: sample the next step, and reset the sampling intervals."""
        self.phases.begin(step)
        self.budget.restart()
        self.membership.restart(step)
        for network in self._objects.networks.entries:
            network.next_inspection_step = step
        self._bus.publish(PhaseBegan())
        self.samples_norms = True

    def is_due(self, step: int) -> bool:
        """Return whether anything must be sampled before the next step.

        Args:
            step: Number of steps so far.
        """
        return self.samples_norms or self._objects.has_changed or step >= self.membership.due_step

    def before_step(self, open_step: OpenStep, entry: OptimizerEntry, step: int) -> None:
        """Take the samples that are due before an optimizer updates its parameters.

        Args:
            open_step: Events, losses and statistics since the last step.
            entry: Optimizer that is about to make a step.
            step: Number of steps so far.
        """
        began_ns = self._clock()
        self.membership.sample_if_due(step)
        if self.samples_norms:
            open_step.pending_statistics = begin_statistics(
                entry, sample_size=self._settings.sampled_weights
            )
        open_step.add_cost(self._clock() - began_ns)

    def after_step(self, open_step: OpenStep, entry: OptimizerEntry, step: int) -> None:
        """Request the statistics of step number ``step``, if ``before_step`` sampled this step."""
        pending = open_step.pending_statistics
        if pending is None:
            return
        began_ns = self._clock()
        statistics = end_statistics(
            entry,
            pending,
            self._objects,
            self._recorder.device_reads,
            sample_size=self._settings.sampled_weights,
        )
        self._unwritten_statistics.append((step, statistics, open_step.output_statistics))
        open_step.pending_statistics, open_step.output_statistics = None, []
        open_step.add_cost(self._clock() - began_ns)

    def add_steps(self, steps: Sequence[EndedStep]) -> None:
        """Add the times of ended steps, and decide what is sampled in the next step."""
        is_due = False
        for step in steps:
            if step.ended_ns:
                is_due = self.budget.add_step(
                    step_ns=step.since_recorded_step_ns, cost_ns=step.statistics_ns
                )
            else:  # repeated steps: step numbers and losses alternate in ``step.losses``
                self.budget.add_repeats(len(step.losses) // 2)
        self.samples_norms, self.samples_statistics = (
            is_due,
            is_due and self.budget.is_next_sample_full,
        )

    def flush(self) -> None:
        """Read the requested values from the device, and write all records."""
        began_ns, num_sampled_steps = self._clock(), len(self._unwritten_statistics)
        self._recorder.read_device_values()
        self.phases.read()
        for step, optimizers, outputs in self._unwritten_statistics:
            record = StepStatistics(
                step=step,
                optimizers=tuple(optimizers),
                outputs=tuple(chain.from_iterable(outputs)),
            )
            self._recorder.write_statistics(record)
        self._unwritten_statistics = []
        self.membership.write_values()
        self._recorder.flush()
        self.budget.add_flush(cost_ns=self._clock() - began_ns, num_sampled_steps=num_sampled_steps)
