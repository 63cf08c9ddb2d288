"""One trial as a function that Ray Tune runs: train, report, save a checkpoint, and so on.

Tune keeps one worker process for many trials, and starts a trial again from its last checkpoint
when its worker or its machine is lost: what is lost is the work since the last report.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from sluice.base.error_location import told
from sluice.base.errors import IntegrityError, SluiceError, TrainingFailed
from sluice.base.files import storage_error
from sluice.training.device import release_memory
from sluice.tuning.accidents import accident_of, reason_of, stopped_by
from sluice.tuning.objective import Objective
from sluice.tuning.parameters import Params
from sluice.tuning.records import EpochLosses, Report, Step
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.trial_schedule import read_schedule, with_values, write_schedule
from sluice.tuning.tune_space import decode

Trainable = Callable[[dict[str, Any]], None]


_REMOVED = "does not exist on storage"
"""Tune's words for a checkpoint that is gone, before it calls the trainable."""


def make_trainable(
    objective: Objective, space: Space, base: Setup, report_epochs: tuple[int, ...]
) -> Trainable:
    """Return the function that ``ray.tune.Tuner`` runs for each trial.

    The objective travels to the workers by Ray's object store: no shared folder is needed, and
    each machine fetches its data once. A trial computes on one thread.

    Every report has a checkpoint and the metrics ``epoch``, ``loss`` (validation loss of the
    chosen epoch), ``val_loss``, ``train_loss``, ``seconds`` (training time since the last report),
    ``curve`` (JSON text, [[epoch, train, val, chosen], ...] since the last report),
    ``damaged_checkpoints`` and ``reason`` (why the trial ended by itself; else empty). A trial
    that fails by its values or by the user's code reports ``loss`` NaN with the reason, at one
    epoch more than its last report, and ends. An accident of the machine is raised as a
    ``SluiceError``.

    Args:
        objective: What is minimised; pickled, so the workers must be able to import its class.
        space: The searched parameters.
        base: Settings of everything that is not searched.
        report_epochs: Epochs after which a trial reports, ascending [epochs].
    """
    from ray import tune

    # Tune names the folders of trials after the function.
    trainable: Trainable = tune.with_parameters(
        trial, objective=objective, space=space, base=base, report_epochs=report_epochs
    )
    return trainable


def trial(
    config: dict[str, Any],
    *,
    objective: Objective,
    space: Space,
    base: Setup,
    report_epochs: tuple[int, ...],
) -> None:
    """Run one trial in a worker of Tune; see ``make_trainable``."""
    params = decode(space, base, config)
    try:
        with _opened_checkpoint(params) as (start, where):
            reports = reports_of(objective, params, report_epochs, start=start, where=where)
            with contextlib.closing(reports):
                for reported in reports:
                    _send(reported, params)
    finally:
        release_memory()


def error_of_trial(error: Exception, params: Params) -> SluiceError:
    """Return what ended a trial of Tune for good as an error that says what to do.

    Args:
        error: ``Result.error`` of the trial.
        params: Values of the trial.
    """
    from ray.exceptions import RayTaskError

    if not isinstance(error, RayTaskError):
        return stopped_by(
            params,
            f"its worker on Ray was lost ({type(error).__name__})",
            cause="Most likely its memory ran out, or its machine is gone.",
        )
    if isinstance(error.cause, SluiceError):
        return error.cause
    if _REMOVED in str(error.cause):
        return IntegrityError(
            f"{str(error.cause).strip().rstrip('.')}.",
            cause="Files of the study were removed or moved since it was stopped.",
            fix="Restore them, or remove the study's folder to run the search again.",
        )
    return TrainingFailed(
        f"A worker could not run a trial: {told(error.cause)}.",
        cause="A module that this process imports is not there for its workers, most likely.",
        fix="Put the code into a module on Python's path on every machine, or send it with "
        "compute.runtime_env.",
    )


