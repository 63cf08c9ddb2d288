"""Runs a few real training steps at one batch size and measures their memory."""

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
    gather,
    gather_targets,
    move_input,
    spread_rows,
)
from sluice.models.settings import ModelSettings
from sluice.training.parameter_groups import make_optimizer
from sluice.training.row_order import find_lengths
from sluice.training.settings import TrainSettings
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_NUM_STEPS = 2
"""The first step creates the optimizer state; the second one has it in memory beside the
activations."""

_WARM_ROWS = 8

_COMPARED_ROWS = 2**16
"""Rows among which the longest ones are found."""

_SAMPLE_S = 0.001
_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class BatchSizeAttempt(Record):
    """One batch size that was run."""

    rows: int
    fits: bool
    peak_bytes: int = Field(description="Peak growth of memory [bytes].")
    seconds: float = Field(description="Wall time [s].")
    problem: str = Field("", description="Message of the allocator if memory ran out.")


class StepProbe:
    """Runs forward pass, backward pass and optimizer step twice, and measures their memory.

    On an accelerator the result is the allocator's peak. On a CPU it is the growth of the process's
    resident memory, as recorded by Linux, or sampled every millisecond elsewhere. It includes
    weights, gradients and optimizer state, but not the loaded rows. It also includes freed blocks
    that the C allocator keeps, which the process of a training needs as well: with blocks below 32
    MiB up to 5.3 activations were measured where 3 are needed, depending on earlier work of the
    process. The caller's random generators are not changed.

    Args:
        workload: Builds the model and provides the loss.
        model_settings: Architecture and size.
        train: Rows from which batches are taken.
        training: Settings of the real training, except ``batch_rows``.
        memory_bytes: Maximum growth that counts as fitting [bytes].
        device: Device to run on.
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
        # Not part of the measurement: scaling reads all rows, in double precision.
        self._model = prepare_model(workload, model_settings, train, seed=seed)
        self._warm = False

    def __call__(self, rows: int) -> BatchSizeAttempt:
        """Run one batch size; the memory that torch allocated is freed afterwards."""
        if not self._warm:
            # The first step of a process loads kernels and starts threads, which keep tens of MiB.
            self._attempt(min(rows, _WARM_ROWS))
            self._warm = True
        return self._attempt(rows)

    def _attempt(self, rows: int) -> BatchSizeAttempt:
        problem, started = "", time.perf_counter()
        randomness = RandomStream(derive_seed(self._seed, "batch_size_search"))
        _release(self._device)
        with _peak_growth(self._device) as peak, randomness.active():
            try:
                self._run(rows)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = " ".join(str(error).split())[:300]
        _release(self._device)
        return BatchSizeAttempt(
            rows=rows,
            fits=not problem and peak.bytes <= self._memory_bytes,
            peak_bytes=peak.bytes,
            seconds=time.perf_counter() - started,
            problem=problem,
        )

    def _run(self, num_rows: int) -> None:
        model = copy.deepcopy(self._model).to(self._device).train()
        optimizer = make_optimizer(self._workload.parameter_groups(model), self._training)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        rows = _longest_rows(self._train.x, num_rows)
        for _ in range(_NUM_STEPS):
            # As in training, rows are read into a new tensor.
            x, y = gather(self._train.x, rows), gather_targets(self._train.y, rows)
            loss = self._workload.loss(model(move_input(x, self._device)), y.to(self._device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self._training.clip_norm)
            optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _longest_rows(source: Tensor | RowSource, num_rows: int) -> Tensor:
    """Return the rows of a batch: long ones, if the source knows their lengths."""
    lengths_of = find_lengths(source)
    if lengths_of is None:
        return torch.arange(num_rows)
    rows = spread_rows(len(source), max(num_rows, _COMPARED_ROWS))
    return rows[lengths_of(rows).argsort(descending=True, stable=True)][:num_rows]


class _Peak:
    bytes = 0


@contextmanager
def _peak_growth(device: torch.device) -> Iterator[_Peak]:
    """Measure the growth of memory inside the context; the result is available at its end."""
    peak = _Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        try:
            yield peak
        finally:
            peak.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    before = _resident_bytes()
    if _restart_kernel_peak():
        try:
            yield peak
        finally:
            peak.bytes = max(_kernel_peak_bytes() - before, 0)
        return
    with _sampled_memory() as seen:
        yield peak
    peak.bytes = max(seen.bytes - before, 0)


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process(os.getpid()).memory_info().rss)


def _restart_kernel_peak() -> bool:
    """Reset the peak that Linux records; return False if that is not supported."""
    try:
        _CLEAR_REFS.write_text("5")
        return _kernel_peak_bytes() > 0
    except OSError:
        return False


def _kernel_peak_bytes() -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


@contextmanager
def _sampled_memory() -> Iterator[_Peak]:
    """Sample the resident memory; on a busy machine short peaks are missed."""
    seen, ended = _Peak(), threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_S):
            seen.bytes = max(seen.bytes, _resident_bytes())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        seen.bytes = max(seen.bytes, _resident_bytes())
        ended.set()
        thread.join()


def _release(device: torch.device) -> None:
    """Free the memory of the last attempt, which the next attempt would reuse unmeasured."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    # glibc keeps freed blocks below 32 MiB; other systems do not have or need this call.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
