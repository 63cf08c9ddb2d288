"""State that the tracer keeps for each thread of the program.

The state consists of small records. Each record has one owner: the module or package that writes
it. Other modules only read it, except for fields whose docstring names another writer. If the fast
path runs instead of a hook, it writes the fields that the hook would write.

The records have slots to stay small. The tracer reads some of their fields at each event, and the
program's operations between two events usually evict these fields from the processor's cache.
"""

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.plain_tensors import is_8bit_float
from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.records.step_statistics import OutputStatistics
from sluice.trace.sampling.step_statistics import PendingStatistics

_MAX_SNAPSHOTS_PER_OPTIMIZER = 2
"""Maximum number of parameters per optimizer whose gradients are compared to detect edits."""
_MAX_SUMMED_NUMEL = 2**14
"""Maximum number of elements of a gradient whose sum is stored. A write to a larger gradient counts
as an edit."""


@dataclass(slots=True, eq=False)
class StepPattern:
    """Event sequence of a step, from the end of the previous step in the same thread."""

    codes: list[int]
    """Event codes of the step, followed by a sentinel that is not a valid code."""
    events_without_times: list[int]
    """Event codes of the step without the sentinel, in the layout of ``EndedStep.events``: each
    code is followed by 0 instead of its time."""
    successor_counts: "dict[StepPattern, int]" = field(default_factory=dict)
    """Number of times that each pattern followed this pattern."""
    successor: "StepPattern | None" = None
    """Pattern that is predicted to follow; None to record the following step fully."""
    optimizer_entry: Any = None
    """Entry of the optimizer that ends the step; set when the pattern is first predicted."""
    steps_and_losses: list[Any] = field(default_factory=list)
    """Steps that repeated the pattern and are not yet reported, as a flat list: step number, list
    of its losses, next step number, list of its losses, and so on."""


@dataclass(slots=True, eq=False)
class Prediction:
    """Predicted events of the running step. Owner: ``prediction``."""

    position: int = -1
    """Index of the next event in ``codes``; -1 if the step is recorded fully."""
    codes: list[int] = field(default_factory=list)
    """Event codes of the predicted pattern, with the sentinel."""
    pattern: StepPattern | None = None
    """Predicted pattern of the running step."""
    optimizer_entry: Any = None
    """Entry of the optimizer that is predicted to end the step."""
    optimizer_step_position: int = -1
    """Index of the optimizer step in ``codes``."""
    predicted_steps_left: int = 0
    """Number of steps that may still be predicted before the next fully recorded step."""
    repeated_patterns: list[StepPattern] = field(default_factory=list)
    """Patterns that were repeated since the last fully recorded step."""


@dataclass(slots=True, eq=False)
class OpenStep:
    """Records since the thread's last step. Owner: ``recording``; hooks append to the lists."""

    events: list[int] = field(default_factory=list)
    """Events since the last step: code in the interner and clock time [ns], alternating. One flat
    list, because recording an event must be fast."""
    losses: list[Any] = field(default_factory=list)
    """Losses of the backward passes since the last step."""
    clips: list[tuple[int, Any, float]] = field(default_factory=list)
    """Gradient clips by norm since the last step: optimizer index, norm before clipping, and
    maximum norm."""
    loss_scale: Any = None
    """Scale that an update of the gradient scaler set since the last step; None without an update.
    Set by ``hooks.grad_scaler``."""
    statistics_ns: int = 0
    """Time spent on statistics since the last step [ns]."""
    pending_statistics: PendingStatistics | None = None
    """Statistics that were computed just before an optimizer updates its parameters, to be
    completed after the update; set by ``sampling.sampling``."""
    output_statistics: list[list[OutputStatistics]] = field(default_factory=list)
    """Requested statistics of module outputs, since the last step with statistics. Each inner list
    belongs to one output; it is empty until the values are read. Cleared by
    ``sampling.sampling``."""
    began_ns: int = 0
    """Start time of the running step, which is the end of the previous step [ns]. Not updated while
    steps are predicted; set when the prediction ends."""

    @property
    def codes(self) -> list[int]:
        """Event codes since the last step, without times."""
        return self.events[::2]

    def add_cost(self, ns: int) -> None:
        """Add time that was spent on statistics [ns]."""
        self.statistics_ns += ns

    def clear(self) -> None:
        """Discard the events, losses and clips of the step that ended."""
        self.events, self.losses, self.clips, self.loss_scale = [], [], [], None


