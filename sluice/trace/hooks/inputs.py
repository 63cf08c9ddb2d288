"""Records statistics of network inputs: columns, rows and tokens of the first calls."""

import weakref
from typing import Any

import torch
from torch import Tensor

from sluice.trace.hooks.call_groups import (
    CallGroup,
    RefinementDetector,
    has_distinctive_rows,
)
from sluice.trace.inspection.column_statistics import (
    MAX_COLUMNS,
    ColumnStatistics,
    is_channels_first,
)
from sluice.trace.inspection.fingerprints import NETWORK
from sluice.trace.inspection.functorch import in_functorch_transform
from sluice.trace.inspection.plain_tensors import first_tensor, is_8bit_float, tensor_refs
from sluice.trace.inspection.token_statistics import TokenCounts, is_token_sequence
from sluice.trace.program_events import (
    BackwardBegins,
    NetworkCalled,
    NetworkReturned,
    TraceBegan,
    TraceEnded,
)
from sluice.trace.records.inputs import InputRecord, NonFiniteTensorRecord, RowsRecord
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

NUM_FIRST_CALLS = 64
"""Number of first calls of a call group that are all inspected."""
_NUM_CALLS_AT_WRITES = (1, 4, 16, NUM_FIRST_CALLS)
"""The statistics of a call group are written after these numbers of inspected calls, and at the end
of the trace."""
_MAX_GROUPS = 16
"""Maximum number of call groups in a trace. The calls of further groups are not inspected."""
_MAX_ROWS = 1024
"""Maximum number of row fingerprints in the record of a call."""
_MAX_NONFINITE_RECORDS = 8
"""Maximum number of records of non-finite values in a trace."""
_MAX_LISTED_INDICES = 8
"""Maximum number of columns, and of rows, that are listed in a record of non-finite values."""


