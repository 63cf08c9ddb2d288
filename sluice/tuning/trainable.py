"""The function with which Ray Tune runs one trial: it trains, saves checkpoints, and reports.

Tune reuses a worker process for many trials. If the worker or its machine is lost, Tune restarts
the trial from its last checkpoint, and only the work since the last report is lost.
"""

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from sluice.base.error_location import describe_error
from sluice.base.errors import IntegrityError, SluiceError, TrainingFailed, TrialFailed
from sluice.base.files import storage_error
from sluice.training.device import release_memory
from sluice.tuning.objective import Objective
from sluice.tuning.parameters import Params
from sluice.tuning.records import EpochLosses, ScheduleStep, TrialReport
from sluice.tuning.retry_policy import failure_reason, interrupted_trial_error, transient_error
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.trial_schedule import read_schedule, with_values, write_schedule
from sluice.tuning.tune_space import decode

Trainable = Callable[[dict[str, Any]], None]
"""Function of Tune's config that runs one trial."""


_RESET_TIMEOUT = ("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")
"""Environment variable and its value: time within which a stopped trial must end [s]. Tune replaces
the worker of a trial that needs longer. Tune's default of 2 s is too short, because a stopped trial
first moves its network from the GPU, which may be busy."""

_MISSING_CHECKPOINT_TEXT = "does not exist on storage"
"""Words in Tune's error message if the checkpoint of a trial is missing."""


def make_trainable(
    objective: Objective, space: Space, base: TrialSettings, report_epochs: tuple[int, ...]
) -> Trainable:
    """Return the function that ``ray.tune.Tuner`` runs for each trial.

    The objective is sent to the workers through Ray's object store, so no shared folder is
    required, and each machine receives its data once. A trial uses one thread.

    Every report has these metrics and, unless the trial failed, a checkpoint:

    - ``epoch``: number of the epoch;
    - ``loss``: validation loss of the epoch selected so far;
    - ``val_loss`` and ``train_loss``: losses of the epoch;
    - ``seconds``: training time since the last report;
    - ``curve``: JSON text with [epoch, train, val, selected] for each epoch since the last report;
    - ``damaged_checkpoints``: number of damaged checkpoints found since the last report;
    - ``reason``: why training ended; empty while it continues.

    If a trial fails because of its values or of user code, its last report has a ``loss`` of NaN
    and the reason. The ``epoch`` of that report is one higher than in the previous report. A
    transient error is raised as a ``SluiceError``.

    Args:
        objective: Function that is minimised. It is pickled, so its class must be importable in the
            workers.
        space: The searched parameters.
        base: Settings before the values of a trial replace some of them.
        report_epochs: Numbers of the epochs after which a trial reports, ascending.
    """
    from ray import tune

    # The function is named "trial", because its name is the beginning of the trials' folder names.
    trainable: Trainable = tune.with_parameters(
        trial, objective=objective, space=space, base=base, report_epochs=report_epochs
    )
    return trainable


def trial(
    config: dict[str, Any],
    *,
    objective: Objective,
    space: Space,
    base: TrialSettings,
    report_epochs: tuple[int, ...],
) -> None:
    """Run one trial in a worker of Tune; see ``make_trainable``."""
    os.environ.setdefault(*_RESET_TIMEOUT)
    params = decode(space, base, config)
    try:
        with _downloaded_checkpoint(params) as (start, where):
            reports = trial_reports(objective, params, report_epochs, start=start, where=where)
            with contextlib.closing(reports):
                for report in reports:
                    _send_report(report, params)
    finally:
        release_memory()


def trial_error(error: Exception, params: Params) -> SluiceError:
    """Convert the error with which Tune ended a trial to an error with a cause and a fix.

    Args:
        error: Error of the trial, as in Tune's ``Result.error``; ``TrialFailed`` if it is unknown.
        params: Values of the trial.
    """
    from ray.exceptions import RayTaskError

    if isinstance(error, TrialFailed):  # Tune could not store the original error
        return interrupted_trial_error(
            params,
            error.what.rstrip("."),
            cause="Ray Tune did not report the reason; its log may contain it.",
        )
    if not isinstance(error, RayTaskError):
        return interrupted_trial_error(
            params,
            f"its worker on Ray was lost ({type(error).__name__})",
            cause="The most likely reasons are that its memory ran out or its machine was lost.",
        )
    if isinstance(error.cause, SluiceError):
        return error.cause
    if _MISSING_CHECKPOINT_TEXT in str(error.cause):
        return IntegrityError(
            f"{str(error.cause).strip().rstrip('.')}.",
            cause="Files of the study were removed or moved after it was stopped.",
            fix="Restore the files, or remove the study's folder to run the search again.",
        )
    return TrainingFailed(
        f"A worker could not run a trial: {describe_error(error.cause)}.",
        cause="Most likely the workers cannot import a module that this process imports.",
        fix="Put the code into a module that is importable on every machine, or upload it with "
        "compute.runtime_env.",
    )