@dataclass(slots=True, eq=False)
class ForwardPass:
    """The running forward pass. Owner: ``hooks.modules``."""

    is_running: bool = False
    observes_modules: bool = False
    """Whether calls of the modules inside the running forward pass are observed."""
    measures_outputs: bool = False
    """Whether the outputs of the modules inside the running forward pass are measured."""
    entry: Any = None
    """Entry of the network whose forward pass runs or ran last."""
    measured_networks: tuple[int, ...] = ()
    """Indices of the networks whose outputs were measured since the last step."""
    is_probe: bool = False
    """Whether the tracer runs its own copy of a network, to probe it; set by
    ``hooks.probes``."""
    is_changing_mode: bool = False
    """Whether ``train()`` or ``eval()`` runs. Both call ``train()`` of every child module; only the
    outermost call is recorded."""


@dataclass(slots=True, eq=False)
class NetworkCall:
    """Last call of a network that is not nested in another network. Owner: ``hooks.inputs``."""

    network: int = -1
    """Index of the network; modules without parameters (losses) do not count."""
    inputs: tuple[Any, ...] = ()
    """Weak references to the tensor arguments."""
    output: Any = None
    """Weak reference to the first output tensor; set by ``hooks.modules``."""
    group: Any = None
    """``CallGroup`` of the call: its network, loader and mode."""
    nonfinite_input: Any = None
    """Record of a non-finite input of the running call; None if its inputs are finite."""


@dataclass(slots=True, eq=False)
class BackwardPass:
    """The running or last backward pass. Owner: ``hooks.backward``."""

    is_running: bool = False
    is_scaled: bool = False
    """Whether a gradient scaler scaled the loss of the next backward pass; set by
    ``hooks.grad_scaler``."""
    is_unscaled_mean: bool = False
    """Whether the loss is a mean over the batch that was not divided further, for example by the
    number of accumulation steps."""
    is_followed_by_zeroing: bool = False
    """Whether gradients were zeroed after the last backward pass; set by ``hooks.optimizers``."""


@dataclass(slots=True, eq=False)
class OptimizerCall:
    """The running optimizer step. Owner: ``hooks.optimizers``."""

    running_optimizer: Any = None
    """Optimizer whose step runs; None while no step runs."""
    entry: Any = None
    """Entry of the optimizer whose step runs or ran last."""
    has_closure: bool = False
    """Whether the step was called with a closure."""
    num_closure_calls: int = 0


@dataclass(slots=True, eq=False)
class LossCalls:
    """Last calls of loss functions. Owner: ``hooks.losses``."""

    last: Any = None
    """Last call whose loss requires a gradient: function name, weak references to input and target,
    keyword arguments. None if it had other positional arguments than input and target."""
    shifted_input: Any = None
    """Weak reference to the input tensor that, shifted by one position, equals the targets of the
    last loss."""
    mean_loss_refs: deque[Any] = field(default_factory=lambda: deque(maxlen=8))
    """Weak references to the last eight losses that are means over a batch."""


