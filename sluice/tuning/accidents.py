"""Which errors end one trial for good, and which are accidents after which it is trained again.

A failure that is recorded is final: the search decides by it for ever. So only what follows from
a trial's values and the code is recorded. What may be gone tomorrow (memory, a device, a file, a
worker) is raised: Ray Tune starts the trial again from its last checkpoint, and ends the search
when that happens too often. Nothing is recorded then, and the next run trains the trial again.
"""

import tempfile
from pathlib import Path

import torch

from sluice.base.error_location import place_of, told
from sluice.base.errors import (
    ContractError,
    OutOfMemory,
    RankLost,
    SettingsError,
    SluiceError,
    SourceError,
    TrainingFailed,
)
from sluice.base.files import NO_ROOM, storage_error
from sluice.base.out_of_memory import MEMORY_SETTINGS, is_out_of_memory, memory_advice
from sluice.tuning.parameters import Params


def is_accident(error: BaseException) -> bool:
    """Return whether the same trial might do well another time.

    What was raised on account of an accident is one too, whatever its own kind.
    """
    if isinstance(error, SluiceError):
        lasting = isinstance(error, TrainingFailed | ContractError)
        by_place = isinstance(error, RankLost | SettingsError | SourceError)
        accident = by_place or not lasting
    else:
        # After an error of the GPU every later call of the process fails as well.
        passing = isinstance(error, OSError | torch.AcceleratorError)
        accident = passing or is_out_of_memory(error)
    return accident or (error.__cause__ is not None and is_accident(error.__cause__))


def reason_of(error: Exception, params: Params) -> str:
    """Return why a trial failed, when the error follows from its values and the code.

    Args:
        error: What the training raised.
        params: Values of the trial, to name in an accident.

    Raises:
        SluiceError: The error is an accident, which says nothing about the values.
    """
    if isinstance(error, OutOfMemory):
        raise stopped_by(params, error.what.rstrip("."), cause=error.fix) from error
    if isinstance(error, SluiceError):
        if is_accident(error):
            raise error
        return str(error)
    if is_accident(error):
        raise accident_of(error, params) from error
    return f"{_described(error)}."


def accident_of(error: Exception, params: Params) -> SluiceError:
    """Return an accident of a trial as an error that says what to do about it."""
    if isinstance(error, SluiceError):
        return error
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return storage_error(Path(error.filename or tempfile.gettempdir()), error)
    cause = "Memory, a device or a file failed, which may have nothing to do with the values."
    if is_out_of_memory(error):
        cause = memory_advice(MEMORY_SETTINGS)
    return stopped_by(params, _described(error), cause=cause)


def stopped_by(params: Params, what: str, *, cause: str) -> TrainingFailed:
    """Return the error of a trial that an accident stopped.

    Args:
        params: Values of the trial.
        what: What happened, a sentence without a full stop.
        cause: Why it is likely.
    """
    values = ", ".join(f"{path} {value}" for path, value in params.items())
    return TrainingFailed(
        f"The trial with {values} could not be trained: {what}.",
        cause=cause,
        fix="Run again: nothing that was finished is lost, and this trial is trained again. If it "
        "stops there every time, the values need more than there is: narrow their ranges, or give "
        "each worker more (fewer compute.workers).",
    )


def _described(error: Exception) -> str:
    return f"{told(error)} (raised {place_of(error)})"
