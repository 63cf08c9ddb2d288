"""Buffers optimizer steps, and delivers them in groups to the recorder and the samplers."""

import threading
from collections.abc import Callable
from itertools import count, starmap
from typing import Any

from sluice.trace.event_bus import EventBus
from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.program_events import BufferedStepsReleased, PredictionMayBegin
from sluice.trace.recording.ended_step import EndedStep
from sluice.trace.recording.event_recorder import EventRecorder
from sluice.trace.recording.recorder import Recorder
from sluice.trace.sampling.sampling import Sampling
from sluice.trace.thread_state import ThreadState

_MAX_PENDING_STEPS = 64
"""Maximum number of ended steps that are buffered before they are delivered."""


class StepRecorder:
    """Numbers the optimizer steps of all threads, and buffers them until they are delivered.

    Args:
        events: Events of all threads since their last steps.
        sampling: Takes samples before and after a step.
        recorder: Writes the steps.
        bus: Publishes the delivered steps, and an event at each step after which a prediction may
            begin.
        clock: Monotonic time [ns].
        began_ns: Time at which the trace began [ns].
    """

    __slots__ = (
        "_bus", "_clock", "_delivery_step", "_events", "_last_end_ns", "_lock", "_pending_steps",
        "_recorder", "_sampling", "last_step", "step_numbers",
    )  # fmt: skip

    def __init__(
        self,
        events: EventRecorder,
        sampling: Sampling,
        recorder: Recorder,
        bus: EventBus,
        *,
        clock: Callable[[], int],
        began_ns: int,
    ) -> None:
        self._events, self._sampling, self._recorder = events, sampling, recorder
        self._bus, self._clock = bus, clock
        self._lock = threading.Lock()
        self.last_step = 0
        """Number of the last step of any thread."""
        self.step_numbers = count(1)
        """Yields the number of each next step, which is unique across threads."""
        self._last_end_ns = began_ns
        """End time of the last fully recorded step [ns]."""
        self._pending_steps: list[tuple[Any, ...]] = []
        """Fields of an ``EndedStep`` for each buffered entry."""
        self._delivery_step = 0
        """Number of the step at whose end, at the latest, the buffered steps are delivered."""

    def begin(self, thread: ThreadState, entry: OptimizerEntry) -> None:
        """Record that an optimizer is about to make a step, and take samples before it."""
        phases = self._sampling.phases
        # A new optimizer or a jump of the loss begins a training phase.
        if (not entry.num_steps or phases.has_loss_jump) and phases.may_begin(self.last_step):
            with self._lock:
                self.deliver_pending()
                self._sampling.begin_phase(self.last_step)
        flags = _step_flags(thread, entry)
        code = entry.step_codes.get(flags)
        if code is None:
            code = entry.step_codes[flags] = self._events.code("step", entry.index, flags=flags)
        thread.step.events += code, self._clock()
        if self._sampling.is_due(self.last_step):
            self._sampling.before_step(thread.step, entry, self.last_step)

    def end(self, thread: ThreadState, entry: OptimizerEntry) -> None:
        """Record the end of a step that an optimizer made or a gradient scaler skipped."""
        step = thread.step
        with self._lock:
            self.last_step = next(self.step_numbers)
            thread.num_steps += 1
            entry.num_steps += 1
            if step.pending_statistics is not None:
                self._sampling.after_step(step, entry, self.last_step)
            if thread.index < 0:  # the first event of the thread was a step
                self._events.assign_index(thread)
            now_ns = self._clock()
            since_recorded_step_ns = now_ns - self._last_end_ns
            statistics_ns, step.statistics_ns = step.statistics_ns, 0
            events = step.events
            # A plain tuple is faster than an EndedStep, which is created at delivery.
            self._pending_steps.append(
                (
                    self.last_step, thread.index, events, step.losses, step.clips, step.loss_scale,
                    now_ns, step.began_ns, since_recorded_step_ns, statistics_ns,
                )
            )  # fmt: skip
            thread.last_loss = step.losses[-1] if step.losses else None
            thread.clear_step()
            if statistics_ns or self.last_step >= self._delivery_step:
                self.deliver_pending()
            if now_ns >= self._recorder.flush_due_ns:
                self.flush()
                now_ns = self._clock()
            self._last_end_ns = step.began_ns = now_ns
            if not self._sampling.samples_norms:  # a sampled step cannot be predicted
                self._bus.publish(PredictionMayBegin(thread, events[::2], self._delivery_step))

    def add_repeated(self, *fields: Any) -> None:
        """Buffer steps that matched their prediction, given the fields of an ``EndedStep``."""
        with self._lock:
            self._pending_steps.append(fields)

    def deliver_pending(self) -> None:
        """Deliver the buffered steps, and determine the step of the next delivery.

        The recorder, the samplers and the subscribers receive the steps. Many steps are delivered
        at once, because code and data then stay in the processor's cache.
        """
        if not self._pending_steps:
            return
        steps, self._pending_steps = [*starmap(EndedStep, self._pending_steps)], []
        sampling = self._sampling
        sampling.add_steps(steps)
        self._delivery_step = self.last_step + min(
            max(sampling.budget.steps_until_due, 1), _MAX_PENDING_STEPS
        )
        self._recorder.add_steps(steps)
        sampling.phases.add_steps(steps)
        self._bus.publish(BufferedStepsReleased(steps))

    def flush(self) -> None:
        """Read the requested values from the device, and write all records."""
        self.deliver_pending()
        self._sampling.flush()

    def record_open_steps(self) -> None:
        """Record the events after the last step of each thread, at the end of the trace."""
        for thread in self._events.threads:
            if thread.step.events:
                self._recorder.record_open_events(self.last_step, thread.step.codes, thread.index)


def _step_flags(thread: ThreadState, entry: OptimizerEntry) -> tuple[str, ...]:
    """Return the flags of a step event; see ``TraceEventKind``."""
    # All gradients may be zero after ``zero_grad``, or if a gradient that was nonzero after the
    # backward pass is zero now.
    may_be_zero = thread.backward.is_followed_by_zeroing or (
        entry.gradient_check.last_nonzero_gradient is not None
        and entry.gradient_check.check_zeroing_once()
    )
    flags = entry.gradient_tracker.record_step(entry, may_be_zero=may_be_zero)
    if thread.optimizer_call.has_closure:
        flags = (*flags, "closure")
    if thread.in_scaler:
        flags = (*flags, "by scaler")
    if thread.backward.is_running:
        flags = (*flags, "in backward")
    if thread.edits.snapshots:
        thread.edits.detect()
        if thread.edits.is_edited:
            flags = (*flags, "edited")
    return flags
