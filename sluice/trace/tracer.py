"""Collects events from the hooks of one process and turns them into trace records.

The tracer must not stop the program or change what it computes. Every call from a hook goes through
``run_safely``, or has its own ``try`` block where it runs at every step. After a failure the tracer
records a note and detaches, and the program continues untraced.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from itertools import chain, count, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.base.files import DISK_FULL_ERRNOS, DISK_FULL_MESSAGE, free_bytes
from sluice.trace.fast_path import StepPatternPredictor
from sluice.trace.fingerprints import RowFingerprintCache
from sluice.trace.gradient_checks import GradientChecks
from sluice.trace.hooks.gradient_edits import detect_gradient_edit
from sluice.trace.membership_sampler import MembershipSampler
from sluice.trace.object_index import ObjectIndex
from sluice.trace.object_tracker import ObjectTracker, OptimizerEntry, SchedulerEntry
from sluice.trace.patches import Patches
from sluice.trace.recorder import EndedStep, Recorder
from sluice.trace.records.events import TraceEventKind
from sluice.trace.records.step_statistics import (
    OptimizerStatistics,
    OutputStatistics,
    StepStatistics,
)
from sluice.trace.records.trace import TraceEnd, TraceNote, TraceStart
from sluice.trace.sampling_budget import SamplingBudget
from sluice.trace.settings import TraceSettings
from sluice.trace.step_statistics import PendingStep, begin_statistics, end_statistics, peak_memory
from sluice.trace.thread_state import ThreadState
from sluice.trace.training_phases import TrainingPhases

if TYPE_CHECKING:  # these modules import the tracer
    from sluice.trace.hooks.functional_models import FunctionalModelWatch
    from sluice.trace.hooks.inputs import InputWatch
    from sluice.trace.hooks.losses import LossWatch
    from sluice.trace.hooks.manual_losses import ManualLossWatch
    from sluice.trace.hooks.manual_updates import ManualUpdateWatch
    from sluice.trace.nonfinite_guard import NonFiniteGuard

_MAX_PENDING_STEPS = 64
"""Maximum number of ended steps that are buffered before they are passed on."""

_MAX_EVENTS = 4096
"""Number of events without a step, as in a long evaluation, from which repeats are folded."""


class _LocalState(threading.local):
    """Creates the state of each thread at its first access."""

    def __init__(self) -> None:
        self.thread = ThreadState()


class Tracer:
    """Tracer of one process.

    Args:
        folder: Folder for the files of this process; created at the first write.
        settings: Limits of time, memory and disk.
        describe: Returns the description of this process; called at the first write.
        clock: Monotonic time [ns].
        print_line: Prints one line for the user.
    """

    # Reading a slot takes one memory access, reading a dictionary entry five. Code that runs
    # between two operations of the program finds its data out of the processor's cache.
    __slots__ = (
        "__weakref__", "_began_ns", "_describe", "_last_step_ns", "_lock", "_pending_due_step",
        "_pending_measures", "_pending_steps", "_thread_states", "after_step",
        "all_backward_codes", "backward_event_codes", "before_end", "before_step", "clock",
        "fast_path", "fingerprint_cache", "forward_inspector", "functional_models",
        "gradient_checks", "inputs", "is_on", "local", "losses", "manual_losses",
        "manual_updates", "membership_sampler", "nonfinite_guard", "objects", "on_begin",
        "on_end", "patches", "phases", "print_line", "recorder", "samples_norms",
        "samples_statistics", "sampling_budget", "schedulers", "settings", "step_numbers",
        "steps",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        settings: TraceSettings,
        describe: Callable[[], TraceStart],
        *,
        clock: Callable[[], int],
        print_line: Callable[[str], None],
    ) -> None:
        self.settings, self.clock = settings, clock
        self._describe, self.print_line = describe, print_line
        self.is_on = True
        self.local = _LocalState()
        """State of the calling thread. Not a property, because every event reads it."""
        self.patches = Patches()
        self.on_begin: list[Callable[[], None]] = []
        """Callbacks that reset the state of hooks when a new trace begins."""
        self.before_end: list[Callable[[], None]] = []
        """Callbacks at the end of the trace that may still end a step."""
        self.on_end: list[Callable[[], None]] = []
        """Callbacks at the end of the trace that write remaining records."""
        self.before_step: list[Callable[[OptimizerEntry, Any], None]] = []
        """Callbacks before each optimizer step."""
        self.after_step: list[Callable[[OptimizerEntry, Any], None]] = []
        """Callbacks after each optimizer step."""
        self.nonfinite_guard: NonFiniteGuard | None = None
        """Stops the program or skips steps after non-finite losses; None unless enabled."""
        self.inputs: InputWatch | None = None
        self.losses: LossWatch | None = None
        self.functional_models: FunctionalModelWatch
        """Set by ``hooks.no_grad_listener``."""
        self.manual_losses: ManualLossWatch | None = None
        self.manual_updates: ManualUpdateWatch | None = None
        """None once an optimizer was created or made a step."""
        self.begin(folder)

    def begin(self, folder: Path) -> None:
        """Begin an empty trace: at the start, and in a forked process."""
        self.recorder = Recorder(folder, self.settings, self._describe, clock=self.clock)
        self.objects = ObjectTracker()
        self.schedulers: ObjectIndex[SchedulerEntry]
        self.forward_inspector: Any
        """Inspector of forward passes; set by ``hooks.modules``."""
        self.sampling_budget = SamplingBudget(
            cost_share=self.settings.cost_share,
            max_interval=self.settings.max_steps_between_samples,
        )
        self.fingerprint_cache = RowFingerprintCache()
        self.membership_sampler = MembershipSampler(self.objects, self.recorder)
        self.gradient_checks = GradientChecks(self)
        self.fast_path = StepPatternPredictor(self)
        self.phases = TrainingPhases(self)
        self.steps, self.step_numbers = 0, count(1)
        """Number of the last step, and the counter that hands out the next ones (unique across
        threads)."""
        self.samples_norms = True
        """Whether the norms of gradients and weights are sampled in the next step."""
        self.samples_statistics = True
        """Whether all other statistics are sampled in the next step, too."""
        self.backward_event_codes: dict[tuple[str, ...], int] = {}
        """Event codes of backward passes by their flags."""
        self.all_backward_codes: set[int] = set()
        """Set of all event codes of backward passes."""
        self._pending_steps: list[tuple[Any, ...]] = []
        self._pending_due_step = 0
        """Step at which the buffered steps are passed on."""
        self._thread_states: list[ThreadState] = []
        self._began_ns = self._last_step_ns = self.clock()
        self._pending_measures: list[
            tuple[int, list[OptimizerStatistics], list[list[OutputStatistics]]]
        ] = []
        self._lock = threading.Lock()
        thread = self.local.thread
        thread.reset_step()
        thread.index, thread.max_events_length = -1, 0
        thread.pending_step, thread.output_measures = None, []
        thread.position, thread.expected, thread.repeated_patterns, thread.step_began_ns = (
            -1,
            None,
            [],
            self._began_ns,
        )
        thread.optimizer_entry = thread.network_entry = None
        thread.last_loss = thread.nonfinite_input = None
        thread.last_network, thread.inputs, thread.output, thread.call_group = -1, (), None, None
        for reset in self.on_begin:
            reset()

    def run_safely(self, work: Callable[..., None], *args: Any) -> None:
        """Call a function of the tracer; a failure ends the trace, never the program."""
        try:
            work(*args)
        except Exception as error:  # the edge of the program that is traced
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Detach after a failure of the tracer, and report it to the user."""
        if not self.is_on:
            return
        self.detach()
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {Path(frames[0].filename).name}:{frames[0].lineno}" if frames else ""
        text = f"{type(error).__name__}: {error}{where}"
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            folder = self.recorder.folder
            text = (
                f"{DISK_FULL_MESSAGE} {folder}: {error.strerror}, {free_bytes(folder):,} bytes "
                "are free on its disk"
            )
        loss_text = ""
        try:
            self._add_pending_steps()
            self.recorder.write("note", TraceNote(step=self.steps, kind="failed", text=text))
            self.recorder.flush()
            self.recorder.close()
        except Exception as second:  # the folder is full or removed, as in the first error
            loss_text = f" The last seconds of the trace are lost ({type(second).__name__})."
        self.print_line(
            f"sluice trace: tracing stopped ({text}); the program continues.{loss_text}"
        )

    def detach(self) -> None:
        """Restore everything that was patched."""
        self.is_on = False
        self.patches.restore()

    def end(self, raised: str) -> None:
        """Write the remaining records and detach."""
        if not self.is_on:
            return
        self.run_safely(self._write_end, raised)
        if self.is_on:
            self.detach()
            self.recorder.close()

    def end_process(self, raised: str) -> None:
        """Write the remaining records of a process that exits now, without restoring patches."""
        if self.is_on:
            self.run_safely(self._write_end, raised)
        if self.is_on:
            self.is_on = False
            self.recorder.close()

    def _write_end(self, raised: str) -> None:
        for finish in self.before_end:
            finish()
        current_thread = self.local.thread
        for thread in self._thread_states:
            if thread.position >= 0:
                self.fast_path.stop(thread)
            if thread.events:
                open_step = ThreadState()
                open_step.events, open_step.index = thread.events, thread.index
                self.recorder.record_open_events(self.steps, open_step)
        current_thread.reset_step()
        self._add_pending_steps()
        if not self.recorder.has_records:
            return
        for finish in self.on_end:
            finish()
        if self.recorder.num_overflow_steps:
            text = (
                f"{self.recorder.num_overflow_steps} steps had event sequences beyond the maximum "
                "number of distinct ones; only their number is recorded."
            )
            self.note("full", text)
        seconds = (self.clock() - self._began_ns) / 1e9
        host, device = peak_memory()
        record = TraceEnd(
            steps=self.steps,
            seconds=seconds,
            raised=raised,
            peak_host_bytes=host,
            peak_device_bytes=device,
        )
        self.recorder.write("end", record)
        self.flush()

    def note(self, kind: Any, text: str) -> None:
        """Write a note for the reader of the trace."""
        self.recorder.write("note", TraceNote(step=self.steps, kind=kind, text=text))

    def on_structure_change(self) -> None:
        """Handle that a module or parameter was added to some network."""
        self.objects.invalidate_structure()
        thread = self.local.thread
        if thread.position >= 0:
            self.fast_path.stop(thread)

    def record_event(
        self,
        thread: ThreadState,
        kind: TraceEventKind,
        object_id: int = -1,
        related_id: int = -1,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Record an event of a thread."""
        self.record_code(thread, self.event_code(kind, object_id, related_id, flags))

    def record_code(self, thread: ThreadState, code: int) -> None:
        """Record an event by its code, or match it with the predicted one."""
        position = thread.position
        if position >= 0:
            if thread.expected_codes[position] == code:
                thread.position = position + 1
                return
            self.fast_path.stop(thread)
        thread.events += code, self.clock()
        if len(thread.events) > thread.max_events_length:
            self.compact_events(thread)

    def event_code(
        self,
        kind: TraceEventKind,
        object_id: int = -1,
        related_id: int = -1,
        flags: tuple[str, ...] = (),
    ) -> int:
        """Return the code of an event; hooks that record it at every step keep the code."""
        return self.recorder.interner.intern((kind, object_id, related_id, flags, 0))

    def mark_cleared_before_update(self, thread: ThreadState) -> None:
        """Correct the last recorded step: its gradients were cleared after it was recorded."""
        code, when = thread.events[-2:]
        kind, object_id, related_id, flags, _ = self.recorder.interner.event(code)
        if kind == "step":
            step = self.event_code(kind, object_id, related_id, ("zero", *flags[1:]))
            thread.events[-2:] = self.event_code("zero", object_id), when, step, when

    def compact_events(self, thread: ThreadState) -> None:
        """Assign a thread its index at its first event; fold repeats if it has too many events."""
        if thread.index < 0:
            thread.index = len(self._thread_states)
            self._thread_states.append(thread)
            thread.max_events_length = 2 * _MAX_EVENTS - 1
            thread.step_began_ns = thread.step_began_ns or self.clock()
        if len(thread.events) >= 2 * _MAX_EVENTS:
            shown, positions = self.recorder.interner.fold_repeats(thread.codes)
            if len(shown) >= _MAX_EVENTS // 2:  # no repeats: keep the latest events
                shown, positions = shown[-_MAX_EVENTS // 4 :], positions[-_MAX_EVENTS // 4 :]
            times = thread.events[1::2]
            kept = ((code, times[i]) for code, i in zip(shown, positions, strict=True))
            thread.events = [*chain.from_iterable(kept)]

    def begin_step(self, thread: ThreadState, entry: OptimizerEntry) -> None:
        """Record the step that an optimizer is about to make, and take samples before it."""
        if not entry.steps:
            self.manual_updates = None
        if (not entry.steps or self.phases.has_loss_jump) and self.phases.may_begin():
            with self._lock:
                self._add_pending_steps()
                self.phases.begin()
        may_be_zero = thread.is_zeroed_after_backward or (
            entry.gradient_sample.last_nonzero is not None and entry.gradient_sample.is_cleared()
        )
        flags = entry.gradient_tracker.state_at_step(entry, may_be_zero=may_be_zero)
        if thread.has_closure or thread.in_scaler or thread.in_backward:
            flags = (
                *flags,
                *("closure",) * thread.has_closure,
                *("by scaler",) * thread.in_scaler,
                *("in backward",) * thread.in_backward,
            )
        if thread.gradient_snapshots:
            detect_gradient_edit(thread)
            flags += ("edited",) * thread.has_gradient_edit
        code = entry.step_codes.get(flags)
        if code is None:
            code = entry.step_codes[flags] = self.event_code("step", entry.index, flags=flags)
        thread.events += code, self.clock()
        if (
            self.samples_norms
            or self.objects.is_stale
            or self.steps >= self.membership_sampler.due_step
        ):
            began = self.clock()
            self.membership_sampler.sample_if_due(self.steps)
            if self.samples_norms:
                thread.pending_step = begin_statistics(entry, sampled=self.settings.sampled_weights)
            thread.statistics_ns += self.clock() - began

    def end_step(self, thread: ThreadState, entry: OptimizerEntry) -> None:
        """Close a step that was made, or skipped by a gradient scaler."""
        with self._lock:
            self.steps = next(self.step_numbers)
            thread.steps += 1
            entry.steps += 1
            if thread.pending_step is not None:
                self._end_statistics(thread, entry, thread.pending_step)
            if thread.index < 0:
                self.compact_events(thread)
            now = self.clock()
            took, spent, thread.statistics_ns = now - self._last_step_ns, thread.statistics_ns, 0
            events = thread.events
            # A plain tuple with the fields of EndedStep, which is created later, when the steps are
            # passed on.
            self._pending_steps.append(
                (
                    self.steps, thread.index, events, thread.losses, thread.clips,
                    thread.loss_scale, now, thread.step_began_ns, took, spent,
                )
            )  # fmt: skip
            thread.last_loss = thread.losses[-1] if thread.losses else None
            thread.reset_step()
            if spent or self.steps >= self._pending_due_step:
                self._add_pending_steps()
            if now >= self.recorder.flush_due_ns:
                self.flush()
                now = self.clock()
            self._last_step_ns = thread.step_began_ns = now
            if not self.samples_norms:
                self.fast_path.start(thread, events[::2], self._pending_due_step)

    def add_repeated_steps(self, *fields: Any) -> None:
        """Buffer steps that matched their prediction, given the fields of an EndedStep."""
        with self._lock:
            self._pending_steps.append(fields)

    def _add_pending_steps(self) -> None:
        """Pass the buffered steps on, and determine which step is sampled next.

        Passing on many steps at once costs far less than one at a time, because code and data stay
        in the processor's cache.
        """
        if not self._pending_steps:
            return
        rows, self._pending_steps = [*starmap(EndedStep, self._pending_steps)], []
        is_due = False
        for row in rows:
            if row.ended_ns:
                is_due = self.sampling_budget.add_step(
                    step_ns=row.took_ns, cost_ns=row.statistics_ns
                )
            else:
                self.sampling_budget.add_repeats(len(row.losses) // 2)
        self.samples_norms, self.samples_statistics = (
            is_due,
            is_due and self.sampling_budget.is_full_sample,
        )
        self._pending_due_step = self.steps + min(
            max(self.sampling_budget.steps_until_due, 1), _MAX_PENDING_STEPS
        )
        self.recorder.add_steps(rows)
        self.phases.add_steps(rows)
        self.fast_path.observe_steps(rows)

    def _end_statistics(
        self, thread: ThreadState, entry: OptimizerEntry, pending: PendingStep
    ) -> None:
        began = self.clock()
        statistics = end_statistics(
            entry,
            pending,
            self.objects,
            self.recorder.device_reads,
            sampled=self.settings.sampled_weights,
        )
        self._pending_measures.append((self.steps, statistics, thread.output_measures))
        thread.pending_step, thread.output_measures = None, []
        thread.statistics_ns += self.clock() - began

    def flush(self) -> None:
        """Read the requested values from the device, and write all records."""
        self._add_pending_steps()
        began, num = self.clock(), len(self._pending_measures)
        self.recorder.read_device_values()
        self.phases.read()
        for step, optimizers, outputs in self._pending_measures:
            record = StepStatistics(
                step=step,
                optimizers=tuple(optimizers),
                outputs=tuple(one for values in outputs for one in values),
            )
            self.recorder.write_measures(record)
        self._pending_measures = []
        self.membership_sampler.write()
        self.recorder.flush()
        self.sampling_budget.add_flush(cost_ns=self.clock() - began, num_statistics=num)


def print_to_stderr(text: str) -> None:
    """Print one line to stderr; do nothing if stderr is closed."""
    try:
        print(text, file=sys.stderr)
    except (OSError, ValueError, AttributeError):  # stderr is closed or None
        return
