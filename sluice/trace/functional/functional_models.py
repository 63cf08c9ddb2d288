"""Detects models that are plain tensors (in a list or a dict) instead of an ``nn.Module``.

A program with such a model calls no module that could be hooked. But before a backward pass, the
autograd graph of the loss still contains the tensors that were combined with each leaf (a trained
tensor), such as x in x @ w with the leaf w. The combined tensors that require no gradient are
treated as inputs of the model and passed to ``InputWatch``.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.hooks.inputs import NUM_FIRST_CALLS, InputWatch
from sluice.trace.hooks.losses import LossWatch
from sluice.trace.inspection.autograd_graph import graph_nodes
from sluice.trace.inspection.graph_inputs import (
    LOOKUP_NODES,
    LeafInput,
    as_rows,
    find_loss_targets,
    graph_leaves,
    inputs_of_leaves,
)
from sluice.trace.objects.object_index import ObjectIndex
from sluice.trace.objects.object_tracker import NetworkEntry
from sluice.trace.program_events import NetworkCalled
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_NUM_SAMPLED_STEPS = 128
"""After the first passes, one backward pass of each step with statistics is inspected, for this
number of steps. Then the intervals between inspected passes grow. Sampling never ends, because a
new model may appear."""
_NUM_FIRST_PASSES = NUM_FIRST_CALLS
"""Number of backward passes that are all inspected at the start and after each new model. It equals
the number of first calls that ``InputWatch`` inspects."""
_MAX_MODELS = 8
"""Maximum number of functional models in a trace. Further models are not inspected."""
_VARYING_USES = 2**31
"""Value of ``num_uses`` of a leaf whose number of uses differs from pass to pass, as it does for
sequences of different lengths."""


class ModulePlaceholder(nn.Module):
    """Placeholder for a model that is not an nn.Module; without parameters, and never called."""


class FunctionalModel:
    """A model without an ``nn.Module``, identified by the leaf tensor that is used first.

    Args:
        leaf: Parameter that the model combines with its input.
        networks: Index of all networks, to which the model is added.
    """

    def __init__(self, leaf: Tensor, networks: ObjectIndex[NetworkEntry]) -> None:
        self.placeholder = ModulePlaceholder()
        self.entry = networks.get_or_add(self.placeholder)
        self.leaf = weakref.ref(leaf)
        self.leaf_shape = leaf.shape
        self.row_shape = torch.Size()
        """Shape of one row of the training inputs."""
        self.num_uses = 0
        """Number of uses of the leaf in a pass; 0 before the first pass."""
        self.is_left_operand = True
        """Whether the training inputs are the left operand of the operation with the leaf."""
        self.kind = ""
        """Kind of the autograd node that combines inputs and leaf, such as 'MmBackward0'."""
        self.columns: slice | None = None
        """Columns of the operand that contain the input; None if the whole operand is the input."""
        self.num_inspections = 0
        """Number of inspected passes that begin with this leaf."""

    @property
    def has_varying_uses(self) -> bool:
        """Whether the number of uses of the leaf differs from pass to pass."""
        return self.num_uses == _VARYING_USES

    def storage_address(self) -> int:
        """Return the storage address of the leaf; 0 if it no longer exists or is not strided."""
        leaf = self.leaf()
        if leaf is None or leaf.layout != torch.strided:
            return 0
        return leaf.untyped_storage().data_ptr()

    def store_input_form(self, leaf_input: LeafInput) -> None:
        """Store how training inputs are combined with the leaf."""
        has_same_uses = self.num_uses in (0, leaf_input.num_uses)
        self.num_uses = leaf_input.num_uses if has_same_uses else _VARYING_USES
        self.is_left_operand, self.kind = leaf_input.is_left_operand, leaf_input.kind
        self.columns = leaf_input.columns
        shape = leaf_input.values.shape  # (rows, uses, ...) if the leaf is used several times
        self.row_shape = shape[1:] if leaf_input.num_uses == 1 else shape[2:]

    def match_input(self, values: Tensor, *, is_left: bool) -> Tensor | None:
        """Return ``values`` arranged like a training input; None if they cannot be an input.

        Args:
            values: Operand of an operation with the leaf.
            is_left: Whether ``values`` is the left operand.
        """
        leaf, row_shape = self.leaf(), self.row_shape
        if leaf is None or is_left != self.is_left_operand or values.requires_grad:
            return None
        if self.columns is not None and values.shape[-1:] != row_shape[-1:]:
            values = values[..., self.columns]
        is_lookup = self.kind in LOOKUP_NODES
        rows = values if is_lookup else as_rows(values, leaf, kind=self.kind, is_left=is_left)
        if rows is None or rows.dim() != len(row_shape) + 1:
            return None
        last_dim = rows.shape[1:][-1:]  # empty if a row is a single value, as an id of a lookup
        return rows if last_dim == row_shape[-1:] else None

    def is_recreated_as(self, leaf: Tensor) -> bool:
        """Return whether ``leaf`` replaces this model's leaf, which existed for a single pass."""
        return self.num_inspections == 1 and self.leaf() is None and self.leaf_shape == leaf.shape


