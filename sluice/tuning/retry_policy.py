"""Decides which errors fail a trial, and which are transient so that the trial is retried.

A recorded failure is final, because the search uses it in all later decisions. Therefore only
errors that follow from the trial's values and the code are recorded. Transient errors (memory, a
device, a file, a worker) are raised: Ray Tune restarts the trial from its last checkpoint. After
too many retries the search ends without recording a failure, and the next run trains the trial
again.
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
    """Return whether the trial might succeed with the same values when it is trained again.

    An error of any type is transient if a transient error caused it.
    """
    if isinstance(error, SluiceError):
        # Each type in ``depends_on_machine`` is a subclass of TrainingFailed or of ContractError.
        follows_from_trial = isinstance(error, TrainingFailed | ContractError)
        depends_on_machine = isinstance(error, RankLost | SettingsError | SourceError)
        has_transient_type = depends_on_machine or not follows_from_trial
    else:
        # A GPU error counts as transient, because every later GPU call of the process fails as
        # well, whatever the values of the trial are.
        is_machine_error = isinstance(error, OSError | torch.AcceleratorError)
        has_transient_type = is_machine_error or is_out_of_memory(error)
    return has_transient_type or (error.__cause__ is not None and is_transient(error.__cause__))


def failure_reason(error: Exception, params: Params) -> str:
    """Return why a trial failed; raise the error instead if it is transient.

    Args:
        error: Exception of the training.
        params: Values of the trial, for the message of a transient error.

    Raises:
        SluiceError: The error is transient.
    """
    if isinstance(error, OutOfMemory):
        raise interrupted_trial_error(
            params, error.what.rstrip("."), cause=error.cause, advice=error.fix
        ) from error
    if isinstance(error, SluiceError):
        if is_transient(error):
            raise error
        return str(error)
    if is_transient(error):
        raise transient_error(error, params) from error
    return f"{_error_text(error)}."


def transient_error(error: Exception, params: Params) -> SluiceError:
    """Convert a transient error of a trial to a ``SluiceError`` with a cause and a fix."""
    if isinstance(error, SluiceError):
        return error
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return storage_error(Path(error.filename or tempfile.gettempdir()), error)
    if is_out_of_memory(error):
        return interrupted_trial_error(
            params,
            _error_text(error),
            cause="The trial needs more memory than is free.",
            advice=memory_advice(MEMORY_SETTINGS),
        )
    cause = "Memory, a device or a file failed, which may be unrelated to the values."
    return interrupted_trial_error(params, _error_text(error), cause=cause)


def interrupted_trial_error(
    params: Params, what: str, *, cause: str, advice: str = ""
) -> TrainingFailed:
    """Return the error of a trial that a transient error stopped.

    Args:
        params: Values of the trial.
        what: What happened, as a sentence without a full stop.
        cause: The likely cause; may be empty.
        advice: What to change before running again, in whole sentences.
    """
    values = ", ".join(f"{path} {value}" for path, value in params.items())
    return TrainingFailed(
        f"The trial with {values} could not be trained: {what}.",
        cause=cause,
        fix=f"{advice} Run again: finished work is kept, and this trial is trained again. If it "
        "fails every time, its values exceed the resources: narrow their ranges, or lower "
        "compute.workers so that each worker gets more memory.".lstrip(),
    )


def _error_text(error: Exception) -> str:
    return f"{describe_error(error)} (raised {locate_error(error)})"
