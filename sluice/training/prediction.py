"""Predictions and mean losses of a network on row sources, chunk by chunk.

Shape legend: N = examples, B = rows of a chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.out_of_memory import (
    PREDICTION_CAUSE,
    explain_out_of_memory,
    prediction_memory_advice,
)
from sluice.base.pluralize import pluralize
from sluice.data.rows.protocol import (
    DictRows,
    ModelInput,
    RowSource,
    gather,
    gather_targets,
    gather_tensor,
    input_parts,
    move_input,
    spread_rows,
)
from sluice.training.accumulation import LossFunction
from sluice.training.device import device_of
from sluice.workloads.examples import Examples

_MAX_CHUNK_ROWS = 4096
"""Maximum number of rows that are scored at once, to limit the memory. It affects the bits, so it
is not a setting."""

_CHUNK_BYTES = 4 * 2**20
"""Target size of the inputs of a chunk of a row source [bytes]."""

_OUTPUT_BYTES = 32 * 2**20
"""Target size of the outputs of a chunk [bytes], for example 64 texts of 64 tokens and a vocabulary
of 2,048. The computation of losses needs a few times this memory."""

_NUM_MEASURED_ROWS = 16
"""Number of rows on which the size of a row is measured."""


def predict(model: nn.Module, x: ModelInput | RowSource) -> Tensor:
    """Return the predictions for all rows of ``x``, in row order, in fp32.

    The predictions are computed chunk by chunk, and returned on the device of the model. If ``x``
    is a tensor, a chunk has 4,096 rows. Otherwise, a chunk has at most 4,096 rows and inputs of
    about 4 MiB.
    """
    source = DictRows(x) if isinstance(x, dict) else x
    was_training = model.training
    model.eval()
    outputs = torch.cat(
        [output for _, output in _predict_chunks(model, source, rows_per_chunk(source))]
    )
    model.train(was_training)
    return outputs


def mean_loss(
    model: nn.Module,
    losses_fn: LossFunction,
    rows: Examples,
    *,
    chunk_size: int | None = None,
    after_chunk: Callable[[], None] | None = None,
) -> float:
    """Return the mean loss of ``model`` on ``rows``, in evaluation mode.

    Memory holds one loss per row, and the inputs and outputs of one chunk.

    Args:
        model: Maps ``rows.x`` to predictions.
        losses_fn: Function of (output, y) to one loss per row (B,).
        rows: Examples.
        chunk_size: Rows of a chunk, as returned by ``rows_per_chunk``; None to compute it.
        after_chunk: Called after every chunk.

    Raises:
        ContractError: ``losses_fn`` does not return one loss per row, and there are several chunks.
    """
    if chunk_size is None:
        chunk_size = rows_per_chunk(rows.x, model)
    was_training = model.training
    model.eval()
    losses = []
    for start, output in _predict_chunks(model, rows.x, chunk_size):
        y = _read_targets(rows.y, start, start + chunk_size)
        losses.append(losses_fn(output, y.to(output.device)))
        if len(losses) > 1 and not losses[-1].ndim:
            raise ContractError(
                "losses() must return one loss per example, got a scalar for "
                f"{pluralize(len(y), 'example')}.",
                fix="Return a tensor with one loss per example; loss() returns their mean.",
            )
        if after_chunk is not None:
            after_chunk()
    model.train(was_training)
    return float((losses[0] if len(losses) == 1 else torch.cat(losses)).double().mean())


def rows_per_chunk(source: Tensor | RowSource, model: nn.Module | None = None) -> int:
    """Return the number of rows of a chunk: a pure function of the source and the model's outputs.

    The size of a row is measured on evenly spaced rows. These rows are read as one batch, so the
    size includes padding.

    Args:
        source: Inputs.
        model: Network whose outputs limit a chunk, too: the outputs of a language model are much
            larger than its inputs. None to measure only the inputs. If the source is a tensor of
            floats, nothing is measured.
    """
    if not len(source) or (
        isinstance(source, Tensor) and (model is None or source.is_floating_point())
    ):
        return _MAX_CHUNK_ROWS
    rows = spread_rows(len(source), _NUM_MEASURED_ROWS)
    batch = gather(source, rows)
    chunk_size = _MAX_CHUNK_ROWS
    if not isinstance(source, Tensor):
        num_bytes = sum(tensor.nbytes for tensor in input_parts(batch))
        chunk_size = min(chunk_size, _CHUNK_BYTES * len(rows) // max(num_bytes, 1))
    if model is not None:
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            output = model(move_input(batch, device_of(model, torch.device("cpu"))))
        model.train(was_training)
        if isinstance(output, Tensor):
            chunk_size = min(chunk_size, _OUTPUT_BYTES * len(rows) // max(output.nbytes, 1))
    return max(1, chunk_size)


class PredictedRows:
    """Row source of the outputs of a network, which are computed when they are read.

    The outputs are returned on the CPU.

    Args:
        model: Network.
        x: Inputs of the network.
    """

    def __init__(self, model: nn.Module, x: Tensor | RowSource) -> None:
        self._model, self._x = model, x

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        was_training = self._model.training
        self._model.eval()
        x = move_input(gather(self._x, rows), device_of(self._model, torch.device("cpu")))
        with torch.inference_mode():
            output: Tensor = self._model(x)
        self._model.train(was_training)
        return output.cpu()


class OutputChunk(NamedTuple):
    """Outputs of several models for consecutive examples, and the targets of these examples."""

    outputs: tuple[Tensor, ...]
    """Output of each model (B, ...)."""
    y: Tensor
    """Targets (B, ...)."""
    rows: Tensor
    """Positions of the examples, int64 (B,)."""


def iter_outputs(
    sources: Sequence[Tensor | RowSource], y: Tensor | RowSource
) -> Iterator[OutputChunk]:
    """Yield the outputs of several models, with the targets, chunk by chunk.

    The outputs of one chunk are in memory together, at most about 32 MiB for each model.

    Args:
        sources: Outputs of each model for the same examples, such as ``PredictedRows``.
        y: Targets of these examples.
    """
    num_rows = len(y)
    measured_rows = spread_rows(num_rows, _NUM_MEASURED_ROWS)
    num_bytes = max(gather_tensor(s, measured_rows, what="outputs").nbytes for s in sources)
    max_rows = _OUTPUT_BYTES * len(measured_rows) // max(num_bytes, 1)
    chunk_size = min(_MAX_CHUNK_ROWS, max(1, max_rows))
    for start in range(0, num_rows, chunk_size):
        rows = torch.arange(start, min(start + chunk_size, num_rows))
        yield OutputChunk(
            tuple(gather_tensor(source, rows, what="outputs") for source in sources),
            gather_targets(y, rows),
            rows,
        )


def row_losses(model: nn.Module, losses_fn: LossFunction, rows: Examples) -> Tensor:
    """Return the loss of ``model`` for every row (N,), with the outputs of one chunk in memory."""
    with torch.inference_mode():
        return torch.cat(
            [
                losses_fn(chunk.outputs[0], chunk.y)
                for chunk in iter_outputs([PredictedRows(model, rows.x)], rows.y)
            ]
        )


def read_in_chunks(source: Tensor | RowSource) -> Iterator[ModelInput]:
    """Yield the inputs of all examples, in order, in chunks of ``rows_per_chunk``."""
    chunk_size = rows_per_chunk(source)
    for start in range(0, len(source), chunk_size):
        yield _read_inputs(source, start, start + chunk_size)


def _predict_chunks(
    model: nn.Module, source: Tensor | RowSource, chunk_size: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of the first row, and the output, of every chunk."""
    num_rows = len(source)
    device = device_of(model, source.device if isinstance(source, Tensor) else torch.device("cpu"))
    description = f"predicting {num_rows} rows, {min(num_rows, chunk_size)} at once"
    for start in range(0, max(num_rows, 1), chunk_size):
        x = _read_inputs(source, start, start + chunk_size)
        # The context ends before the yield, so that the caller's code is not in inference mode.
        with (
            torch.inference_mode(),
            explain_out_of_memory(description, prediction_memory_advice, cause=PREDICTION_CAUSE),
        ):
            output = model(move_input(x, device))
        yield start, output


def _read_inputs(source: Tensor | RowSource, start: int, stop: int) -> ModelInput:
    if isinstance(source, Tensor):
        return source[start:stop]
    return gather(source, torch.arange(start, min(stop, len(source))))


def _read_targets(source: Tensor | RowSource, start: int, stop: int) -> Tensor:
    if isinstance(source, Tensor):
        return source[start:stop]
    return gather_targets(source, torch.arange(start, min(stop, len(source))))
