"""Measures the memory of training steps at one batch size, by running two steps."""

import copy
import ctypes
import gc
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from sluice.base.out_of_memory import is_out_of_memory
from sluice.base.seeding import RandomStream, derive_seed
from sluice.base.settings import Record
from sluice.data.rows.protocol import (
    RowSource,
    find_lengths,
    gather,
    gather_targets,
    move_input,
    spread_rows,
)
from sluice.models.settings import ModelSettings
from sluice.training.epoch import backward_batch
from sluice.training.parameter_groups import make_optimizer
from sluice.training.precision import MixedPrecision, ScaleState
from sluice.training.ranks import SINGLE_PROCESS
from sluice.training.recompute import recomputing
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_NUM_STEPS = 2
"""Number of steps per attempt. The first step creates the optimizer state; only the second has the
optimizer state and the activations in memory at the same time."""

_WARM_UP_ROWS = 8
"""Maximum number of rows of the unmeasured first attempt."""

_SAMPLE_INTERVAL_S = 0.001
"""Interval between samples of the resident memory, if the system does not record its peak [s]."""

_LENGTH_SAMPLE_ROWS = 2**16
"""Number of rows that are sampled to find the longest rows; for a larger batch, the number of rows
of the batch."""

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
"""Files of Linux that reset and report the peak of this process's resident memory, see proc(5)."""


class BatchSizeAttempt(Record):
    """Result of running training steps at one batch size."""

    rows: int
    fits: bool
    peak_bytes: int = Field(description="Peak growth of memory [bytes].")
    seconds: float = Field(description="Wall time [s].")
    problem: str = Field("", description="Message of the allocator if memory ran out.")


class StepProbe:
    """Runs forward pass, backward pass and optimizer step twice, and measures their memory.

    On an accelerator, the result is the peak that torch's allocator records. On a CPU, it is the
    peak growth of the resident memory of the process. Linux records this peak; on other systems,
    the memory is sampled every millisecond.

    The result includes weights, gradients and optimizer state, but not the loaded rows. On a CPU it
    also includes freed blocks that the C allocator keeps, because a training needs this memory too.
    The allocator keeps blocks below 32 MiB. Blocks from earlier work of the process can nearly
    double the result: 5.3 times the size of an activation was measured for a step that needs 3
    times this size. The caller's random generators are not changed.

    Args:
        workload: Builds the model and provides the loss.
        model_settings: Architecture and size.
        train: Rows from which batches are taken.
        training: Settings of the real training. Steps use its optimizer, precision, micro-batches,
            clipping and recomputation of activations.
        memory_bytes: Maximum growth of memory with which a batch size fits [bytes].
        device: Device that runs the steps.
        seed: Base seed of weights and dropout.
    """

    def __init__(
        self,
        workload: Workload,
        model_settings: ModelSettings,
        train: Examples,
        training: TrainSettings,
        *,
        memory_bytes: int,
        device: torch.device,
        seed: int,
    ) -> None:
        self._workload = workload
        self._train = train
        self._training = training
        self._memory_bytes = memory_bytes
        self._device = device
        self._seed = seed
        # The model is built before the measurement, because its scaling is fitted on all rows, in
        # float64.
        self._model = prepare_model(workload, model_settings, train, seed=seed)
        self._is_warm = False

    def __call__(self, num_rows: int) -> BatchSizeAttempt:
        """Run one batch size; the memory that torch allocated is freed afterwards."""
        if not self._is_warm:
            # Run an unmeasured attempt first, because the first step of a process loads kernels and
            # starts threads, which permanently use tens of MiB.
            self._attempt(min(num_rows, _WARM_UP_ROWS))
            self._is_warm = True
        return self._attempt(num_rows)

    def _attempt(self, num_rows: int) -> BatchSizeAttempt:
        problem, started_at = "", time.perf_counter()
        stream = RandomStream(derive_seed(self._seed, "batch_size_search"))
        _release(self._device)
        with _peak_growth(self._device) as peak, stream.active():
            try:
                self._run(num_rows)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = " ".join(str(error).split())[:300]
        _release(self._device)
        return BatchSizeAttempt(
            rows=num_rows,
            fits=not problem and peak.num_bytes <= self._memory_bytes,
            peak_bytes=peak.num_bytes,
            seconds=time.perf_counter() - started_at,
            problem=problem,
        )

    def _run(self, num_rows: int) -> None:
        training = self._training
        model = copy.deepcopy(self._model).to(self._device).train()
        optimizer = make_optimizer(self._workload.parameter_groups(model.network), training)
        # With a loss scale of 1, fp16 skips no step. A skipped step would not create the optimizer
        # state.
        scale_state = ScaleState(precision=training.precision, scale=1.0)
        mixed_precision = MixedPrecision(scale_state, self._device)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        rows = _longest_rows(self._train.x, num_rows)
        for _ in range(_NUM_STEPS):
            # As in training, rows are read into a new tensor.
            x, y = gather(self._train.x, rows), gather_targets(self._train.y, rows)
            optimizer.zero_grad(set_to_none=True)
            with recomputing(model, is_enabled=training.recompute_activations):
                backward_batch(
                    model,
                    self._workload.loss,
                    mixed_precision,
                    move_input(x, self._device),
                    y.to(self._device),
                    training,
                    self._workload.loss_weight,
                    SINGLE_PROCESS,
                )
            mixed_precision.clip(optimizer, parameters, training.clip_norm)
            mixed_precision.step(optimizer)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _longest_rows(source: Tensor | RowSource, num_rows: int) -> Tensor:
    """Return the first rows, or the longest rows of a sample if the source knows their lengths."""
    lengths_of = find_lengths(source)
    if lengths_of is None:
        return torch.arange(num_rows)
    rows = spread_rows(len(source), max(num_rows, _LENGTH_SAMPLE_ROWS))
    return rows[lengths_of(rows).argsort(descending=True, stable=True)][:num_rows]


class _Peak:
    """Peak of a measurement, which is available when the measurement has ended."""

    num_bytes = 0


@contextmanager
def _peak_growth(device: torch.device) -> Iterator[_Peak]:
    """Measure the peak growth of memory inside the context."""
    peak = _Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        bytes_before = torch.cuda.memory_allocated(device)
        try:
            yield peak
        finally:
            peak.num_bytes = torch.cuda.max_memory_allocated(device) - bytes_before
        return
    bytes_before = _resident_bytes()
    if _restart_kernel_peak():
        try:
            yield peak
        finally:
            peak.num_bytes = max(_kernel_peak_bytes() - bytes_before, 0)
        return
    with _sampled_memory() as sampled_peak:
        yield peak
    peak.num_bytes = max(sampled_peak.num_bytes - bytes_before, 0)


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process(os.getpid()).memory_info().rss)


def _restart_kernel_peak() -> bool:
    """Reset the peak that Linux records; return False if the system does not support it."""
    try:
        _CLEAR_REFS.write_text("5")
        return _kernel_peak_bytes() > 0
    except OSError:
        return False


def _kernel_peak_bytes() -> int:
    match = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


@contextmanager
def _sampled_memory() -> Iterator[_Peak]:
    """Sample the peak of the resident memory; on a busy machine short peaks are missed."""
    peak, ended = _Peak(), threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_INTERVAL_S):
            peak.num_bytes = max(peak.num_bytes, _resident_bytes())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        peak.num_bytes = max(peak.num_bytes, _resident_bytes())
        ended.set()
        thread.join()


def _release(device: torch.device) -> None:
    """Free the memory of the last attempt, because reused memory would not be measured."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    # glibc keeps freed blocks below 32 MiB. Other C libraries do not have or need this call.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
