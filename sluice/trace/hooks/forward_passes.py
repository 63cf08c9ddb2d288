"""Inspects and probes single training passes: gradient flow, detached tensors, masks and indices.

An inspection is slow, so few passes are inspected: at the first step, at powers of two, for much
longer sequences and at the start of a training phase.
"""

import threading
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.hooks.probes import InspectedPass, NetworkProbes
from sluice.trace.inspection.autograd_graph import graph_nodes
from sluice.trace.inspection.functorch import in_functorch_transform
from sluice.trace.inspection.graph_records import (
    clamped_index_records,
    graph_mask_records,
    negative_index_records,
)
from sluice.trace.inspection.network_copies import float_tensors
from sluice.trace.inspection.padding import (
    find_padding_candidates,
    masked_positions,
    tensor_arguments,
)
from sluice.trace.objects.object_tracker import NetworkEntry
from sluice.trace.program_events import BackwardBegins, TraceBegan
from sluice.trace.records.forward_passes import (
    ForwardPassRecord,
    ModuleCallRecord,
    PaddingMaskRecord,
)
from sluice.trace.tracer_context import TracerContext

_MAX_MODULE_CALLS = 1024
"""Maximum number of module calls that are recorded in a pass."""

_MAX_HELD_OUTPUTS = 512
"""Maximum number of module outputs that are kept in memory until the backward pass. They are kept
because an input is recognised as one of them by its storage address: another tensor could reuse the
address of a freed output."""

_MAX_PENDING_PASSES = 4
"""Maximum number of inspected passes that wait for a backward pass. If more passes wait, all of
them are discarded."""

_MAX_MASK_RECORDS = 32
"""Number of padding mask records in a trace after which masks are no longer recorded."""

_MIN_LENGTH_GROWTH = 1.5
"""A network is inspected and probed again if the length of a sequence, divided by the maximum
length of earlier sequences, is above this ratio."""

_MAX_INDEX_RECORDS = 64
"""Number of records of invalid indices in a trace after which indices are no longer checked."""