@contextlib.contextmanager
def _opened_checkpoint(params: Params) -> Iterator[tuple[Path | None, str]]:
    """Fetch the checkpoint that Tune gives the trial: its folder here, and its path there."""
    from ray import tune

    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        yield None, ""
        return
    with contextlib.ExitStack() as stack:
        with _storage_errors(params):
            name = stack.enter_context(checkpoint.as_directory())
        yield Path(name), str(checkpoint.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a trial reports to Tune."""

    metrics: dict[str, Any]
    save: Callable[[Path], None] | None = None
    """Writes the checkpoint into an empty folder; None for a failure, which has none."""


def reports_of(
    objective: Objective,
    params: Params,
    report_epochs: tuple[int, ...],
    *,
    start: Path | None,
    where: str = "",
) -> Generator[Reported, None, None]:
    """Train one trial; yield what it reports.

    Args:
        objective: What is minimised.
        params: Values of the trial from now on.
        report_epochs: Epochs to report after, ascending [epochs].
        start: Folder of the checkpoint to go on from; None to train from nothing.
        where: Path of that checkpoint in the study's storage, for messages.

    Raises:
        SluiceError: An accident of the machine.
    """
    schedule, epoch = ((), 0) if start is None else read_schedule(start, where=where)
    schedule = with_values(schedule, params, epoch=epoch)
    ahead = tuple(each for each in report_epochs if each > epoch)
    reports = objective.train(schedule, start=start, report_epochs=ahead)
    with contextlib.closing(reports):
        yield from _checked(reports, schedule, epoch)


def _checked(
    reports: Iterator[Report], schedule: tuple[Step, ...], epoch: int
) -> Iterator[Reported]:
    params = schedule[-1].params
    while True:
        began = perf_counter()
        try:
            report = next(reports, None)
        except Exception as error:  # the edge of the worker: the user's code may raise anything
            failure = reason_of(error, params)
        else:
            if report is None:
                return
            failure = _non_finite(report.epochs)
        seconds = perf_counter() - began
        if failure:
            yield _failed(failure, epoch + 1, seconds)
            return
        assert report is not None
        reached = len(report.epochs)
        # A checkpoint at the end of training leaves nothing to report again.
        if reached > epoch:
            yield _reported(report, schedule, since=epoch, seconds=seconds)
            epoch = reached


def _reported(
    report: Report, schedule: tuple[Step, ...], *, since: int, seconds: float
) -> Reported:
    new, last = report.epochs[since:], report.epochs[-1]
    curve = [[each.epoch, each.train_loss, each.val_loss, each.kept_loss] for each in new]
    metrics = {
        "epoch": last.epoch,
        "loss": last.kept_loss,
        "val_loss": last.val_loss,
        "train_loss": last.train_loss,
        "seconds": seconds,
        "curve": json.dumps(curve),
        "damaged_checkpoints": report.damaged_checkpoints,
        "reason": report.reason,
    }

    def save(folder: Path) -> None:
        report.save(folder)
        write_schedule(folder, schedule, epoch=last.epoch)

    return Reported(metrics=metrics, save=save)


def _failed(reason: str, epoch: int, seconds: float) -> Reported:
    return Reported(
        metrics={
            "epoch": epoch,
            **dict.fromkeys(("loss", "val_loss", "train_loss"), math.nan),
            "seconds": seconds,
            "curve": "[]",
            "damaged_checkpoints": 0,
            "reason": reason,
        }
    )


def _send(reported: Reported, params: Params) -> None:
    from ray import tune

    if reported.save is None:
        tune.report(reported.metrics)
        return
    with _storage_errors(params), tempfile.TemporaryDirectory(prefix="sluice-trial-") as name:
        reported.save(Path(name))
        tune.report(reported.metrics, checkpoint=tune.Checkpoint.from_directory(name))


def _non_finite(epochs: tuple[EpochLosses, ...]) -> str:
    """Return which loss is not finite, as a sentence; empty when all are."""
    for each in epochs:
        for name in ("train_loss", "val_loss", "kept_loss"):
            value = getattr(each, name)
            if not math.isfinite(value):
                return f"{name} is {value} at epoch {each.epoch}."
    return ""


@contextlib.contextmanager
def _storage_errors(params: Params) -> Iterator[None]:
    """Raise what the study's storage refuses as an accident: it says nothing about the values."""
    try:
        yield
    except SluiceError:
        raise
    except OSError as error:
        raise storage_error(Path(error.filename or _storage_path()), error) from error
    except Exception as error:  # the client of any file system, such as one of S3
        raise accident_of(error, params) from error


def _storage_path() -> str:
    from ray import tune

    return str(tune.get_context().get_storage().experiment_fs_path)
