"""Typed events that hooks and the tracer publish.

These events contain objects of the program, for the parts of the tracer that inspect them. The
order of events in a step is recorded by ``EventRecorder``, with one integer per event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sluice.trace.objects.object_tracker import NetworkEntry, OptimizerEntry
from sluice.trace.recording.ended_step import EndedStep
from sluice.trace.thread_state import ThreadState


@dataclass(slots=True)
class TraceBegan:
    """An empty trace begins, at the start or in a forked process; subscribers reset their state."""


@dataclass(slots=True)
class TraceEnding:
    """The trace is about to end: subscribers may still record events and steps."""


@dataclass(slots=True)
class TraceEnded:
    """The trace has ended: no event follows, and subscribers write their remaining records."""


@dataclass(slots=True)
class PhaseBegan:
    """A new phase of the training begins. It is inspected like the start of a trace."""


@dataclass(slots=True)
class ModuleCalled:
    """A module is about to run, and its call is not nested in the call of a network."""

    thread: ThreadState


@dataclass(slots=True)
class NetworkCalled:
    """A network is about to run: a module with parameters, not nested in another network."""

    thread: ThreadState
    entry: NetworkEntry
    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(slots=True)
class NetworkReturned:
    """A network returned from a call that is not nested in another network."""

    thread: ThreadState
    entry: NetworkEntry
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@dataclass(slots=True)
class StructureChanged:
    """A module or a parameter was added to some network."""

    thread: ThreadState


@dataclass(slots=True)
class BackwardBegins:
    """A backward pass is about to run."""

    thread: ThreadState
    loss: Tensor | None
    """Argument of ``backward``. None unless it is a single plain tensor, and on the meta device."""


@dataclass(slots=True)
class ScalarBackwardBegins:
    """A backward pass is about to run on a tensor of one element; its graph still exists."""

    thread: ThreadState
    loss: Tensor


@dataclass(slots=True)
class NonFiniteLoss:
    """A backward pass is about to run on a loss that is NaN or infinite.

    Published only for losses on the CPU, because reading from a GPU would synchronize.
    """

    thread: ThreadState


@dataclass(slots=True)
class BackwardEnded:
    """A backward pass ended."""

    thread: ThreadState
    tensors: Any
    """First argument of ``backward``."""
    is_scaled: bool
    """Whether a gradient scaler scaled the loss."""


@dataclass(slots=True)
class NonFiniteNorm:
    """The gradients that are about to be clipped have a non-finite norm."""

    thread: ThreadState


@dataclass(slots=True)
class GradientsCleared:
    """``zero_grad`` of an optimizer or a module was called."""

    owner: Any
    """The optimizer or the module."""


@dataclass(slots=True)
class OptimizerCreated:
    """The program created an optimizer."""

    thread: ThreadState


@dataclass(slots=True)
class StepBegins:
    """An optimizer is about to update its parameters."""

    thread: ThreadState
    entry: OptimizerEntry
    optimizer: Any


@dataclass(slots=True)
class StepEnded:
    """An optimizer updated its parameters, and the step was recorded fully."""

    entry: OptimizerEntry


@dataclass(slots=True)
class WeightsLoaded:
    """Weights were loaded into a network."""


@dataclass(slots=True)
class PredictionMayBegin:
    """A step was recorded fully. The next step is not sampled, so it may be predicted."""

    thread: ThreadState
    codes: list[int]
    """Event codes of the recorded step."""
    due_step: int
    """Number of the next step that must be recorded fully."""


@dataclass(slots=True)
class BufferedStepsReleased:
    """The buffered steps are released to the subscribers, in the order in which they ended."""

    steps: Sequence[EndedStep]


@dataclass(slots=True)
class UnexpectedEvent:
    """The running step differs from the prediction, or must be recorded fully."""

    thread: ThreadState