class ForwardPassInspector:
    """Inspects the forward passes of all threads."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._reset()
        tracer.bus.subscribe(TraceBegan, lambda _: self._reset())
        tracer.bus.subscribe(BackwardBegins, self._on_backward)

    def _reset(self) -> None:
        self._held_outputs: dict[int, tuple[Tensor, str]] = {}
        """Outputs and the full names of their modules, by storage address."""
        self._pending_passes: list[InspectedPass] = []
        """Inspected passes that wait for a backward pass."""
        self.running_passes: dict[int, InspectedPass] = {}
        """Running inspected passes by the id of their thread. Public, because the hook of every
        network call reads it."""
        self._num_mask_records = self._num_index_records = 0
        self._probes = NetworkProbes(self._tracer)
        self.has_pass_since_backward = False
        """Whether an inspected pass ended since the last backward pass. The pass may already be
        discarded."""

    def discard_stale(self) -> None:
        """Discard the running pass of this thread, whose network raised an exception.

        Also discard all pending passes if there are more than 4.
        """
        if self.running_passes:
            self.running_passes.pop(threading.get_ident(), None)
        if len(self._pending_passes) > _MAX_PENDING_PASSES:
            self._pending_passes.clear()
            self._held_outputs.clear()

    def can_inspect(self) -> bool:
        """Return whether a forward pass that starts now may be a training pass."""
        return (
            torch.is_grad_enabled()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
            and not in_functorch_transform()
        )

    def on_sequence_length(self, entry: NetworkEntry, length: int) -> None:
        """Request another inspection if a sequence is much longer than all earlier sequences.

        A mask may be too short for the longer sequence.
        """
        if length > _MIN_LENGTH_GROWTH * entry.max_length:
            if entry.max_length and self._tracer.steps.last_step:
                entry.next_inspection_step = self._tracer.steps.last_step
                self._probes.request_repeat(entry)
            entry.max_length = length

    def begin(
        self, entry: NetworkEntry, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Start the inspection of a pass."""
        entry.next_inspection_step = max(2 * self._tracer.steps.last_step, 1)
        self.running_passes[threading.get_ident()] = InspectedPass(
            entry, weakref.ref(module), args, kwargs
        )

    def on_module_call(
        self,
        name: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Record the call of a module inside an inspected pass.

        The network itself is the last module that returns. Its name is empty.
        """
        inspected_pass = self.running_passes.get(threading.get_ident())
        if inspected_pass is None:
            return
        full_name = f"{inspected_pass.entry.name}.{name}" if name else inspected_pass.entry.name
        calls = inspected_pass.calls
        if (module._parameters or not module._modules) and len(calls) < _MAX_MODULE_CALLS:
            calls.append(self._call_record(name, module, (args, kwargs), output))
        if isinstance(module, nn.MultiheadAttention):
            self._record_mask(inspected_pass, name, args, kwargs)
        if not name:
            inspected_pass.output_nodes = [tensor.grad_fn for tensor in float_tensors(output)]
        # Outputs of trainable modules under no_grad are kept, too: a later layer may use them as
        # inputs, and ``detached_from`` then names the module.
        keeps_detached = not torch.is_grad_enabled() and any(
            p.requires_grad for p in module.parameters()
        )
        for tensor in float_tensors(output):
            can_hold = len(self._held_outputs) < _MAX_HELD_OUTPUTS
            if can_hold and (tensor.requires_grad or keeps_detached):
                self._held_outputs.setdefault(
                    _storage_address(tensor), (tensor.detach(), full_name)
                )

    def _call_record(
        self, name: str, module: nn.Module, arguments: Any, output: Any
    ) -> ModuleCallRecord:
        inputs = list(float_tensors(arguments))
        detached_from = (
            self._held_outputs[_storage_address(t)][1]
            for t in inputs
            if not t.requires_grad and _storage_address(t) in self._held_outputs
        )
        # The output projection of an attention module is used without a call, so its parameters
        # are recorded with the attention module.
        is_attention = isinstance(module, nn.MultiheadAttention)
        return ModuleCallRecord(
            module=name,
            kind=type(module).__name__,
            parameters=tuple(
                self._tracer.objects.parameters.get_or_add(p).index
                for p in module.parameters(recurse=is_attention)
            ),
            input_requires_grad=any(t.requires_grad for t in inputs),
            output_requires_grad=any(t.requires_grad for t in float_tensors(output)),
            detached_from=next(detached_from, ""),
        )

    def end(self) -> None:
        """End the inspection of a forward pass."""
        tracer = self._tracer
        inspected_pass = self.running_passes.pop(threading.get_ident(), None)
        if inspected_pass is None:
            return
        record = ForwardPassRecord(
            step=tracer.steps.last_step,
            network=inspected_pass.entry.index,
            calls=tuple(inspected_pass.calls),
        )
        tracer.recorder.write("flow", record)
        self._pending_passes.append(inspected_pass)
        self.has_pass_since_backward = True

    def _on_backward(self, backward: BackwardBegins) -> None:
        """Inspect the autograd graph, and probe the networks of the inspected passes.

        At the start of a backward pass, the loss is known and the inputs still exist.
        """
        if not self.has_pass_since_backward:
            return
        loss, began_ns = backward.loss, self._tracer.clock()
        passes, self._pending_passes = self._pending_passes, []
        self._held_outputs.clear()
        self.has_pass_since_backward = False
        nodes = [] if loss is None or not passes else [*graph_nodes(loss)]
        self._inspect_graph(nodes, passes)
        for inspected_pass in passes:
            network = inspected_pass.network_ref()
            if network is not None:
                self._probes.run(inspected_pass, network, loss)
        backward.thread.step.add_cost(self._tracer.clock() - began_ns)

    def _inspect_graph(self, nodes: list[Any], passes: list[InspectedPass]) -> None:
        tracer, thread = self._tracer, self._tracer.local.thread
        step = tracer.steps.last_step
        for inspected_pass in passes:
            if not nodes or self._num_mask_records >= _MAX_MASK_RECORDS:
                continue
            network = inspected_pass.entry.index
            for padding_mask in find_padding_candidates(
                (inspected_pass.args, inspected_pass.kwargs)
            ):
                for record in graph_mask_records(nodes, padding_mask, step=step, network=network):
                    self._num_mask_records += 1
                    tracer.recorder.write("mask", record)
        if self._num_index_records < _MAX_INDEX_RECORDS:
            inputs = [t for p in passes for t in tensor_arguments((p.args, p.kwargs))]
            record_fields = {
                "step": step,
                "network": thread.call.network,
                "loader": thread.last_loader,
            }
            for index_record in (
                *negative_index_records(nodes, **record_fields),
                *clamped_index_records(nodes, inputs, **record_fields),
            ):
                self._num_index_records += 1
                tracer.recorder.write("ids", index_record)

    def _record_mask(
        self,
        inspected_pass: InspectedPass,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        mask = kwargs.get("key_padding_mask", args[3] if len(args) > 3 else None)
        if mask is None or self._num_mask_records >= _MAX_MASK_RECORDS:
            return
        padding_masks = find_padding_candidates((inspected_pass.args, inspected_pass.kwargs))
        padding_mask = next((p for p in padding_masks if p.shape == mask.shape), None)
        if padding_mask is None:
            return
        self._num_mask_records += 1
        is_masked = masked_positions(mask)
        record = PaddingMaskRecord(
            step=self._tracer.steps.last_step,
            network=inspected_pass.entry.index,
            module=name,
            num_rows=padding_mask.shape[0],
            num_masked=int(is_masked.sum()),
            num_positions=padding_mask.numel(),
            num_padding=int(padding_mask.sum()),
            num_padding_masked=int((is_masked & padding_mask).sum()),
        )
        self._tracer.recorder.write("mask", record)


def _storage_address(tensor: Tensor) -> int:
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)