class InputWatch:
    """Inspects the network inputs of all threads."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._reset()

    def _reset(self) -> None:
        self._groups: dict[tuple[int, int, bool, bool], CallGroup] = {}
        self._recorded_nonfinite: set[tuple[int, str]] = set()
        """Step, and 'input' or 'target', of each recorded non-finite tensor."""

    def subscribe(self) -> None:
        """Inspect the inputs of all networks from now on."""
        bus = self._tracer.bus
        bus.subscribe(TraceBegan, lambda _: self._reset())
        bus.subscribe(NetworkCalled, self.on_call)
        bus.subscribe(NetworkReturned, self._on_network_returned)
        bus.subscribe(BackwardBegins, self._on_backward)
        bus.subscribe(TraceEnded, lambda _: self._finish())

    def on_call(self, called: NetworkCalled) -> None:
        """Inspect one call of a network that is not nested in another network, before it runs."""
        thread, network = called.thread, called.entry.index
        call = thread.call
        if call.nonfinite_input is not None:  # the previous call raised an error
            self.write_nonfinite_input(thread, None)
        call.network = network
        call.inputs = tensor_refs(called.args, called.kwargs)
        group_key = (network, thread.last_loader, torch.is_grad_enabled(), called.module.training)
        group = self._groups.get(group_key)
        if group is None and len(self._groups) < _MAX_GROUPS:
            group = CallGroup(
                network,
                thread.last_loader,
                is_grad_enabled=torch.is_grad_enabled(),
                is_training=called.module.training,
            )
            self._groups[group_key] = group
        call.group = group
        if group is None or not call.inputs:
            return
        if group.num_calls >= NUM_FIRST_CALLS:
            # A few more calls are inspected if a backward pass already ran in this step. With
            # gradient accumulation, they show whether later micro-batches contain new rows.
            if not (thread.step.losses and group.num_extra_calls_left):
                return
            group.num_extra_calls_left -= 1
        tensor = call.inputs[0]()
        if tensor is None or not tensor.dim() or not tensor.numel() or tensor.is_complex():
            return
        if not in_functorch_transform():
            self._inspect(thread, group, tensor)

    def _on_network_returned(self, returned: NetworkReturned) -> None:
        if returned.thread.call.nonfinite_input is not None:
            self.write_nonfinite_input(returned.thread, first_tensor(returned.output))

    def _on_backward(self, begins: BackwardBegins) -> None:
        """Mark the group of the last call as training calls, and write its pending row records."""
        group = begins.thread.call.group
        if group is None or not group.awaits_backward:
            return
        group.awaits_backward, group.is_learning = False, True
        for record in group.pending_row_records:
            self._tracer.recorder.write("rows", record.model_copy(update={"is_learning": True}))
        group.pending_row_records = []

    def record_nonfinite(
        self, tensor: Tensor, what: Any, *, is_learning: bool, is_before_call: bool = False
    ) -> None:
        """Record a tensor if it has NaN or infinite values; scalars are not checked.

        At most 8 tensors are recorded in a trace, and one input and one target per step.

        Args:
            tensor: Argument of a network or of a loss function.
            what: 'input' or 'target'.
            is_learning: Whether gradients are enabled, so that a backward pass may follow.
            is_before_call: Whether the tensor is an input of a network that is about to run. Its
                record is written after the call.
        """
        tracer = self._tracer
        thread, values = tracer.local.thread, tensor.detach()
        if not values.is_floating_point() or not values.dim() or not values.numel():
            return
        if is_8bit_float(values):
            values = values.float()
        is_nonfinite = ~values.isfinite()
        if not bool(is_nonfinite.any()):
            return
        record_key = (tracer.steps.last_step, what)
        recorded_keys = self._recorded_nonfinite
        if len(recorded_keys) >= _MAX_NONFINITE_RECORDS or record_key in recorded_keys:
            return
        recorded_keys.add(record_key)
        row_numel = values[0].numel()
        nonfinite_by_row = is_nonfinite.reshape(values.shape[0], -1)
        # A column is defined as in ``ColumnStatistics``.
        if row_numel > MAX_COLUMNS and values.dim() > 2:
            columns = is_nonfinite.reshape(-1, values.shape[-1]).any(0).nonzero()[:, 0].tolist()
        else:
            columns = nonfinite_by_row.any(0).nonzero()[:, 0].tolist()
        rows = nonfinite_by_row.any(1).nonzero()[:, 0].tolist()
        num_nan = int(values.isnan().sum())
        record = NonFiniteTensorRecord(
            step=tracer.steps.last_step,
            network=thread.call.network,
            loader=thread.last_loader,
            what=what,
            is_learning=is_learning,
            shape=tuple(values.shape),
            num_nan=num_nan,
            num_infinite=int(is_nonfinite.sum()) - num_nan,
            columns=tuple(columns[:_MAX_LISTED_INDICES]),
            num_columns=len(columns),
            rows=tuple(rows[:_MAX_LISTED_INDICES]),
            num_rows=len(rows),
        )
        if is_before_call:
            thread.call.nonfinite_input = record
        else:
            tracer.recorder.write("bad_numbers", record)

    def write_nonfinite_input(self, thread: ThreadState, output: Tensor | None) -> None:
        """Write the record of the last non-finite input.

        Args:
            thread: Thread of the call.
            output: First output tensor of the network, which may be non-finite, too; None if it is
                not available.
        """
        record, thread.call.nonfinite_input = thread.call.nonfinite_input, None
        if output is not None and is_8bit_float(output):
            output = output.float()
        if output is not None and output.is_floating_point() and not bool(output.isfinite().all()):
            record = record.model_copy(update={"reaches_output": True})
        self._tracer.recorder.write("bad_numbers", record)

    def _finish(self) -> None:
        """Write all records that are not written yet."""
        thread = self._tracer.local.thread
        if thread.call.nonfinite_input is not None:
            self.write_nonfinite_input(thread, None)
        for group in self._groups.values():
            if group.num_calls not in (0, *_NUM_CALLS_AT_WRITES):
                self._write_statistics(group)
            for record in group.pending_row_records:
                self._tracer.recorder.write("rows", record)
            group.pending_row_records = []

    def _inspect(self, thread: ThreadState, group: CallGroup, tensor: Tensor) -> None:
        tracer = self._tracer
        began_ns = tracer.clock()
        with torch.no_grad():
            group.last_step = tracer.steps.last_step
            if not group.num_calls:
                group.first_step = tracer.steps.last_step
                group.dtype = str(tensor.dtype).removeprefix("torch.")
                group.has_distinctive_rows = has_distinctive_rows(tensor)
                group.matches_model_output = any(
                    entry.output_row_shape == tensor.shape[1:] and entry.index != group.network
                    for entry in tracer.objects.networks.entries
                )
                # A diffusion model generates by refining its own output in several calls.
                if group.loader == -1 and not group.is_grad_enabled:
                    group.refinement_detector = RefinementDetector()
            group.num_calls += 1
            group.num_rows += tensor.shape[0]
            group.shape = tuple(tensor.shape)
            group.is_generated = group.is_generated or _is_model_output(tensor, thread.call.output)
            if tensor.is_floating_point():
                if group.column_statistics is None:
                    group.column_statistics = ColumnStatistics(tensor)
                    if is_channels_first(tensor):
                        group.channel_statistics = ColumnStatistics(tensor, by_channel=True)
                group.column_statistics.add(tensor)
                if group.channel_statistics is not None:
                    group.channel_statistics.add(tensor)
                if group.refinement_detector is not None and tensor.layout == torch.strided:
                    group.refinement_detector.add(tensor, tracer.steps.last_step)
                self.record_nonfinite(
                    tensor, "input", is_learning=group.is_grad_enabled, is_before_call=True
                )
            elif is_token_sequence(tensor):
                if group.token_counts is None:
                    group.token_counts = TokenCounts(tensor)
                group.token_counts.add(tensor)
            self._write_rows(group, tensor)
            for position, ref in enumerate(thread.call.inputs[1:], 1):
                other = ref()
                if other is not None and is_token_sequence(other) and other.numel():
                    counts = group.other_token_counts.setdefault(position, TokenCounts(other))
                    counts.add(other)
        if group.num_calls in _NUM_CALLS_AT_WRITES:
            self._write_statistics(group)
        if tracer.sampling.samples_statistics:
            thread.step.add_cost(tracer.clock() - began_ns)

    def _write_rows(self, group: CallGroup, tensor: Tensor) -> None:
        tracer = self._tracer
        sample_size = tracer.settings.row_sample_size
        fingerprints = tracer.sampling.fingerprint_cache.fingerprint(
            tensor, sample_size=sample_size, stage=NETWORK
        )
        record = RowsRecord(
            step=tracer.steps.last_step,
            network=group.network,
            loader=group.loader,
            is_learning=group.is_learning,
            is_integer=not tensor.is_floating_point(),
            is_continuous=group.has_distinctive_rows,
            rows=fingerprints[:_MAX_ROWS],
            num_rows=tensor.shape[0],
        )
        if group.is_grad_enabled and not group.is_learning:
            group.pending_row_records.append(record)
        else:
            tracer.recorder.write("rows", record)

    def _write_statistics(self, group: CallGroup) -> None:
        columns, detector = group.column_statistics, group.refinement_detector
        correlated_statistics = group.channel_statistics or columns
        record = InputRecord(
            step=group.last_step,
            first_step=group.first_step,
            network=group.network,
            loader=group.loader,
            is_learning=group.is_learning,
            num_calls=group.num_calls,
            num_rows=group.num_rows,
            shape=group.shape,
            is_generated=group.is_generated or (detector is not None and detector.is_refining),
            matches_model_output=group.matches_model_output,
            dtype=group.dtype,
            by_position=columns is not None and columns.is_flattened,
            columns=() if columns is None else columns.records(),
            channels=() if group.channel_statistics is None else group.channel_statistics.records(),
            correlations=(
                () if correlated_statistics is None else correlated_statistics.correlations()
            ),
            tokens=None if group.token_counts is None else group.token_counts.record(),
            other_tokens=tuple(counts.record() for counts in group.other_token_counts.values()),
        )
        self._tracer.recorder.write("input", record)


def _is_model_output(tensor: Tensor, output_ref: "weakref.ref[Tensor] | None") -> bool:
    """Return whether a tensor shares memory with the last network output, or requires gradients."""
    if tensor.requires_grad:
        return True
    last_output = None if output_ref is None else output_ref()
    if last_output is None or not tensor.layout == last_output.layout == torch.strided:
        return False
    return tensor.untyped_storage().data_ptr() == last_output.untyped_storage().data_ptr()
