"""What is going on in one thread of the program right now."""

from collections import deque
from typing import Any

from sluice.trace.evidence.measures import OutputMeasure
from sluice.trace.measuring import StepInWork
from sluice.trace.words import Code


class Lane:
    """The fields of one thread."""

    def __init__(self) -> None:
        self.number = -1
        """Of the thread; -1 until it made its first mark."""
        self.room = 0
        """So many marks may wait; 0 until the first one."""
        self.in_forward = False
        self.inspecting = False
        """The modules inside the forward that runs are looked at, too."""
        self.in_backward = False
        self.in_mode = False
        self.in_schedule = False
        self.in_scaler = False
        self.stepping: Any = None
        """The optimizer whose step runs."""
        self.entry: Any = None
        """Its entry."""
        self.has_closure = False
        self.network: Any = None
        """The entry of the network whose forward runs."""
        self.measures = False
        """The outputs of its modules are measured."""
        self.work: StepInWork | None = None
        """What was asked for before the step that runs."""
        self.outputs: list[list[OutputMeasure]] = []
        """Measured since the last step with statistics."""
        self.called = -1
        """Index of the network that was called last; loss functions are no networks."""
        self.given: tuple[Any, ...] = ()
        """Weak references to the tensors it was given."""
        self.bad_input: Any = None
        """The fact of an input that is not finite, while the network runs on it."""
        self.made: Any = None
        """Weak reference to what the last network returned."""
        self.group: Any = None
        """The calls of its kind."""
        self.compared: Any = None
        """The last loss function that can be differentiated: name, weak input and target, rest."""
        self.continued: Any = None
        """Weak reference to the input of which the last loss's targets are the next numbers."""
        self.means: deque[Any] = deque(maxlen=8)
        """Weak references to the last losses that are means."""
        self.is_raw_mean = False
        """The loss of the backward pass that runs is a mean that nothing divides."""
        self.last_loss: Any = None
        """Of the last step."""
        self.begin_word()
        self.loader = -1
        self.steps = 0
        """Steps that ended in this thread."""
        self.spent = 0
        """Time that statistics took since the last step [ns]."""

    def clear_before_update(self) -> None:
        """Hear that the step that was marked last finds gradients that were cleared since."""
        kind, subject, about, flags, block = self.marks[-1]
        if kind == "step":
            self.marks[-1] = kind, subject, about, ("zero", *flags[1:]), block
            self.marks.insert(-1, ("zero", subject, -1, (), 0))
            self.times.insert(-1, self.times[-1])

    def begin_word(self) -> None:
        """Forget what led to the step that ended."""
        self.marks: list[Code] = []
        self.times: list[int] = []
        self.losses: list[Any] = []
        self.clips: list[tuple[int, Any, float]] = []
        self.scale: Any = None
        self.has_scaled = False
        self.zero_after_backward = False
        self.sealed: list[tuple[Any, Any, int, Any]] = []
        """Parameters, their gradients after several backward passes, versions and sums of these."""
        self.is_edited = False
        """The program changed such gradients itself."""
        self.inspected: tuple[int, ...] = ()
        """Networks whose outputs were measured since the last step."""
