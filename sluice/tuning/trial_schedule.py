"""The schedule of a trial's values, stored beside its checkpoint.

A PBT trial changes its values, and copies the weights and values of another trial with its
checkpoint. The file contains the values that led to the weights, so that they can be trained again.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from sluice.base.digests import digest_json
from sluice.base.errors import IntegrityError
from sluice.base.files import storage_error, write_atomic
from sluice.tuning.parameters import Params
from sluice.tuning.records import ScheduleStep

SCHEDULE_FILE = "schedule.json"


def with_values(
    schedule: tuple[ScheduleStep, ...], params: Params, *, epoch: int
) -> tuple[ScheduleStep, ...]:
    """Return the schedule of a trial that continues with ``params`` after ``epoch`` epochs."""
    if schedule and schedule[-1].params == params:
        return schedule
    return (*schedule, ScheduleStep(from_epoch=epoch, params=params))


def write_schedule(folder: Path, schedule: Sequence[ScheduleStep], *, epoch: int) -> None:
    """Write the schedule into the folder of the checkpoint after ``epoch`` epochs.

    Raises:
        StorageError: The file cannot be written.
    """
    steps = [step.model_dump(mode="json") for step in schedule]
    content = {"epoch": epoch, "schedule": steps}
    whole = {**content, "digest": digest_json(content)}
    write_atomic(folder / SCHEDULE_FILE, json.dumps(whole).encode())


def read_schedule(folder: Path, *, where: str) -> tuple[tuple[ScheduleStep, ...], int]:
    """Return the schedule of a checkpoint, and its epoch.

    Args:
        folder: Local folder of the checkpoint.
        where: Storage path of the checkpoint, for the message.

    Raises:
        IntegrityError: The file is missing or damaged.
        StorageError: The file cannot be read.
    """
    path = f"{where}/{SCHEDULE_FILE}"
    try:
        content = json.loads((folder / SCHEDULE_FILE).read_bytes())
        digest = content.pop("digest")
        steps = tuple(ScheduleStep.model_validate(step) for step in content["schedule"])
        epoch = content["epoch"]
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except OSError as error:
        raise storage_error(Path(path), error) from error
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        raise _damaged(path, "does not contain the schedule of a trial") from None
    if digest != digest_json(content):
        raise _damaged(path, "does not match its own digest")
    return steps, epoch


def _damaged(path: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{path} {problem}.",
        cause="The file was changed or damaged after it was written. Without it the values of the "
        "checkpoint beside it are unknown.",
        fix="Restore the file from a backup, or remove the study's folder to run the search again.",
    )
