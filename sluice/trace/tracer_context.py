"""Interface of the tracer that hooks use."""

from collections.abc import Callable
from typing import Any, Protocol

from sluice.trace.event_bus import EventBus
from sluice.trace.objects.object_tracker import ObjectTracker
from sluice.trace.patches import Patches
from sluice.trace.recording.event_recorder import EventRecorder
from sluice.trace.recording.recorder import Recorder
from sluice.trace.recording.step_recorder import StepRecorder
from sluice.trace.sampling.sampling import Sampling
from sluice.trace.settings import TraceSettings
from sluice.trace.thread_state import LocalState


class TracerContext(Protocol):
    """Interface of the tracer for hooks: its parts, to which hooks report events, and its settings.

    Hooks keep a reference to the tracer, not to its parts, because a forked process gets new parts.
    """

    is_on: bool
    """Whether events are recorded; False after a failure or the end of the trace."""
    settings: TraceSettings
    clock: Callable[[], int]
    """Monotonic time [ns]."""
    print_line: Callable[[str], None]
    """Prints one line for the user."""
    local: LocalState
    """State of the calling thread."""
    patches: Patches
    """Patched functions of torch, restored when the trace ends."""
    bus: EventBus
    """Passes typed events to the parts that subscribe to them."""
    events: EventRecorder
    """Records the order of events in a step."""
    steps: StepRecorder
    """Records the steps of optimizers."""
    sampling: Sampling
    """Decides which steps are inspected in detail."""
    objects: ObjectTracker
    """Networks, parameters, optimizers and schedulers of the program."""
    recorder: Recorder
    """Receives records for the trace."""

    def run_safely(self, work: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call a function of the tracer; a failure ends the trace, never the program."""

    def fail(self, error: Exception) -> None:
        """End the trace after a failure of the tracer, and report it to the user."""

    def note(self, kind: Any, text: str) -> None:
        """Write a note for the reader of the trace."""