@contextlib.contextmanager
def _downloaded_checkpoint(params: Params) -> Iterator[tuple[Path | None, str]]:
    """Download the checkpoint of the trial; yield the local folder and the path in the storage.

    Yields (None, "") if the trial starts without a checkpoint.
    """
    from ray import tune

    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        yield None, ""
        return
    with contextlib.ExitStack() as stack:
        with _transient_storage_errors(params):
            name = stack.enter_context(checkpoint.as_directory())
        yield Path(name), str(checkpoint.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """Metrics and checkpoint that a trial reports to Tune."""

    metrics: dict[str, Any]
    save: Callable[[Path], None] | None = None
    """Function that writes the checkpoint into an empty folder; None for the report of a
    failure."""


def trial_reports(
    objective: Objective,
    params: Params,
    report_epochs: tuple[int, ...],
    *,
    start: Path | None,
    where: str = "",
) -> Generator[TuneReport, None, None]:
    """Train one trial and yield its reports.

    Args:
        objective: Function that is minimised.
        params: Values with which the trial starts or continues.
        report_epochs: Numbers of the epochs after which to report, ascending.
        start: Folder of the checkpoint to resume from; None to start from initial weights.
        where: Storage path of the checkpoint, for messages.

    Raises:
        SluiceError: A transient error of the machine.
    """
    schedule, epoch = ((), 0) if start is None else read_schedule(start, where=where)
    schedule = with_values(schedule, params, epoch=epoch)
    remaining_epochs = tuple(report_epoch for report_epoch in report_epochs if report_epoch > epoch)
    reports = objective.train(schedule, start=start, report_epochs=remaining_epochs)
    with contextlib.closing(reports):
        yield from _convert_reports(reports, schedule, epoch)


def _convert_reports(
    reports: Iterator[TrialReport], schedule: tuple[ScheduleStep, ...], num_reported_epochs: int
) -> Iterator[TuneReport]:
    """Convert the reports of an objective. If the training fails, the last report is the failure.

    Args:
        reports: Reports of the objective.
        schedule: Values of the trial by epoch. The last step contains the values with which the
            trial starts or continues now.
        num_reported_epochs: Number of epochs that were already reported.
    """
    params = schedule[-1].params
    while True:
        started = perf_counter()
        try:
            report = next(reports, None)
        except Exception as error:  # worker boundary: user code may raise anything
            failure_text = failure_reason(error, params)
        else:
            if report is None:
                return
            failure_text = _describe_non_finite_loss(report.epochs)
        seconds = perf_counter() - started
        if failure_text:
            yield _failure_report(failure_text, num_reported_epochs + 1, seconds)
            return
        assert report is not None
        epochs_done = len(report.epochs)
        # A training that had ended before it was resumed has nothing new to report.
        if epochs_done > num_reported_epochs:
            yield _progress_report(
                report, schedule, num_reported_epochs=num_reported_epochs, seconds=seconds
            )
            num_reported_epochs = epochs_done


def _progress_report(
    report: TrialReport,
    schedule: tuple[ScheduleStep, ...],
    *,
    num_reported_epochs: int,
    seconds: float,
) -> TuneReport:
    new_epochs, last_epoch = report.epochs[num_reported_epochs:], report.epochs[-1]
    curve = [[e.epoch, e.train_loss, e.val_loss, e.kept_loss] for e in new_epochs]
    metrics = {
        "epoch": last_epoch.epoch,
        "loss": last_epoch.kept_loss,
        "val_loss": last_epoch.val_loss,
        "train_loss": last_epoch.train_loss,
        "seconds": seconds,
        "curve": json.dumps(curve),
        "damaged_checkpoints": report.damaged_checkpoints,
        "reason": report.reason,
    }

    def save(folder: Path) -> None:
        report.save(folder)
        write_schedule(folder, schedule, epoch=last_epoch.epoch)

    return TuneReport(metrics=metrics, save=save)


def _failure_report(reason: str, epoch: int, seconds: float) -> TuneReport:
    return TuneReport(
        metrics={
            "epoch": epoch,
            **dict.fromkeys(("loss", "val_loss", "train_loss"), math.nan),
            "seconds": seconds,
            "curve": "[]",
            "damaged_checkpoints": 0,
            "reason": reason,
        }
    )


def _send_report(report: TuneReport, params: Params) -> None:
    from ray import tune

    if report.save is None:
        tune.report(report.metrics)
        return
    with (
        _transient_storage_errors(params),
        tempfile.TemporaryDirectory(prefix="sluice-trial-") as name,
    ):
        report.save(Path(name))
        tune.report(report.metrics, checkpoint=tune.Checkpoint.from_directory(name))


def _describe_non_finite_loss(epochs: tuple[EpochLosses, ...]) -> str:
    """Return a sentence about the first non-finite loss; "" if all losses are finite."""
    for losses in epochs:
        for name in ("train_loss", "val_loss", "kept_loss"):
            value = getattr(losses, name)
            if not math.isfinite(value):
                return f"{name} is {value} at epoch {losses.epoch}."
    return ""


@contextlib.contextmanager
def _transient_storage_errors(params: Params) -> Iterator[None]:
    """Convert errors of the study's storage to transient errors.

    The values of a trial cannot cause such an error, so the trial must not be recorded as failed.
    """
    try:
        yield
    except SluiceError:
        raise
    except OSError as error:
        raise storage_error(Path(error.filename or _storage_path()), error) from error
    except Exception as error:  # the client library of a storage such as S3 may raise anything
        raise transient_error(error, params) from error


def _storage_path() -> str:
    from ray import tune

    return str(tune.get_context().get_storage().experiment_fs_path)
