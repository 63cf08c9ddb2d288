"""What is going on in one thread of the program right now."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sluice.trace.evidence.measures import OutputMeasure
from sluice.trace.measuring import StepInWork


@dataclass(slots=True, eq=False)
class Order:
    """What one step of a thread is made of, from the step before it to its own optimizer's."""

    word: list[int]
    """Codes of its marks, and an end that no code is."""
    told: list[int]
    """Its marks, without times."""
    counts: "dict[Order, int]" = field(default_factory=dict)
    """So often which order came next."""
    next: "Order | None" = None
    """The one that is expected then; None where every step is looked at closely."""
    stepper: Any = None
    """Entry of the optimizer that ends it; known when it is expected."""
    repeated: list[Any] = field(default_factory=list)
    """Of the steps that repeated it and are not told yet, number and losses in turn."""


@dataclass(slots=True, eq=False)
class Lane:
    """The fields of one thread; slots, as every event reads some."""

    number: int = -1
    """Of the thread; -1 until it made its first mark."""
    room: int = 0
    """So many numbers of marks may wait; 0 until the first one."""
    marks: list[int] = field(default_factory=list)
    """What led to the step that comes next: of each mark its code in the word book, and when it was
    by the clock [ns]. One list, as every mark is made in a hurry."""
    losses: list[Any] = field(default_factory=list)
    """Of the backward passes among them."""
    order: Order | None = None
    """The one that is expected, while steps repeat one."""
    word: list[int] = field(default_factory=list)
    """Its codes and end."""
    at: int = -1
    """Place in that word, while a step repeats it; -1 in a step that is looked at closely."""
    last: int = -1
    """Place of the optimizer's step in it."""
    repeats_left: int = 0
    """Steps until one is looked at closely again."""
    repeating: list[Order] = field(default_factory=list)
    """Those that were repeated since one was."""
    clips: list[tuple[int, Any, float]] = field(default_factory=list)
    """Optimizer, norm and bound."""
    norm: Any = None
    """Of the gradients that are clipped, when it was read."""
    scale: Any = None
    has_scaled: bool = False
    zero_after_backward: bool = False
    sealed: list[tuple[Any, Any, int, Any]] = field(default_factory=list)
    """Parameters, their gradients after several backward passes, versions and sums of these."""
    is_edited: bool = False
    """The program changed such gradients itself."""
    inspected: tuple[int, ...] = ()
    """Networks whose outputs were measured since the last step."""

    in_forward: bool = False
    inspecting: bool = False
    """The modules inside the forward that runs are looked at, too."""
    in_backward: bool = False
    in_probe: bool = False
    """What runs is a copy of our own."""
    in_mode: bool = False
    in_schedule: bool = False
    in_scaler: bool = False
    stepping: Any = None
    """The optimizer whose step runs."""
    stepper: Any = None
    """Its entry."""
    has_closure: bool = False
    evaluations: int = 0
    """So often it ran in this step."""
    network: Any = None
    """The entry of the network whose forward runs."""
    measures: bool = False
    """The outputs of its modules are measured."""
    work: StepInWork | None = None
    """What was asked for before the step that runs."""
    outputs: list[list[OutputMeasure]] = field(default_factory=list)
    """Measured since the last step with statistics."""
    called: int = -1
    """Index of the network that was called last; loss functions are no networks."""
    given: tuple[Any, ...] = ()
    """Weak references to the tensors it was given."""
    bad_input: Any = None
    """The fact of an input that is not finite, while the network runs on it."""
    made: Any = None
    """Weak reference to what the last network returned."""
    group: Any = None
    """The calls of its kind."""
    compared: Any = None
    """The last loss function that can be differentiated: name, weak input and target, rest."""
    continued: Any = None
    """Weak reference to the input of which the last loss's targets are the next numbers."""
    means: deque[Any] = field(default_factory=lambda: deque(maxlen=8))
    """Weak references to the last losses that are means."""
    is_raw_mean: bool = False
    """The loss of the backward pass that runs is a mean that nothing divides."""
    last_loss: Any = None
    """Of the last step."""
    loader: int = -1
    steps: int = 0
    """Steps that ended in this thread."""
    began: int = 0
    """When the last of them ended [ns]; known before a step that is looked at closely."""
    spent: int = 0
    """Time that statistics took since the last step [ns]."""

    @property
    def codes(self) -> list[int]:
        """Those of the marks alone."""
        return self.marks[::2]

    def begin_word(self) -> None:
        """Forget what led to the step that ended."""
        self.marks, self.losses, self.clips = [], [], []
        self.scale = None
        self.has_scaled = self.zero_after_backward = self.is_edited = False
        if self.sealed or self.inspected:
            self.sealed, self.inspected = [], ()
