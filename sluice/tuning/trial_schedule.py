"""Stores the schedule of a trial, that is, its values over time, in its checkpoint.

With PBT, the values of a trial change during training, and a trial may copy the checkpoint of
another trial. The schedule contains all values that led to the weights of a checkpoint, so that
another training can reproduce the weights.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from sluice.base.digests import digest_json
from sluice.base.errors import IntegrityError
from sluice.base.files import read_error, write_atomic
from sluice.tuning.parameters import Params
from sluice.tuning.records import ScheduleStep

SCHEDULE_FILE = "schedule.json"


def with_values(
    schedule: tuple[ScheduleStep, ...], params: Params, *, epoch: int
) -> tuple[ScheduleStep, ...]:
    """Return a schedule that is extended by ``params``, which take effect after ``epoch`` epochs.

    The schedule is returned unchanged if its last values equal ``params``.
    """
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
    content_with_digest = {**content, "digest": digest_json(content)}
    write_atomic(folder / SCHEDULE_FILE, json.dumps(content_with_digest).encode())


def read_schedule(folder: Path, *, where: str) -> tuple[tuple[ScheduleStep, ...], int]:
    """Return the schedule of a checkpoint, and the number of epochs before the checkpoint.

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
        raise _damaged_schedule_error(path, "is missing") from None
    except OSError as error:
        raise read_error(Path(path), error) from error
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        raise _damaged_schedule_error(path, "does not contain the schedule of a trial") from None
    if digest != digest_json(content):
        raise _damaged_schedule_error(path, "does not match its own digest")
    return steps, epoch


def _damaged_schedule_error(path: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{path} {problem}.",
        cause="The file was changed or damaged after it was written. Without it, the values that "
        "led to the checkpoint are unknown.",
        fix="Restore the file from a backup, or remove the study's folder to run the search again.",
    )
