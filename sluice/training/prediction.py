"""Predictions and mean losses of a network on row sources, chunk by chunk.

Shape legend: N = examples, O = outputs.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.out_of_memory import explain_out_of_memory, prediction_memory_advice
from sluice.data.rows.protocol import (
    DictRows,
    ModelInput,
    RowSource,
    gather,
    gather_targets,
    input_parts,
    move_input,
    spread_rows,
)
from sluice.training.accumulation import LossFunction
from sluice.training.device import device_of
from sluice.workloads.workload import Examples

_MAX_CHUNK_ROWS = 4096
"""Maximum number of rows scored at once. It bounds memory and affects the bits, so it is not a
setting."""

_CHUNK_BYTES = 4 * 2**20
"""Input of a chunk of a row source [bytes]."""

_SIZED_ROWS = 16
"""Rows of a source whose size is measured."""


def predict(model: nn.Module, x: ModelInput | RowSource) -> Tensor:
    """Return the predictions for all rows of ``x``, in row order, in fp32.

    They are computed and returned on the device of the model. Inputs are read and computed in
    chunks: 4,096 rows of a tensor; of another source at most 4,096 rows and about 4 MiB.
    """
    source = DictRows(x) if isinstance(x, dict) else x
    training = model.training
    model.eval()
    outputs = torch.cat([output for _, output in _outputs(model, source, chunk_rows(source))])
    model.train(training)
    return outputs


def mean_loss(
    model: nn.Module,
    losses_fn: LossFunction,
    rows: Examples,
    *,
    num_chunk_rows: int | None = None,
    after_chunk: Callable[[], None] | None = None,
) -> float:
    """Return the mean loss of ``model`` on ``rows``, without training it.

    Only one loss per row is kept in memory, and the inputs and outputs of one chunk.

    Args:
        model: Maps ``rows.x`` to predictions.
        losses_fn: Function of (output, y) to one loss per row (B,).
        rows: Examples.
        num_chunk_rows: Rows of a chunk, as returned by ``chunk_rows``; None to compute it.
        after_chunk: Called after every chunk.

    Raises:
        ContractError: ``losses_fn`` does not return one loss per row, and there are several chunks.
    """
    size = chunk_rows(rows.x) if num_chunk_rows is None else num_chunk_rows
    training = model.training
    model.eval()
    losses = []
    for start, output in _outputs(model, rows.x, size):
        y = _targets(rows.y, start, start + size)
        losses.append(losses_fn(output, y.to(output.device)))
        if len(losses) > 1 and not losses[-1].ndim:
            raise ContractError(
                f"losses() must return one loss per example, got a scalar for {len(y)} examples.",
                fix="Return a tensor with one loss per example; loss() returns their mean.",
            )
        if after_chunk is not None:
            after_chunk()
    model.train(training)
    return float((losses[0] if len(losses) == 1 else torch.cat(losses)).double().mean())


def chunk_rows(source: Tensor | RowSource) -> int:
    """Return the number of rows of a chunk: a pure function of the source.

    The size of a row is measured on evenly spaced rows, which are read together, so padding to the
    longest of them counts.
    """
    if isinstance(source, Tensor) or not len(source):
        return _MAX_CHUNK_ROWS
    rows = spread_rows(len(source), _SIZED_ROWS)
    num_bytes = sum(part.nbytes for part in input_parts(gather(source, rows)))
    return max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES * len(rows) // max(num_bytes, 1)))


def read_in_chunks(source: Tensor | RowSource) -> Iterator[ModelInput]:
    """Yield the inputs of all examples, in order, in chunks of ``chunk_rows``."""
    size = chunk_rows(source)
    for start in range(0, len(source), size):
        yield _inputs(source, start, start + size)


def _outputs(
    model: nn.Module, source: Tensor | RowSource, size: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the first row and the output of every chunk."""
    num_rows = len(source)
    device = device_of(model, source.device if isinstance(source, Tensor) else torch.device("cpu"))
    description = f"predicting {num_rows} rows, {min(num_rows, size)} at once"
    for start in range(0, max(num_rows, 1), size):
        x = _inputs(source, start, start + size)
        # Not around the yield: the caller's code would run in inference mode.
        with torch.inference_mode(), explain_out_of_memory(description, prediction_memory_advice):
            output = model(move_input(x, device))
        yield start, output


def _inputs(source: Tensor | RowSource, start: int, stop: int) -> ModelInput:
    if isinstance(source, Tensor):
        return source[start:stop]
    return gather(source, torch.arange(start, min(stop, len(source))))


def _targets(source: Tensor | RowSource, start: int, stop: int) -> Tensor:
    if isinstance(source, Tensor):
        return source[start:stop]
    return gather_targets(source, torch.arange(start, min(stop, len(source))))
