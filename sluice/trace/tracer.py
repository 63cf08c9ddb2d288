"""The tracer of one process: creates and connects the parts that record a trace, and ends it.

A failure of the tracer must not stop the program or change what it computes. Every call from a hook
goes through ``run_safely``; hooks that run at every step have their own ``try`` block instead.
After a failure the tracer detaches and records a note, and the program continues untraced.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.base.files import DISK_FULL_ERRNOS, DISK_FULL_MESSAGE, free_bytes
from sluice.base.pluralize import pluralize
from sluice.trace.event_bus import EventBus
from sluice.trace.objects.object_tracker import ObjectTracker
from sluice.trace.patches import Patches
from sluice.trace.program_events import TraceBegan, TraceEnded, TraceEnding, UnexpectedEvent
from sluice.trace.recording.event_recorder import EventRecorder
from sluice.trace.recording.recorder import Recorder
from sluice.trace.recording.step_recorder import StepRecorder
from sluice.trace.records.trace import TraceEnd, TraceNote, TraceStart
from sluice.trace.sampling.sampling import Sampling
from sluice.trace.sampling.step_statistics import peak_memory
from sluice.trace.settings import TraceSettings
from sluice.trace.thread_state import LocalState


class Tracer:
    """Implementation of ``TracerContext``.

    Args:
        folder: Folder for the files of this process; created at the first write.
        settings: Limits of time, memory and disk.
        describe: Returns the start record, which describes this process; called at the first write.
        clock: Monotonic time [ns].
        print_line: Prints one line for the user.
    """

    # Slots are used because reading a slot takes one memory access, and reading a dictionary entry
    # five. Each access is slow: the program evicts the tracer's data from the processor's cache.
    __slots__ = (
        "__weakref__", "_began_ns", "_describe", "bus", "clock", "events", "is_on", "local",
        "objects", "patches", "print_line", "recorder", "sampling", "settings", "steps",
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
        self.local, self.patches, self.bus = LocalState(), Patches(), EventBus()
        self.begin(folder)

    def begin(self, folder: Path) -> None:
        """Begin an empty trace: at the start, and in a forked process."""
        bus, clock, settings = self.bus, self.clock, self.settings
        self.recorder = Recorder(folder, settings, self._describe, clock=clock)
        self.objects = ObjectTracker()
        self.events = EventRecorder(self.recorder.interner, bus, clock=clock)
        self.sampling = Sampling(self.objects, self.recorder, bus, settings, clock=clock)
        self._began_ns = clock()
        self.steps = StepRecorder(
            self.events, self.sampling, self.recorder, bus, clock=clock, began_ns=self._began_ns
        )
        self.local.thread.begin_trace(self._began_ns)
        bus.publish(TraceBegan())

    def run_safely(self, work: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call a function of the tracer; a failure ends the trace, never the program."""
        try:
            work(*args, **kwargs)
        except Exception as error:  # a failure of the tracer must not end the program
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Detach after a failure of the tracer, and report it to the user."""
        if not self.is_on:
            return
        self.detach()
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        location = f" at {Path(frames[0].filename).name}:{frames[0].lineno}" if frames else ""
        text = f"{type(error).__name__}: {error}{location}"
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            folder = self.recorder.folder
            text = (
                f"{DISK_FULL_MESSAGE} {folder}: {error.strerror}, {free_bytes(folder):,} bytes "
                "are free on its disk"
            )
        lost_text = ""
        try:
            self.steps.deliver_pending()
            self.note("failed", text)
            self.recorder.flush()
            self.recorder.close()
        except Exception as second_error:  # for example, the disk is still full
            kind = type(second_error).__name__
            lost_text = f" The last seconds of the trace are lost ({kind})."
        self.print_line(
            f"sluice trace: tracing stopped ({text}); the program continues.{lost_text}"
        )

    def detach(self) -> None:
        """Restore everything that was patched."""
        self.is_on = False
        self.patches.restore()

    def end(self, raised: str) -> None:
        """Write the remaining records and detach."""
        self.end_process(raised)
        self.detach()

    def end_process(self, raised: str) -> None:
        """Write the remaining records of a process that exits now, without restoring patches."""
        if self.is_on:
            self.run_safely(self._write_end, raised)
        if self.is_on:
            self.is_on = False
            self.recorder.close()

    def _write_end(self, raised: str) -> None:
        self.bus.publish(TraceEnding())
        # End the predictions, so that the matched events of the running steps are recorded.
        for thread in self.events.threads:
            if thread.prediction.position >= 0:
                self.bus.publish(UnexpectedEvent(thread))
        self.steps.record_open_steps()
        self.local.thread.clear_step()
        self.steps.deliver_pending()
        if not self.recorder.has_records:
            return
        self.bus.publish(TraceEnded())
        if self.recorder.num_overflow_steps:
            text = (
                f"The events of {pluralize(self.recorder.num_overflow_steps, 'step')} were not "
                "recorded, because the trace has too many distinct event sequences."
            )
            self.note("full", text)
        host_bytes, device_bytes = peak_memory()
        record = TraceEnd(
            steps=self.steps.last_step,
            seconds=(self.clock() - self._began_ns) / 1e9,
            raised=raised,
            peak_host_bytes=host_bytes,
            peak_device_bytes=device_bytes,
        )
        self.recorder.write("end", record)
        self.steps.flush()

    def note(self, kind: Any, text: str) -> None:
        """Write a note for the reader of the trace."""
        self.recorder.write("note", TraceNote(step=self.steps.last_step, kind=kind, text=text))


def print_to_stderr(text: str) -> None:
    """Print one line to stderr; do nothing if stderr is closed."""
    try:
        print(text, file=sys.stderr)
    except (OSError, ValueError, AttributeError):  # stderr is closed or None
        return
