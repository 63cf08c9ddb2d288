"""Records the events of each step in their order: the code and the time of each event."""

import threading
from collections.abc import Callable

from sluice.trace.event_bus import EventBus
from sluice.trace.program_events import UnexpectedEvent
from sluice.trace.recording.event_interner import EventInterner
from sluice.trace.records.events import TraceEventKind
from sluice.trace.thread_state import ThreadState

_MAX_EVENTS = 4096
"""Number of events of a step at which repeated blocks of events are folded: stored only once.
Usually only a step after a long evaluation reaches this number."""


class EventRecorder:
    """Records the events of all threads since their last steps.

    Args:
        interner: Assigns a code to each distinct event.
        bus: Publishes ``UnexpectedEvent`` when an event differs from the predicted event.
        clock: Monotonic time [ns].
    """

    __slots__ = ("_bus", "_clock", "_lock", "backward_codes", "interner", "threads")

    def __init__(self, interner: EventInterner, bus: EventBus, *, clock: Callable[[], int]) -> None:
        self.interner, self._bus, self._clock = interner, bus, clock
        self._lock = threading.Lock()
        self.threads: list[ThreadState] = []
        """States of the threads with events, by thread index."""
        self.backward_codes: set[int] = set()
        """Event codes of backward passes."""

    def code(
        self,
        kind: TraceEventKind,
        object_id: int = -1,
        related_id: int = -1,
        flags: tuple[str, ...] = (),
    ) -> int:
        """Return the code of an event; hooks of frequent events store the code."""
        code = self.interner.intern((kind, object_id, related_id, flags, 0))
        if kind == "backward":
            self.backward_codes.add(code)
        return code

    def record(self, thread: ThreadState, code: int) -> None:
        """Record an event by its code.

        If the event equals the predicted event, only the position in the prediction advances.
        """
        prediction = thread.prediction
        position = prediction.position
        if position >= 0:
            if prediction.codes[position] == code:
                prediction.position = position + 1
                return
            self._bus.publish(UnexpectedEvent(thread))
        step = thread.step
        step.events += code, self._clock()
        if len(step.events) > thread.max_events_length:
            if thread.index < 0:  # the first event: the limit of a new thread is 0
                self.assign_index(thread)
            else:
                self._fold_repeats(thread)

    def record_event(
        self,
        thread: ThreadState,
        kind: TraceEventKind,
        object_id: int = -1,
        related_id: int = -1,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Record an event of a thread by its fields."""
        self.record(thread, self.code(kind, object_id, related_id, flags))

    def mark_cleared_before_update(self, thread: ThreadState) -> None:
        """Correct the latest step event: gradients were cleared before the weights were updated.

        A "zero" event is inserted before the step event, and the gradient state in the flags of the
        step event becomes "zero".
        """
        events = thread.step.events
        code, time_ns = events[-2:]
        kind, object_id, related_id, flags, _ = self.interner.event(code)
        if kind == "step":  # the first flag of a step event is the state of the gradients
            step_code = self.code(kind, object_id, related_id, ("zero", *flags[1:]))
            events[-2:] = self.code("zero", object_id), time_ns, step_code, time_ns

    def assign_index(self, thread: ThreadState) -> None:
        """Assign an index to a thread at its first event."""
        with self._lock:
            thread.index = len(self.threads)
            self.threads.append(thread)
        thread.max_events_length = 2 * _MAX_EVENTS - 1
        thread.step.began_ns = thread.step.began_ns or self._clock()

    def _fold_repeats(self, thread: ThreadState) -> None:
        """Keep each repeated block once; if 2,048 or more events remain, keep the latest 1,024."""
        step = thread.step
        codes, positions = self.interner.fold_repeats(step.codes)
        if len(codes) >= _MAX_EVENTS // 2:
            codes, positions = codes[-_MAX_EVENTS // 4 :], positions[-_MAX_EVENTS // 4 :]
        times = step.events[1::2]
        step.events = [
            code_or_time
            for code, position in zip(codes, positions, strict=True)
            for code_or_time in (code, times[position])
        ]