@dataclass(slots=True, eq=False)
class GradientEdits:
    """Detects that the program edits the accumulated gradients of the running step.

    A program may for example divide them by the number of accumulation steps.
    """

    snapshots: list[tuple[Any, Any, int, Any]] = field(default_factory=list)
    """State of some gradients after the latest change by torch: parameter, gradient, and version
    counter and sum of the gradient. Empty until the second backward pass of a step ends, because
    only accumulated gradients are watched."""
    is_edited: bool = False

    def snapshot(self, entries: Iterable[OptimizerEntry]) -> None:
        """Store the state of some gradients after a backward pass, clipping or unscaling."""
        self.snapshots = [
            (
                parameter,
                parameter.grad,
                parameter.grad._version,
                _sum_gradient(parameter),
            )
            for entry in entries
            for group in entry.groups[:1]
            for parameter in group["params"][:_MAX_SNAPSHOTS_PER_OPTIMIZER]
            if parameter.grad is not None and not parameter.grad.is_meta
        ]

    def detect(self) -> None:
        """Set ``is_edited`` if the program changed a gradient since its snapshot was taken."""
        self.is_edited = self.is_edited or any(
            parameter.grad is not grad
            or (grad._version != version and _values_differ(grad, old_sum))
            for parameter, grad, version, old_sum in self.snapshots
        )

    def clear(self) -> None:
        """Discard the snapshots at the end of a step."""
        self.is_edited = False
        if self.snapshots:
            self.snapshots = []


def _sum_gradient(parameter: Any) -> Tensor | None:
    """Return the sum of a small gradient; None if it is large or torch cannot sum it."""
    grad = parameter.grad
    if parameter.numel() > _MAX_SUMMED_NUMEL or grad.is_nested or is_8bit_float(grad):
        return None
    return grad.detach().sum()  # type: ignore[no-any-return]


def _values_differ(grad: Tensor, old_sum: Tensor | None) -> bool:
    """Return whether a write changed the values of a gradient; a division by 1 does not."""
    return old_sum is None or not torch.equal(grad.detach().sum(), old_sum)


@dataclass(slots=True, eq=False)
class ThreadState:
    """Tracing state of one thread."""

    prediction: Prediction = field(default_factory=Prediction)
    step: OpenStep = field(default_factory=OpenStep)
    forward: ForwardPass = field(default_factory=ForwardPass)
    call: NetworkCall = field(default_factory=NetworkCall)
    backward: BackwardPass = field(default_factory=BackwardPass)
    optimizer_call: OptimizerCall = field(default_factory=OptimizerCall)
    loss_calls: LossCalls = field(default_factory=LossCalls)
    edits: GradientEdits = field(default_factory=GradientEdits)
    skips_details: bool = False
    """Whether the running step is predicted, so that its calls are not inspected."""

    index: int = -1
    """Index of the thread; -1 before its first event."""
    max_events_length: int = 0
    """If ``step.events`` is longer than this, repeated blocks of events are reduced to one block; 0
    before the first event."""
    num_steps: int = 0
    """Number of steps that ended in this thread."""
    last_loss: Any = None
    """Loss of the last backward pass of the previous step; None if the step had no loss."""

    last_loader: int = -1
    """Index of the loader that returned the last batch; -1 before the first batch, and after the
    last batch of an epoch. Owner: ``hooks.data_loaders``."""
    in_scheduler: bool = False
    """Whether a learning-rate scheduler runs. Owner: ``hooks.schedulers``."""
    in_scaler: bool = False
    """Whether a gradient scaler runs. Owner: ``hooks.grad_scaler``."""
    norm_before_clip: Any = None
    """Norm of the gradients before the running or last clip. None if its value was not read, for
    example because reading it from a GPU would synchronize. Owner: ``hooks.clipping``."""

    def clear_step(self) -> None:
        """Discard what was recorded of the step that ended."""
        self.step.clear()
        self.backward.is_scaled = self.backward.is_followed_by_zeroing = False
        self.edits.clear()
        if self.forward.measured_networks:
            self.forward.measured_networks = ()

    def begin_trace(self, began_ns: int) -> None:
        """Discard what belongs to an earlier trace. Flags of calls that run now are kept."""
        self.prediction, self.step, self.call = Prediction(), OpenStep(), NetworkCall()
        self.clear_step()
        self.step.began_ns = began_ns
        self.optimizer_call.entry = self.forward.entry = self.last_loss = None
        self.skips_details = False
        self.index, self.max_events_length = -1, 0


class LocalState(threading.local):
    """Creates the state of each thread at its first access."""

    def __init__(self) -> None:
        self.thread = ThreadState()
