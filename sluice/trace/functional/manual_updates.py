"""Detects steps of programs without a torch optimizer, which update their weights themselves.

Such a step calls no function that could be hooked. If the weights before a forward pass differ
from those after the preceding backward pass, the program made a step between the two passes.
"""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.functional.functional_models import FunctionalModelWatch
from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_KINDS_BEFORE_STEP = ("backward", "clip")
"""Kinds of events that belong to the step that follows them."""
_MAX_WATCHED_PARAMETERS = 2
"""Maximum number of parameters that are compared to detect a step."""
_PASSES_BEFORE_INSPECTION = 16
"""If no step is detected in this number of backward passes, the graph of the loss is inspected
again, because the program may have replaced its parameters. Further inspections follow after 32,
64, ... passes. The number is 16 because few programs accumulate gradients over more passes."""
_MAX_CLONED_NUMEL = 2**14
"""Maximum number of elements of a watched parameter that is copied. For a larger parameter, only
the version counter is compared, which torch increments at each in-place change."""


class ImplicitOptimizer:
    """Placeholder optimizer for programs that update weights themselves.

    It has one parameter group with these weights.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters}]
        self.state: dict[Tensor, Any] = {}


class ManualUpdateWatch:
    """Detects the steps of a program without an optimizer."""

    def __init__(self, tracer: TracerContext, model_watch: FunctionalModelWatch) -> None:
        self._tracer, self._model_watch = tracer, model_watch
        self._parameters: list[Tensor] = []
        """Known parameters of the program. The placeholder optimizer shares this list."""
        self._optimizer: ImplicitOptimizer | None = None
        """Placeholder optimizer; None before the first backward pass of trained parameters."""
        self._snapshots: list[tuple[Tensor, Tensor | int]] = []
        """Watched parameters, each with its state after a backward pass (see ``_snapshot``)."""
        self._watched_parameters: list[Tensor] = []
        """Parameters that are compared to detect a step."""
        self._num_passes = 0
        """Number of backward passes since the last detected step."""
        self._has_stepped_since_backward = False
        """Whether a step was detected since the last backward pass."""
        self._has_ever_stepped = False
        """Whether any step was detected in the trace."""
        self._has_old_gradients = False
        """Whether the program kept the gradients from before the last detected step."""

    def before_backward(self, thread: ThreadState) -> None:
        """Detect a step of a functional model, and gradients that the program kept after a step."""
        if thread.call.network in self._model_watch.network_indices:
            self.detect_step(thread)
            self._num_passes = 0 if self._has_stepped_since_backward else self._num_passes + 1
            is_power_of_two = not self._num_passes & (self._num_passes - 1)
            if self._num_passes >= _PASSES_BEFORE_INSPECTION and is_power_of_two:
                self._model_watch.inspect_next()
        if self._has_stepped_since_backward:
            self._has_stepped_since_backward = False
            self._has_old_gradients = any(_has_gradient(p) for p in self._watched_parameters)

    def after_backward(self, thread: ThreadState) -> None:
        """Store the state of some parameters after the first backward pass of a step.

        The state is stored again if all leaves of the loss are new.
        """
        candidates = self._trained_parameters(thread)
        if not candidates or (self._snapshots and not self._are_leaves_replaced()):
            return
        parameters_with_gradients = [p for p in candidates if p.grad is not None and not p.is_meta]
        sorted_parameters = sorted(parameters_with_gradients, key=Tensor.numel)
        self._watched_parameters = sorted_parameters[:_MAX_WATCHED_PARAMETERS]
        self._snapshots = [(p, _snapshot(p)) for p in self._watched_parameters]
        if self._optimizer is None:
            self._optimizer = ImplicitOptimizer(self._parameters)
        known_ids = {id(p) for p in self._parameters}
        new_parameters = [p for p in parameters_with_gradients if id(p) not in known_ids]
        self._parameters += new_parameters
        self._tracer.objects.has_changed |= bool(new_parameters)

    def _trained_parameters(self, thread: ThreadState) -> list[Tensor]:
        """Return the parameters of the ``nn.Module`` that was called last.

        If a functional model or no model was called, return the leaves of the loss. There are two
        exceptions:

        - If the leaves of this pass were not inspected, return the known parameters.
        - If all leaves are new although no step was ever detected, return nothing: the program
          creates new leaves for each pass.
        """
        entries, model_watch = self._tracer.objects.networks.entries, self._model_watch
        if thread.call.network not in model_watch.network_indices:
            entry = next((e for e in entries if e.index == thread.call.network), None)
            network = None if entry is None else entry.ref()
            return [] if network is None else [*network.parameters()]
        if not model_watch.leaves:
            return self._parameters
        if self._are_leaves_replaced() and not self._has_ever_stepped:
            return []
        return [*model_watch.leaves]

    def _are_leaves_replaced(self) -> bool:
        """Return whether all leaves of the loss are new, as for a new model."""
        parameters, leaves = self._parameters, self._model_watch.leaves
        return bool(parameters and leaves) and not {*map(id, parameters)} & {*map(id, leaves)}

    def detect_step(self, thread: ThreadState) -> None:
        """Record a step if watched parameters changed since the last backward pass."""
        snapshots, optimizer = self._snapshots, self._optimizer
        if optimizer is None or not snapshots:
            return
        if not all(_is_comparable(p, snapshot) for p, snapshot in snapshots):
            self._snapshots = []  # the device or dtype changed: a step cannot be detected
            return
        if all(_is_unchanged(p, snapshot) for p, snapshot in snapshots):
            return
        self._snapshots, self._has_stepped_since_backward, self._has_ever_stepped = [], True, True
        entry: OptimizerEntry = self._tracer.objects.optimizers.get_or_add(optimizer)
        self._record_step(thread, entry)

    def _record_step(self, thread: ThreadState, entry: OptimizerEntry) -> None:
        """Record a step after the last backward pass or clip; later events are of the next step."""
        tracer, interner = self._tracer, self._tracer.events.interner
        kinds = [interner.event(code)[0] for code in thread.step.codes]
        num_events = max(
            (i for i, kind in enumerate(kinds, 1) if kind in _KINDS_BEFORE_STEP), default=0
        )
        end = 2 * num_events  # ``events`` alternates codes and times
        later_events, thread.step.events = thread.step.events[end:], thread.step.events[:end]
        flags = ("fresh", *("carried",) * self._has_old_gradients)
        self._has_old_gradients = False
        thread.step.events += tracer.events.code("step", entry.index, flags=flags), tracer.clock()
        tracer.sampling.membership.sample_if_due(tracer.steps.last_step)
        tracer.steps.end(thread, entry)
        thread.step.events += later_events


def _snapshot(parameter: Tensor) -> Tensor | int:
    """Return a copy of a small parameter, or the version counter of a large parameter."""
    is_small = parameter.numel() <= _MAX_CLONED_NUMEL
    return parameter.detach().clone() if is_small else parameter._version


def _is_comparable(parameter: Tensor, snapshot: Tensor | int) -> bool:
    """Return whether a parameter has the dtype and device of its snapshot."""
    if not isinstance(snapshot, Tensor):
        return True
    return parameter.dtype == snapshot.dtype and parameter.device == snapshot.device


def _is_unchanged(parameter: Tensor, snapshot: Tensor | int) -> bool:
    """Return whether a parameter or its version counter equals the snapshot."""
    if not isinstance(snapshot, Tensor):
        return parameter._version == snapshot
    return torch.equal(parameter, snapshot)


def _has_gradient(parameter: Tensor) -> bool:
    grad = parameter.grad
    return grad is not None and grad.layout == torch.strided and bool(grad.any())