class FunctionalModelWatch:
    """Inspects graphs of losses in threads that call no ``nn.Module``.

    It inspects the first graphs and a sample of later ones.

    Args:
        tracer: Receives the records.
        inputs: Inspects the inputs of the models.
        losses: Samples the targets of the models' losses.
        on_first_model: Called once, when the first model is found.
    """

    def __init__(
        self,
        tracer: TracerContext,
        inputs: InputWatch,
        losses: LossWatch,
        on_first_model: Callable[[], None],
    ) -> None:
        self._tracer, self._input_watch, self._loss_watch = tracer, inputs, losses
        self._on_first_model, self._has_had_model = on_first_model, False
        """Callback, and whether it was called; both survive ``reset``."""
        self.reset()

    def reset(self) -> None:
        """Forget all models, at the start of a trace and after a fork."""
        self.network_indices = {-1}
        """Network indices of the functional models, and -1 for no network."""
        self.leaves: list[Tensor] = []
        """Leaves of the loss whose backward pass runs, if the pass is inspected."""
        self.models: list[FunctionalModel] = []
        self._inputs: list[Tensor] = []
        """Inputs of the inspected pass, which must exist until its backward pass has ended."""
        self._num_passes_left = _NUM_FIRST_PASSES
        """Number of coming backward passes that are inspected without sampling."""
        self._sampler = LogSpacedSampler(_NUM_SAMPLED_STEPS)
        """Selects the passes that are inspected after the first passes; asked at most once a
        step."""
        self._last_sampler_step = -1
        """Number of optimizer steps before the pass for which the sampler was last asked; -1 before
        the first such pass."""

    def inspect_next(self) -> None:
        """Inspect the next backward pass."""
        self._num_passes_left = max(self._num_passes_left, 1)

    def on_loss(self, thread: ThreadState, loss: Tensor) -> None:
        """Inspect the graph of a loss if it is one of the first, is sampled, or is non-finite.

        A non-finite loss on another device than the CPU does not cause an inspection, because
        reading it would synchronize with the device.
        """
        if not self._advance_sampling(loss):
            return
        began_ns = self._tracer.clock()
        with torch.no_grad():
            nodes = [*graph_nodes(loss)]
            self.leaves = graph_leaves(nodes)
            leaf_inputs = inputs_of_leaves(nodes)
            model = self._get_or_add_model(leaf_inputs[0].leaf) if leaf_inputs else None
            if model is not None:
                model.store_input_form(leaf_inputs[0])
                self._inputs = [leaf_input.values for leaf_input in leaf_inputs]
                self._record_pass(thread, model, nodes, loss)
        thread.step.add_cost(self._tracer.clock() - began_ns)

    def on_no_grad_input(self, thread: ThreadState, model: FunctionalModel, values: Tensor) -> None:
        """Record an input that a model receives while gradients are disabled."""
        began_ns = self._tracer.clock()
        self._report_call(thread, model, [values])
        if thread.call.nonfinite_input is not None:
            self._input_watch.write_nonfinite_input(thread, None)
        thread.step.add_cost(self._tracer.clock() - began_ns)

    def release(self) -> None:
        """Drop references to inspected tensors when the backward pass has ended."""
        self.leaves, self._inputs = [], []

    def _advance_sampling(self, loss: Tensor) -> bool:
        """Count a loss for the sampling; return whether it must be inspected."""
        if self._num_passes_left:
            self._num_passes_left -= 1
            return True
        if loss.is_cpu and not bool(loss.detach().isfinite()):
            return True
        tracer = self._tracer
        if (
            not tracer.sampling.samples_statistics
            or self._last_sampler_step == tracer.steps.last_step
        ):
            return False
        self._last_sampler_step = tracer.steps.last_step
        return self._sampler.advance()

    def _get_or_add_model(self, leaf: Tensor) -> FunctionalModel | None:
        """Return the model that begins with a leaf; add the model if it is new.

        Return None if the model is new, but the maximum number of models is reached.
        """
        model = next((m for m in self.models if m.leaf() is leaf), None)
        if model is not None:
            model.num_inspections += 1
            return model
        model = next((m for m in self.models if m.is_recreated_as(leaf)), None)
        if model is not None:
            # ``num_inspections`` stays 1, so that the leaf may be replaced again in the next pass.
            model.leaf = weakref.ref(leaf)
            return model
        if len(self.models) >= _MAX_MODELS:
            return None
        model = FunctionalModel(leaf, self._tracer.objects.networks)
        model.num_inspections = 1
        self.models.append(model)
        self.network_indices.add(model.entry.index)
        self._num_passes_left = _NUM_FIRST_PASSES
        if not self._has_had_model:
            self._has_had_model = True
            self._on_first_model()
        return model

    def _record_pass(
        self, thread: ThreadState, model: FunctionalModel, nodes: list[Any], loss: Tensor
    ) -> None:
        with torch.enable_grad():  # ``InputWatch`` then records a training call
            self._report_call(thread, model, self._inputs)
        if thread.call.nonfinite_input is not None:
            self._input_watch.write_nonfinite_input(thread, loss.detach())
        loss_targets = find_loss_targets(nodes)
        if loss_targets is None:
            return
        kind, target, loss_input = loss_targets
        self._loss_watch.add_targets(kind, loss_input, target)
        if not bool(loss.detach().isfinite().all()):
            self._input_watch.record_nonfinite(target, "target", is_learning=True)

    def _report_call(
        self, thread: ThreadState, model: FunctionalModel, inputs: list[Tensor]
    ) -> None:
        self._input_watch.on_call(NetworkCalled(thread, model.entry, model.placeholder, inputs, {}))
