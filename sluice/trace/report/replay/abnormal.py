"""Finds the first abnormal tensor of a run: non-finite values, or an all-zero ReLU output."""

import math
from collections.abc import Iterator

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.records.membership import Membership
from sluice.trace.records.step_statistics import OptimizerStatistics, StepStatistics
from sluice.trace.records.trace import Trace


class AbnormalTensor(Record):
    """One abnormal tensor at one step."""

    step: int
    tensor: str = Field(description="Name, such as 'input column 3' or 'output of Net.encoder'.")
    what: str = Field(description="What is abnormal about the tensor.")


def first_abnormal(trace: Trace) -> AbnormalTensor | None:
    """Return the first abnormal tensor: with a non-finite value, or an all-zero ReLU output.

    Within a step, tensors are in the order of the computation: inputs, outputs in call order, loss,
    gradients in the order of the backward pass, weights. All-zero ReLU outputs come last.

    A trace does not cover every tensor at every step. A tensor may therefore have become abnormal
    before the step that is returned.
    """
    abnormal_tensors = [
        *_abnormal_inputs(trace),
        *_abnormal_in_statistics(trace),
        *_abnormal_gradients(trace),
        *_abnormal_weights(trace),
        *_abnormal_losses(trace),
    ]
    return min(abnormal_tensors, key=lambda entry: entry[:2], default=(0, 0, None))[2]


_INPUT, _OUTPUT, _LOSS, _GRADIENT, _WEIGHT, _DEAD_OUTPUT = range(6)
"""Order of abnormal tensors within a step. A dead output is a ReLU output that is all zeros."""

_OrderedTensor = tuple[int, int, AbnormalTensor | None]
"""Step, order within the step, and the tensor."""


def _ordered_tensor(step: int, order: int, tensor: str, what: str) -> _OrderedTensor:
    return step, order, AbnormalTensor(step=step, tensor=tensor, what=what)


def _abnormal_inputs(trace: Trace) -> Iterator[_OrderedTensor]:
    for record in trace.nonfinite_tensors:
        columns = ", ".join(map(str, record.columns))
        if record.num_columns > len(record.columns):
            columns += ", ..."
        noun = "column" if record.num_columns == 1 else "columns"
        name = f"{record.what} {noun} {columns}" if columns else record.what
        what = (
            f"{record.num_nan} NaN and {record.num_infinite} infinite values in "
            f"{record.num_rows} of {record.shape[0] if record.shape else 1} rows"
        )
        # The record has the number of steps before the call; the call belongs to the next step.
        yield _ordered_tensor(record.step + 1, _INPUT, name, what)


def _abnormal_in_statistics(trace: Trace) -> Iterator[_OrderedTensor]:
    for statistics in trace.statistics:
        yield from _abnormal_outputs(trace, statistics)
        for optimizer in statistics.optimizers:
            yield from _abnormal_parameters(trace, statistics.step, optimizer)


def _abnormal_outputs(trace: Trace, statistics: StepStatistics) -> Iterator[_OrderedTensor]:
    for output in statistics.outputs:
        network = network_name(trace.membership, output.network)
        name = f"output of {network}.{output.module}" if output.module else f"output of {network}"
        if not math.isfinite(output.norm):
            yield _ordered_tensor(statistics.step, _OUTPUT, name, "its norm is non-finite")
        elif output.zero_share == 1 and output.numel > 1 and "ReLU" in output.kind:
            what = f"all {output.numel:,} values are 0"
            yield _ordered_tensor(statistics.step, _DEAD_OUTPUT, name, what)


def _abnormal_parameters(
    trace: Trace, step: int, optimizer: OptimizerStatistics
) -> Iterator[_OrderedTensor]:
    for order, prefix, norms in (
        (_GRADIENT, "gradient of", optimizer.grad_norms),
        (_WEIGHT, "weights of", optimizer.weight_norms),
    ):
        # Report the last abnormal parameter: it is nearest to the loss, where the backward pass
        # starts.
        pairs = zip(reversed(optimizer.parameters), reversed(norms), strict=True)
        index = next((index for index, norm in pairs if not math.isfinite(norm)), None)
        if index is not None:
            name = f"{prefix} {_parameter_name(trace.membership, index)}"
            yield _ordered_tensor(step, order, name, "its norm is non-finite")


def _abnormal_gradients(trace: Trace) -> Iterator[_OrderedTensor]:
    for record in trace.nonfinite_gradients:
        if record.parameters:
            # Name the last parameter: it is nearest to the loss.
            name = f"gradient of {_parameter_name(trace.membership, record.parameters[-1])}"
            what = f"it is non-finite, one of {len(record.parameters)} non-finite gradients"
            yield _ordered_tensor(record.step, _GRADIENT, name, what)


def _abnormal_weights(trace: Trace) -> Iterator[_OrderedTensor]:
    for record in trace.corrupted_weights:
        name = f"weights of {_parameter_name(trace.membership, record.parameters[-1])}"
        what = "non-finite values, although the gradients were finite"
        yield _ordered_tensor(record.step, _WEIGHT, name, what)


def _abnormal_losses(trace: Trace) -> Iterator[_OrderedTensor]:
    for scalars in trace.scalars:
        loss = next((loss for loss in scalars.losses if not math.isfinite(loss)), None)
        if loss is not None:
            yield _ordered_tensor(scalars.step, _LOSS, "the loss", f"it is {loss}")


def _parameter_name(membership: Membership | None, index: int) -> str:
    return f"parameter {index}" if membership is None else membership.name_of(index)


def network_name(membership: Membership | None, index: int) -> str:
    """Return the display name of a network."""
    networks = () if membership is None else membership.networks
    return next((n.name for n in networks if n.index == index), f"network {index}")
