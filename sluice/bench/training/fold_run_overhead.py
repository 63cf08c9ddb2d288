"""Overhead of a fold run beyond its epochs: resuming, and parallel processes.

All numbers are of fold runs as in a pipeline: from the stored table to the stored weights.
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

_CHECKPOINTS = "epoch-*.safetensors"
# Timing starts after the import of torch, which every training needs.
_RESUME_CODE = (
    "import sys, time, torch; started = time.perf_counter(); sys.path[:] = {path!r}; "
    "from sluice.bench.training.fold_run_overhead import until_first_batch; "
    "until_first_batch(sys.stdin.buffer.read()); print(time.perf_counter() - started)"
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
    workers: int = Field(description="Number of parallel processes.")
    alone_per_s: float = Field(description="Fold runs per second in one process [1/s].")
    together_per_s: float = Field(
        description="Fold runs per second in all processes together, including their start [1/s]."
    )
    speedup: float = Field(description="Rate of all processes together, divided by that of one.")


def measure_fold_runs(
    specs: Sequence[FoldRunSpec],
    *,
    workers: int,
    repeats: int,
    folder: Path,
    clock: Clock = time.perf_counter,
) -> FoldRunSpeed:
    """Run fold runs in sequence and in parallel, and one that is stopped and resumed.

    Args:
        specs: The fold runs; the first one is stopped and resumed.
        workers: Number of parallel processes.
        repeats: Number of resumes.
        folder: Folder of checkpoints and logs; left empty. Weights are stored where the specs
            say.
        clock: Monotonic time [s].

    Raises:
        ContractError: The first fold run ends before it writes a checkpoint.
        TrainingFailed: A fold run or a resuming process failed.

    Cost:
        Every fold run twice.
    """
    every_epoch = specs[0].training.model_copy(update={"checkpoint_every_epochs": 1})
    stopped = dataclasses.replace(specs[0], training=every_epoch, runs=folder / "first")
    sequential, parallel = (
        [dataclasses.replace(spec, runs=folder / name) for spec in specs]
        for name in ("alone", "together")
    )
    try:
        _stop_at_checkpoint(stopped)
        resumed = [_resume(stopped) for _ in range(repeats)]
        times = []
        for group, processes in ((sequential, 1), (parallel, workers)):
            started = clock()
            compute = ComputeSettings(workers=processes)
            train_members(group, compute=compute, on_event=_ignore)
            times.append(clock() - started)
    finally:
        for name in ("first", "alone", "together"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return FoldRunSpeed(
        resume_seconds=statistics.median(resumed),
        num_fold_runs=len(specs),
        workers=workers,
        alone_per_s=len(specs) / times[0],
        together_per_s=len(specs) / times[1],
        speedup=times[0] / times[1],
    )


def until_first_batch(content: bytes) -> None:
    """Resume a pickled fold run and stop when its first batch reaches the model.

    Must run in a separate process, because the hook is not removed.
    """

    def stop(module: nn.Module, _inputs: Any) -> None:
        if module.training:
            raise _StopTraining

    nn.modules.module.register_module_forward_pre_hook(stop)
    try:
        train_fold_run(pickle.loads(content), _ignore)
    except _StopTraining:
        return
    raise ContractError(
        "The fold run must have epochs left, and had none.", fix="Raise max_epochs."
    )


class _StopTraining(BaseException):
    """Stops a training at the measured point; code that catches ``Exception`` does not catch it."""


def _stop_at_checkpoint(spec: FoldRunSpec) -> None:
    def stop(event: FoldRunEvent) -> None:
        if event.epochs_done < event.max_epochs and any(spec.runs.rglob(_CHECKPOINTS)):
            raise _StopTraining

    try:
        train_fold_run(spec, stop)
    except _StopTraining:
        return
    raise ContractError(
        f"{spec.name} must write a checkpoint before its last epoch, and wrote none.",
        cause="It has a single epoch.",
        fix="Raise max_epochs.",
    )


def _resume(spec: FoldRunSpec) -> float:
    path = [*(os.path.abspath(part) for part in sys.path), str(Path(sluice.__file__).parents[1])]
    completed = subprocess.run(
        [sys.executable, "-P", "-c", _RESUME_CODE.format(path=path)],
        input=pickle.dumps(spec),
        capture_output=True,
        check=False,
    )
    if completed.returncode:
        last = completed.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise TrainingFailed(
            f"{spec.name}: the process that resumed it ended with status {completed.returncode}: "
            f"{''.join(last) or 'nothing on stderr'}",
            fix="Correct the reported error.",
        )
    return float(completed.stdout)


def _ignore(_event: FoldRunEvent) -> None:
    pass
