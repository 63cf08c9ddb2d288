"""What a unit of training costs beyond its epochs: going on where it stopped, and company.

Every number is of units as a pipeline fits them: from the stored table to the stored weights.
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
from sluice.training.parallel import train_members
from sluice.training.unit import UnitEvent, UnitSpec, train_unit

Clock = Callable[[], float]

_CHECKPOINTS = "epoch-*.safetensors"
# A process that has torch is where counting starts: nobody who trains can do with less.
_RESUME = (
    "import sys, time, torch; started = time.perf_counter(); sys.path[:] = {path!r}; "
    "from sluice.bench.training.unit_overhead import until_first_batch; "
    "until_first_batch(sys.stdin.buffer.read()); print(time.perf_counter() - started)"
)


class UnitSpeed(Record):
    """Units as a pipeline fits them."""

    resume_seconds: float = Field(
        description="Median from a process that has imported torch to the first new batch [s]."
    )
    num_units: int = Field(description="Fitted by one process, and by several at once.")
    workers: int = Field(description="Processes at once.")
    alone_units_per_s: float = Field(description="By one process [units/s].")
    together_units_per_s: float = Field(description="By all processes, their start included.")
    speedup: float = Field(description="Of all processes over one.")


def measure_units(
    specs: Sequence[UnitSpec],
    *,
    workers: int,
    repeats: int,
    folder: Path,
    clock: Clock = time.perf_counter,
) -> UnitSpeed:
    """Fit units one by one and side by side, and one that is stopped and goes on.

    Args:
        specs: The units; the first is the one that is stopped.
        workers: Processes at once.
        repeats: How often a stopped unit goes on.
        folder: For what the units keep while they are fitted; nothing is left in it. Weights go
            where the specs say.
        clock: Monotonic time [s].

    Raises:
        ContractError: The first unit ends before it writes a checkpoint.
        TrainingFailed: A unit, or the process that goes on with one, failed.

    Cost:
        Every unit twice.
    """
    often = specs[0].training.model_copy(update={"checkpoint_every_epochs": 1})
    first = dataclasses.replace(specs[0], training=often, runs=folder / "first")
    alone, together = (
        [dataclasses.replace(spec, runs=folder / name) for spec in specs]
        for name in ("alone", "together")
    )
    try:
        _stop_at_checkpoint(first)
        resumed = [_resume(first) for _ in range(repeats)]
        times = []
        for group, processes in ((alone, 1), (together, workers)):
            started = clock()
            compute = ComputeSettings(workers=processes)
            train_members(group, compute=compute, on_event=_ignore)
            times.append(clock() - started)
    finally:
        for name in ("first", "alone", "together"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return UnitSpeed(
        resume_seconds=statistics.median(resumed),
        num_units=len(specs),
        workers=workers,
        alone_units_per_s=len(specs) / times[0],
        together_units_per_s=len(specs) / times[1],
        speedup=times[0] / times[1],
    )


def until_first_batch(content: bytes) -> None:
    """Go on with a pickled unit until its first batch reaches the model, and stop there.

    For a process of its own: the hook stays.
    """

    def stop(module: nn.Module, _inputs: Any) -> None:
        if module.training:
            raise _Reached

    nn.modules.module.register_module_forward_pre_hook(stop)
    try:
        train_unit(pickle.loads(content), _ignore)
    except _Reached:
        return
    raise ContractError(
        "The unit must have epochs left to fit, and had none.", fix="Raise max_epochs."
    )


class _Reached(BaseException):
    """Where a benchmark wants to be; no code of a user catches it."""


def _stop_at_checkpoint(spec: UnitSpec) -> None:
    def stop(event: UnitEvent) -> None:
        if event.epochs_done < event.max_epochs and any(spec.runs.rglob(_CHECKPOINTS)):
            raise _Reached

    try:
        train_unit(spec, stop)
    except _Reached:
        return
    raise ContractError(
        f"{spec.name} must write a checkpoint before its last epoch, and wrote none.",
        cause="It has a single epoch.",
        fix="Raise max_epochs.",
    )


def _resume(spec: UnitSpec) -> float:
    path = [*(os.path.abspath(part) for part in sys.path), str(Path(sluice.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _RESUME.format(path=path)],
        input=pickle.dumps(spec),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise TrainingFailed(
            f"{spec.name}: the process that went on with it ended with status {done.returncode}: "
            f"{''.join(last)}",
            fix="Correct what the last line says.",
        )
    return float(done.stdout)


def _ignore(_event: UnitEvent) -> None:
    pass
