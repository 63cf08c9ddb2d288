"""Decides which errors fail a trial, and which are transient so that the trial is retried.

A recorded failure is final: the search uses it in all later decisions. So only errors that follow
from the trial's values and the code are recorded. Transient errors (memory, a device, a file, a
worker) are raised: Ray Tune restarts the trial from its last checkpoint, and ends the search after
too many retries. Nothing is recorded then, and the next run trains the trial again.
"""

import tempfile
from pathlib import Path

import torch

from sluice.base.error_location import describe_error, locate_error
from sluice.base.errors import (
    ContractError,
    OutOfMemory,
    RankLost,
    SettingsError,
    SluiceError,
    SourceError,
    TrainingFailed,
)
from sluice.base.files import DISK_FULL_ERRNOS, storage_error
from sluice.base.out_of_memory import MEMORY_SETTINGS, is_out_of_memory, memory_advice
from sluice.tuning.parameters import Params


def is_transient(error: BaseException) -> bool:
    """Return whether the same trial might succeed in another attempt.

    An error that was caused by a transient error is transient, whatever its own type.
    """
    if isinstance(error, SluiceError):
        permanent = isinstance(error, TrainingFailed | ContractError)
        environmental = isinstance(error, RankLost | SettingsError | SourceError)
        transient = environmental or not permanent
    else:
        # After a GPU error every later GPU call of the process fails as well.
        temporary = isinstance(error, OSError | torch.AcceleratorError)
        transient = temporary or is_out_of_memory(error)
    return transient or (error.__cause__ is not None and is_transient(error.__cause__))


def failure_reason(error: Exception, params: Params) -> str:
    """Return why a trial failed, if the error follows from its values and the code.

    Args:
        error: Exception of the training.
        params: Values of the trial, for the message of a transient error.

    Raises:
        SluiceError: The error is transient and does not depend on the values.
    """
    if isinstance(error, OutOfMemory):
        raise interrupted_trial(params, error.what.rstrip("."), cause=error.fix) from error
    if isinstance(error, SluiceError):
        if is_transient(error):
            raise error
        return str(error)
    if is_transient(error):
        raise transient_error(error, params) from error
    return f"{_described(error)}."


def transient_error(error: Exception, params: Params) -> SluiceError:
    """Return a transient error of a trial as a ``SluiceError`` with a cause and a fix."""
    if isinstance(error, SluiceError):
        return error
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return storage_error(Path(error.filename or tempfile.gettempdir()), error)
    cause = "Memory, a device or a file failed, which may be unrelated to the values."
    if is_out_of_memory(error):
        cause = memory_advice(MEMORY_SETTINGS)
    return interrupted_trial(params, _described(error), cause=cause)


def interrupted_trial(params: Params, what: str, *, cause: str) -> TrainingFailed:
    """Return the error of a trial that a transient error stopped.

    Args:
        params: Values of the trial.
        what: What happened, a sentence without a full stop.
        cause: The likely cause.
    """
    values = ", ".join(f"{path} {value}" for path, value in params.items())
    return TrainingFailed(
        f"The trial with {values} could not be trained: {what}.",
        cause=cause,
        fix="Run again: finished work is kept, and this trial is trained again. If it fails every "
        "time, its values exceed the resources: narrow their ranges, or lower compute.workers "
        "so that each worker gets more.",
    )


def _described(error: Exception) -> str:
    return f"{describe_error(error)} (raised {locate_error(error)})"
