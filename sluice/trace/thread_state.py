"""State that the tracer keeps for each thread of the program."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sluice.trace.records.step_statistics import OutputStatistics
from sluice.trace.step_statistics import PendingStep


@dataclass(slots=True, eq=False)
class StepPattern:
    """Sequence of events of one step, from the end of the previous step in the same thread."""

    codes: list[int]
    """Event codes of the step, followed by a sentinel that is not a valid code."""
    events_without_times: list[int]
    """Event codes of the step, each followed by 0 in place of a time."""
    successor_counts: "dict[StepPattern, int]" = field(default_factory=dict)
    """Number of times that each pattern followed this one."""
    successor: "StepPattern | None" = None
    """Pattern that is predicted to follow; None to record the following step fully."""
    optimizer_entry: Any = None
    """Entry of the optimizer that ends the step; set when the pattern is first predicted."""
    repeated_steps: list[Any] = field(default_factory=list)
    """Steps that repeated the pattern and are not yet reported: step number, its losses, next step
    number, its losses, and so on."""


@dataclass(slots=True, eq=False)
class ThreadState:
    """Tracing state of one thread. Has slots, because every event reads some of its fields."""

    index: int = -1
    """Index of the thread; -1 before its first event."""
    max_events_length: int = 0
    """Length of ``events`` above which repeated blocks are folded; 0 before the first event."""
    events: list[int] = field(default_factory=list)
    """Events since the last step: code in the interner and clock time [ns], alternating. One flat
    list, because recording an event must be fast."""
    losses: list[Any] = field(default_factory=list)
    """Losses of the backward passes since the last step."""
    expected: StepPattern | None = None
    """Predicted pattern of the running step."""
    expected_codes: list[int] = field(default_factory=list)
    """Event codes of the predicted pattern, with the sentinel."""
    position: int = -1
    """Index of the next event in ``expected_codes``; -1 if the step is recorded fully."""
    step_position: int = -1
    """Index of the optimizer step in ``expected_codes``."""
    repeats_left: int = 0
    """Number of predicted steps until the next fully recorded step."""
    repeated_patterns: list[StepPattern] = field(default_factory=list)
    """Patterns that were repeated since the last fully recorded step."""
    clips: list[tuple[int, Any, float]] = field(default_factory=list)
    """Gradient clips since the last step: optimizer index, norm and maximum norm."""
    grad_norm: Any = None
    """Norm of the gradients being clipped, once it was read."""
    loss_scale: Any = None
    """Scale of the gradient scaler in this step."""
    has_scaled_loss: bool = False
    """Whether a gradient scaler scaled the loss of the next backward pass."""
    is_zeroed_after_backward: bool = False
    """Whether gradients were zeroed between the last backward pass and now."""
    gradient_snapshots: list[tuple[Any, Any, int, Any]] = field(default_factory=list)
    """State of some gradients after the second and later backward passes of a step, to detect
    edits: parameter, gradient, its version counter, its sum."""
    has_gradient_edit: bool = False
    """Whether the program edited the accumulated gradients of the running step, for example
    divided them."""
    inspected_networks: tuple[int, ...] = ()
    """Indices of the networks whose outputs were measured since the last step."""

    in_forward: bool = False
    """Whether a forward pass of a network runs."""
    inspects_modules: bool = False
    """Whether the modules inside the running forward pass are inspected."""
    in_backward: bool = False
    """Whether a backward pass runs."""
    in_probe: bool = False
    """Whether the tracer runs its own copy of a network, to probe it."""
    in_mode_change: bool = False
    """Whether ``train()`` or ``eval()`` runs, which calls itself for every child module."""
    in_scheduler: bool = False
    """Whether a learning-rate scheduler runs."""
    in_scaler: bool = False
    """Whether a gradient scaler runs."""
    stepping_optimizer: Any = None
    """Optimizer whose step runs."""
    optimizer_entry: Any = None
    """Entry of the optimizer whose step runs or is predicted."""
    has_closure: bool = False
    """Whether the running step was given a closure."""
    closure_calls: int = 0
    """Number of closure calls in the running step."""
    network_entry: Any = None
    """Entry of the network whose forward pass runs."""
    measures_outputs: bool = False
    """Whether the outputs of the modules inside the running forward pass are measured."""
    pending_step: PendingStep | None = None
    """Statistics requested before the running step."""
    output_measures: list[list[OutputStatistics]] = field(default_factory=list)
    """Outputs measured since the last step with statistics."""
    last_network: int = -1
    """Index of the last called network; modules without parameters (losses) do not count."""
    inputs: tuple[Any, ...] = ()
    """Weak references to the tensor arguments of the last called network."""
    nonfinite_input: Any = None
    """Record of a non-finite input, while the network runs on it."""
    output: Any = None
    """Weak reference to the output of the last called network."""
    call_group: Any = None
    """``CallGroup`` of the last network call: its network, loader and mode."""
    last_loss_call: Any = None
    """Last differentiable loss call: name, weak references to input and target, other arguments."""
    shifted_input: Any = None
    """Weak reference to the input that equals the targets of the last loss shifted by one
    position."""
    mean_losses: deque[Any] = field(default_factory=lambda: deque(maxlen=8))
    """Weak references to the last losses that are means."""
    is_unscaled_mean: bool = False
    """Whether the loss of the running backward pass is a mean over the batch that was not divided
    further, for example by the number of accumulation steps."""
    last_loss: Any = None
    """Last loss of the previous step."""
    last_loader: int = -1
    """Index of the loader that returned the last batch; -1 before the first batch."""
    steps: int = 0
    """Number of steps that ended in this thread."""
    step_began_ns: int = 0
    """End time of the previous step [ns]; only valid before a fully recorded step."""
    statistics_ns: int = 0
    """Time spent on statistics since the last step [ns]."""

    @property
    def codes(self) -> list[int]:
        """Event codes since the last step, without times."""
        return self.events[::2]

    def reset_step(self) -> None:
        """Discard the events, losses and clips of the step that ended."""
        self.events, self.losses, self.clips = [], [], []
        self.loss_scale = None
        self.has_scaled_loss = self.is_zeroed_after_backward = self.has_gradient_edit = False
        if self.gradient_snapshots or self.inspected_networks:
            self.gradient_snapshots, self.inspected_networks = [], ()
