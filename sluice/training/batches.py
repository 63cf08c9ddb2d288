"""Yields the batches of every epoch, in an order that depends only on the seed and the epoch."""

import functools
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sluice.base.errors import ContractError, SluiceError
from sluice.base.seeding import derive_seed
from sluice.data.rows.protocol import (
    ModelInput,
    RowSource,
    describe_input,
    gather,
    gather_targets,
    input_length,
    move_input,
)
from sluice.findings.user_code import wrap_user_errors
from sluice.training.orphans import end_with_parent
from sluice.training.ranks import WHOLE_BATCH, RankShard
from sluice.training.row_order import BatchPlan, example_seeds, require_lengths
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Augmentation

Batch = tuple[ModelInput, Tensor]
"""Inputs of this rank's rows, and the targets of all rows of the batch."""

_MAX_NAMED_ROWS = 8
"""Maximum number of row numbers of a batch that a message lists."""

_TERMINATION_DELAY_S = 10
"""Time that a loader process continues after SIGTERM [s], so that a training whose processes all
receive SIGTERM can finish its step."""


class Batches:
    """The batches of a training, by epoch.

    Args:
        rows: Examples from which the batches are read.
        batch_rows: Rows of a batch; the last batch of an epoch may have fewer.
        seed: Base seed, from which the seeds of each epoch's order and augmentation are derived.
        device: Device of the returned batches.
        workers: Number of loader processes that read batches in advance, useful if rows are slow
            to read. With 0, this process reads them. Loader processes draw no random numbers, so
            their number does not change the result.
        shard: Selects the rows of a batch that belong to this process; all rows if there are no
            other ranks.
        augment: Changes the examples of a batch at random; None for no change.
        by_length: Whether to put rows of similar lengths into a batch.

    Raises:
        ContractError: The numbers of inputs, targets and rows differ, or ``by_length`` is set for
            inputs that have no lengths.
    """

    def __init__(
        self,
        rows: Examples,
        *,
        batch_rows: int,
        seed: int,
        device: torch.device,
        workers: int,
        shard: RankShard = WHOLE_BATCH,
        augment: Augmentation | None = None,
        by_length: bool = False,
    ) -> None:
        _require_same_lengths(rows)
        self._rows = rows
        self._device = device
        self._plan = BatchPlan(
            len(rows),
            batch_rows=batch_rows,
            seed=seed,
            lengths_of=require_lengths(rows.x) if by_length else None,
        )
        self._reader = _BatchReader(rows, shard, seed, augment)
        self._layout: _Layout | None = None
        self._sampler = _EpochSampler()
        self._loader: DataLoader[Any] | None = None
        # Rows on a device are read in this process, because loader processes cannot share them.
        if workers and _device_of(rows.x).type == "cpu":
            self._loader = DataLoader(
                self._reader,
                sampler=self._sampler,
                batch_size=None,
                num_workers=workers,
                persistent_workers=True,
                collate_fn=_return_unchanged,
                # Loader processes end with this process, because they inherit its open files and
                # locks.
                worker_init_fn=functools.partial(_init_worker, os.getpid()),
                # The default would be torch's global generator, which belongs to the caller.
                generator=torch.Generator().manual_seed(derive_seed(seed, "loader")),
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return self._plan.num_batches

    @property
    def max_rows(self) -> int:
        """Number of rows of the largest batch."""
        return self._plan.max_rows

    def sizes(self) -> Tensor:
        """Return the number of rows of each batch of an epoch, int64."""
        return self._plan.sizes()

    def first_rows(self, num_rows: int) -> Batch:
        """Return the first ``num_rows`` examples, or all if there are fewer, in row order."""
        rows = torch.arange(min(num_rows, len(self._rows)))
        x, y = gather(self._rows.x, rows), gather_targets(self._rows.y, rows)
        return move_input(x, self._device), y.to(self._device)

    def iter_epoch(self, epoch: int, *, first_batch: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch.

        Args:
            epoch: Number of the epoch, counted from 1.
            first_batch: Number of the first batch, counted from 0. Earlier batches are not read.

        Raises:
            ContractError: The dtypes, numbers of dimensions or names of a batch differ from those
                of the first batch, or a row source breaks its contract. The message names epoch,
                batch and rows.
            SluiceError: Raised by a row source, or by the augmentation.
        """
        is_checked = self._reader.runs_user_code
        for batch_index, batch in enumerate(self._read(epoch, first_batch), start=first_batch):
            if isinstance(batch, SluiceError):
                raise self._with_position(batch, epoch, batch_index) from batch
            x, y = batch
            if is_checked:
                self._require_layout(x, y, epoch, batch_index)
            yield move_input(x, self._device), y.to(self._device)

    def close(self) -> None:
        """End the loader processes; this process reads later batches.

        Call this method also after a failed training, because the traceback of an error keeps the
        loader alive. If the garbage collector ended the loader processes, it could close their
        queues first, and then wait 10 s for each process.
        """
        iterator: Any = None if self._loader is None else self._loader._iterator
        self._loader = None
        if iterator is not None:
            iterator._shutdown_workers()

    def _read(self, epoch: int, first_batch: int) -> Iterator[Batch | SluiceError]:
        if self._loader is not None:
            self._sampler.start(self._plan, epoch, first_batch)
            yield from self._loader
            return
        device = _device_of(self._rows.x)
        for rows in self._plan.batches(epoch, first_batch=first_batch, device=device):
            yield self._reader.read(rows, epoch)

    def _require_layout(self, x: ModelInput, y: Tensor, epoch: int, batch_index: int) -> None:
        layout = _layout(x), _layout(y)
        if self._layout is None:
            self._layout = _Layout(layout, f"{describe_input(x)} and targets {describe_input(y)}")
        if layout == self._layout.value:
            return
        error = ContractError(
            "Every batch must have the dtype, names and number of dimensions of the first batch "
            f"({self._layout.text}); got {describe_input(x)} and targets {describe_input(y)}.",
            cause="The row source or the augmentation returned another layout for these rows.",
            fix="Convert every example to one dtype and one number of dimensions.",
        )
        raise self._with_position(error, epoch, batch_index)

    def _with_position(self, error: SluiceError, epoch: int, batch_index: int) -> SluiceError:
        """Return the error with the epoch, batch and rows in its message."""
        rows = self._plan.batch(epoch, batch_index).tolist()
        more = ", ..." if len(rows) > _MAX_NAMED_ROWS else ""
        row_numbers = ", ".join(map(str, rows[:_MAX_NAMED_ROWS])) + more
        what = (
            f"Epoch {epoch}, batch {batch_index + 1} of {self.steps_per_epoch} "
            f"(rows {row_numbers}): {error.what}"
        )
        return type(error)(what, cause=error.cause, fix=error.fix)


class _Layout(NamedTuple):
    """Layout of the first batch, which all batches must have."""

    value: tuple[object, object]
    """Dtypes, numbers of dimensions and names of the inputs, and of the targets."""
    text: str
    """The layout as text, for messages."""


def _layout(inputs: ModelInput) -> object:
    if isinstance(inputs, Tensor):
        return inputs.dtype, inputs.ndim
    return {name: (tensor.dtype, tensor.ndim) for name, tensor in inputs.items()}


def _device_of(source: Tensor | RowSource) -> torch.device:
    return source.device if isinstance(source, Tensor) else torch.device("cpu")


def _require_same_lengths(rows: Examples) -> None:
    num_inputs, num_targets = len(rows.x), len(rows.y)
    if not num_inputs == num_targets == len(rows):
        raise ContractError(
            f"Examples need one input, one target and one row each, got {num_inputs} inputs, "
            f"{num_targets} targets and {len(rows)} rows.",
            fix="Return x, y and rows of one length from examples().",
        )


def _return_unchanged(inputs: Any) -> Any:
    return inputs


def _init_worker(parent_pid: int, _worker: int) -> None:
    end_with_parent(parent_pid)

    def end_later(*_signal: Any) -> None:
        signal.alarm(_TERMINATION_DELAY_S)

    # Replace torch's handler, which would end the loader process at once, even in the middle of a
    # training step.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, end_later)


class _BatchIndex(NamedTuple):
    """Epoch and rows of one batch, which are sent to a loader process."""

    epoch: int
    rows: NDArray[np.int64]
    """Row numbers. An array, because torch sends a tensor through shared memory, which is slower
    for a few numbers."""


class _EpochSampler:
    """Sampler of the DataLoader: yields the batches of one epoch after each ``start``."""

    def __init__(self) -> None:
        self._batches: Iterator[Tensor] = iter(())
        self._epoch, self._num_batches = 0, 0

    def start(self, plan: BatchPlan, epoch: int, first_batch: int) -> None:
        """Continue with the batches of an epoch, from ``first_batch`` on."""
        self._batches = plan.batches(epoch, first_batch=first_batch)
        self._epoch, self._num_batches = epoch, plan.num_batches - first_batch

    def __iter__(self) -> Iterator[_BatchIndex]:
        return (_BatchIndex(self._epoch, rows.numpy()) for rows in self._batches)

    def __len__(self) -> int:
        return self._num_batches


class _BatchReader(Dataset[Batch | SluiceError]):
    """Dataset that is indexed by whole batches."""

    def __init__(
        self, rows: Examples, shard: RankShard, seed: int, augment: Augmentation | None
    ) -> None:
        self._x, self._y, self._shard = rows.x, rows.y, shard
        self._num_rows, self._seed, self._augment = len(rows), seed, augment
        self._sources: Sequence[RowSource] = [
            source for source in (rows.x, rows.y) if not isinstance(source, Tensor)
        ]
        self.runs_user_code = bool(self._sources) or augment is not None
        """Whether user code runs for a batch. It may fail, or return a batch of another layout."""

    def __getitem__(self, index: _BatchIndex) -> Batch | SluiceError:
        return self.read(torch.from_numpy(index.rows), index.epoch)

    def read(self, rows: Tensor, epoch: int) -> Batch | SluiceError:
        """Return one batch, or the error that reading it raised.

        The error is returned and not raised, because a raised exception loses its cause and fix
        between processes.
        """
        if not self.runs_user_code:
            return gather(self._x, self._shard.local_rows(rows)), gather_targets(self._y, rows)
        try:
            with wrap_user_errors("Reading the examples"):
                self._require_unchanged_length()
                return self._read(rows, epoch)
        except SluiceError as error:
            return error

    def _read(self, rows: Tensor, epoch: int) -> Batch:
        if self._augment is None:
            return gather(self._x, self._shard.local_rows(rows)), gather_targets(self._y, rows)
        # Each rank augments the whole batch, because the loss weight depends on all targets and
        # must be the same on every rank.
        x, y = gather(self._x, rows), gather_targets(self._y, rows)
        seeds = example_seeds(rows.cpu(), seed=self._seed, epoch=epoch).to(y.device)
        x, y = self._augment(x, y, seeds)
        _require_augmented(x, y, len(rows))
        if self._shard.world_size == 1:
            return x, y
        return _local_examples(x, self._shard), y

    def _require_unchanged_length(self) -> None:
        for source in self._sources:
            if len(source) != self._num_rows:
                raise ContractError(
                    f"{type(source).__name__} had {self._num_rows} examples when the training "
                    f"started, and now has {len(source)}.",
                    cause="The files of the row source changed during the training.",
                    fix="Train on files that do not change, and start again.",
                )


def _local_examples(x: ModelInput, shard: RankShard) -> ModelInput:
    """Return this rank's examples, given all examples of a batch."""
    local_rows = shard.local_rows(torch.arange(input_length(x)))
    if isinstance(x, Tensor):
        return x.index_select(0, local_rows.to(x.device))
    return {name: t.index_select(0, local_rows.to(t.device)) for name, t in x.items()}


def _require_augmented(x: object, y: object, num_rows: int) -> None:
    tensors = list(x.values()) if isinstance(x, dict) else [x]
    if tensors and all(isinstance(t, Tensor) and len(t) == num_rows for t in [*tensors, y]):
        return
    raise ContractError(
        f"augment() must return inputs and targets with {num_rows} entries, got "
        f"{describe_input(x)} and {describe_input(y)}.",
        fix="Return one input and one target per example, in the order of the examples.",
    )
