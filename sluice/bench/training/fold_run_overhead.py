"""Time to resume a fold run, and speed of fold runs in one process and in several.

As in a pipeline, each fold run reads the stored table and stores its weights.
"""

import dataclasses
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import nn

import sluice
from sluice.base.errors import ContractError, TrainingFailed
from sluice.base.settings import Record
from sluice.cluster.settings import ComputeSettings
from sluice.training.fold_run import train_fold_run
from sluice.training.fold_run_events import FoldRunEvent
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.parallel import train_members

Clock = Callable[[], float]

_CHECKPOINT_PATTERN = "epoch-*.safetensors"
# Timing starts after the import of torch, which every training needs.
_RESUME_CODE = (
    "import sys, time, torch; start_s = time.perf_counter(); sys.path[:] = {path!r}; "
    "from sluice.bench.training.fold_run_overhead import resume_until_first_batch; "
    "resume_until_first_batch(sys.stdin.buffer.read()); print(time.perf_counter() - start_s)"
)


class FoldRunSpeed(Record):
    """Measurements of fold runs."""

    resume_seconds: float = Field(
        description="Median time from the end of the import of torch to the first new batch after "
        "a resume [s]."
    )
    num_fold_runs: int = Field(
        description="Number of fold runs, timed with one process and again with several."
    )
    num_workers: int = Field(description="Number of parallel processes.")
    sequential_per_s: float = Field(description="Fold runs per second in one process [1/s].")
    parallel_per_s: float = Field(
        description="Fold runs per second in all processes together, including their start [1/s]."
    )
    speedup: float = Field(description="``parallel_per_s`` divided by ``sequential_per_s``.")


def measure_fold_runs(
    specs: Sequence[FoldRunSpec],
    *,
    num_workers: int,
    num_resumes: int,
    folder: Path,
    clock: Clock = time.perf_counter,
) -> FoldRunSpeed:
    """Run fold runs in sequence and in parallel, and resume the first fold run repeatedly.

    Args:
        specs: The fold runs. The first one is also stopped and resumed.
        num_workers: Number of parallel processes.
        num_resumes: Number of resumes.
        folder: Folder in which subfolders for checkpoints and logs are created and removed again.
            Weights are stored in the artifact stores of the specs.
        clock: Monotonic time [s].

    Raises:
        ContractError: The first fold run ends before it writes a checkpoint.
        TrainingFailed: A fold run or a resuming process failed.

    Cost:
        Every fold run twice, and ``num_resumes`` starts of a process.
    """
    training = specs[0].training.model_copy(update={"checkpoint_every_epochs": 1})
    stopped_spec = dataclasses.replace(specs[0], training=training, runs=folder / "stopped")
    sequential_specs, parallel_specs = (
        [dataclasses.replace(spec, runs=folder / name) for spec in specs]
        for name in ("sequential", "parallel")
    )
    try:
        _stop_at_checkpoint(stopped_spec)
        resume_times_s = [_time_resume(stopped_spec) for _ in range(num_resumes)]
        wall_times_s = []
        for timed_specs, num_processes in ((sequential_specs, 1), (parallel_specs, num_workers)):
            start_s = clock()
            compute = ComputeSettings(workers=num_processes)
            train_members(timed_specs, compute=compute, on_event=_ignore_event)
            wall_times_s.append(clock() - start_s)
    finally:
        for name in ("stopped", "sequential", "parallel"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return FoldRunSpeed(
        resume_seconds=statistics.median(resume_times_s),
        num_fold_runs=len(specs),
        num_workers=num_workers,
        sequential_per_s=len(specs) / wall_times_s[0],
        parallel_per_s=len(specs) / wall_times_s[1],
        speedup=wall_times_s[0] / wall_times_s[1],
    )


def resume_until_first_batch(pickled_spec: bytes) -> None:
    """Resume a pickled fold run and stop when its first batch reaches the model.

    This function must run in a separate process: it does not remove its forward hook, which
    applies to all modules.
    """

    def stop_at_batch(module: nn.Module, _inputs: Any) -> None:
        if module.training:
            raise _StopTraining

    nn.modules.module.register_module_forward_pre_hook(stop_at_batch)
    try:
        train_fold_run(pickle.loads(pickled_spec), _ignore_event)
    except _StopTraining:
        return
    raise ContractError(
        "The stopped fold run must have epochs left, and has none.", fix="Raise max_epochs."
    )


class _StopTraining(BaseException):
    """Stops a training at the measured point; code that catches ``Exception`` does not catch it."""


def _stop_at_checkpoint(spec: FoldRunSpec) -> None:
    """Train until the first checkpoint is written."""

    def stop_after_checkpoint(event: FoldRunEvent) -> None:
        if event.epochs_done < event.max_epochs and any(spec.runs.rglob(_CHECKPOINT_PATTERN)):
            raise _StopTraining

    try:
        train_fold_run(spec, stop_after_checkpoint)
    except _StopTraining:
        return
    raise ContractError(
        f"{spec.name} must write a checkpoint before its last epoch, and wrote none.",
        cause="The fold run has a single epoch.",
        fix="Raise max_epochs.",
    )


def _time_resume(spec: FoldRunSpec) -> float:
    """Resume a stopped fold run in a new process; return the time to its first new batch [s]."""
    path = [*(os.path.abspath(part) for part in sys.path), str(Path(sluice.__file__).parents[1])]
    completed = subprocess.run(
        [sys.executable, "-P", "-c", _RESUME_CODE.format(path=path)],
        input=pickle.dumps(spec),
        capture_output=True,
        check=False,
    )
    if completed.returncode:
        last_lines = completed.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise TrainingFailed(
            f"{spec.name}: the process that resumed it ended with status {completed.returncode}: "
            f"{''.join(last_lines) or 'nothing on stderr'}",
            fix="Correct the reported error.",
        )
    return float(completed.stdout)


def _ignore_event(_event: FoldRunEvent) -> None:
    pass
