"""Samples rows of the input together with their targets.

A row that was sampled from an earlier batch of the training phase is not sampled again, not even
for another network. A training phase begins with the training, with a new optimizer, or with a jump
of the loss.
"""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.fingerprints import LOSS
from sluice.trace.inspection.plain_tensors import is_plain_dense
from sluice.trace.inspection.target_sketch import (
    FeatureScaling,
    constant_loss,
    encode_features,
    fit_scaling,
    row_features,
    target_column,
)
from sluice.trace.inspection.targets import find_reached_outputs
from sluice.trace.records.inputs import TargetSampleRecord
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_MAX_ROWS = 1024
"""Maximum number of rows that are sampled per network in each training phase."""


class TargetSampler:
    """Samples rows and targets of each network, in each training phase."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._phase = -1
        self.begin_phase()

    def begin_phase(self) -> None:
        """Begin a training phase, in which rows of earlier phases may be sampled again."""
        self._phase += 1
        self._num_rows_by_network: dict[int, int] = {}
        self._sampled_rows: set[int] = set()
        """Fingerprints of the sampled rows of all networks."""
        self._feature_scalings: dict[int, FeatureScaling] = {}
        """Scaling of the row features by network, fitted on the first batch."""
        self._target_columns: dict[int, int] = {}
        """Index of the sampled column of the targets by network."""

    def add(self, kind: str, loss_input: Any, target: Any) -> None:
        """Sample the targets that a loss function compares with outputs of the last network.

        Args:
            kind: Name of the loss function.
            loss_input: Input of the loss function. Nothing is sampled if a network call before
                the last call computed it.
            target: Target of the loss function.
        """
        tracer, thread = self._tracer, self._tracer.local.thread
        num_sampled = self._num_rows_by_network.get(thread.call.network, 0)
        if (
            num_sampled >= _MAX_ROWS
            or not thread.call.inputs
            or not self._comes_from_last_call(thread, loss_input)
        ):
            return
        # Every input may determine the target, so all of them are sampled.
        inputs: list[Any] = [ref() for ref in thread.call.inputs]
        if not is_plain_dense(target) or not all(map(_can_sample, inputs)):
            return
        # An input that is also the target, as in an autoencoder, is excluded.
        inputs = [batch for batch in inputs if not _shares_memory(batch, target)]
        if not inputs or len({batch.shape[0] for batch in inputs}) > 1:
            return
        began_ns = tracer.clock()
        with torch.no_grad():
            targets_and_column = target_column(
                target, inputs[0].shape[0], self._target_columns.get(thread.call.network)
            )
            if targets_and_column is None:
                return
            targets, is_class, self._target_columns[thread.call.network] = targets_and_column
            sample_size = tracer.settings.row_sample_size
            fingerprint_cache = tracer.sampling.fingerprint_cache
            fingerprints_by_input = [
                fingerprint_cache.fingerprint(batch, sample_size=sample_size, stage=LOSS)[
                    :_MAX_ROWS
                ]
                for batch in inputs
            ]
            # Each row gets one fingerprint of all inputs together.
            row_fingerprints = fingerprints_by_input[0]
            if len(fingerprints_by_input) > 1:
                row_fingerprints = (*map(hash, zip(*fingerprints_by_input, strict=True)),)
            new_row_indices = [
                i
                for i, fingerprint in enumerate(row_fingerprints)
                if fingerprint not in self._sampled_rows
            ][: _MAX_ROWS - num_sampled]
            if not new_row_indices:
                return
            self._sampled_rows.update(row_fingerprints[i] for i in new_row_indices)
            features = torch.cat([row_features(batch[new_row_indices]) for batch in inputs], 1)
            scaling = self._feature_scalings.get(thread.call.network)
            if scaling is None:
                scaling = self._feature_scalings[thread.call.network] = fit_scaling(features)
            if scaling.mean.shape[0] != features.shape[1]:
                return
            record = TargetSampleRecord(
                step=tracer.steps.last_step,
                phase=self._phase,
                network=thread.call.network,
                kind=kind,
                is_class=is_class,
                is_integer=not any(batch.is_floating_point() for batch in inputs),
                rows=tuple(row_fingerprints[i] for i in new_row_indices),
                targets=tuple(targets[new_row_indices].tolist()),
                prior=constant_loss(kind, target),
                num_features=features.shape[1],
                features=encode_features(features, scaling),
            )
        self._num_rows_by_network[thread.call.network] = num_sampled + len(new_row_indices)
        tracer.recorder.write("pair", record)
        if tracer.sampling.samples_statistics:
            thread.step.add_cost(tracer.clock() - began_ns)

    def _comes_from_last_call(self, thread: ThreadState, loss_input: Any) -> bool:
        """Return whether the last network call computed the input of the loss function.

        Three cases return True without a check: the network is still running, its call is the only
        call since the last backward pass, or its output no longer exists.
        """
        interner, num_calls = self._tracer.events.interner, 0
        for code in reversed(thread.step.codes):
            kind = interner.event(code)[0]
            if kind == "backward":
                break
            num_calls += kind == "forward"
        output = None if thread.call.output is None else thread.call.output()
        if thread.forward.is_running or num_calls < 2 or output is None or output is loss_input:
            return True
        return type(loss_input) is Tensor and bool(
            find_reached_outputs(loss_input, [output.grad_fn])
        )


def _can_sample(batch: Tensor | None) -> bool:
    if batch is None or batch.is_complex() or batch.layout != torch.strided:
        return False
    return bool(batch.dim() and batch.numel())


def _shares_memory(batch: Tensor, target: Tensor) -> bool:
    return batch.numel() == target.numel() and batch.data_ptr() == target.data_ptr()
