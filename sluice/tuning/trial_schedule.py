"""The values a trial was trained with so far, in a file beside its checkpoint.

A trial of PBT changes its values, and takes over those of another trial with its checkpoint. The
file says which values the weights come from, so that they can be trained again.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from sluice.base.digests import digest_json
from sluice.base.errors import IntegrityError
from sluice.base.files import storage_error, write_atomic
from sluice.tuning.parameters import Params
from sluice.tuning.records import Step

SCHEDULE_FILE = "schedule.json"


def with_values(schedule: tuple[Step, ...], params: Params, *, epoch: int) -> tuple[Step, ...]:
    """Return the schedule of a trial that goes on with ``params`` after ``epoch`` epochs."""
    if schedule and schedule[-1].params == params:
        return schedule
    return (*schedule, Step(from_epoch=epoch, params=params))


def write_schedule(folder: Path, schedule: Sequence[Step], *, epoch: int) -> None:
    """Write the schedule into the folder of the checkpoint after ``epoch`` epochs.

    Raises:
        StorageError: The file cannot be written.
    """
    steps = [step.model_dump(mode="json") for step in schedule]
    content = {"epoch": epoch, "schedule": steps}
    whole = {**content, "digest": digest_json(content)}
    write_atomic(folder / SCHEDULE_FILE, json.dumps(whole).encode())


def read_schedule(folder: Path, *, where: str) -> tuple[tuple[Step, ...], int]:
    """Return the schedule of a checkpoint, and its epoch.

    Args:
        folder: Folder of the checkpoint on this machine.
        where: Path of the checkpoint in the study's storage, for the message.

    Raises:
        IntegrityError: The file is missing or damaged.
        StorageError: The file cannot be read.
    """
    path = f"{where}/{SCHEDULE_FILE}"
    try:
        content = json.loads((folder / SCHEDULE_FILE).read_bytes())
        digest = content.pop("digest")
        steps = tuple(Step.model_validate(step) for step in content["schedule"])
        epoch = content["epoch"]
    except FileNotFoundError:
        raise _damaged(path, "is required and missing") from None
    except OSError as error:
        raise storage_error(Path(path), error) from error
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        raise _damaged(path, "holds no schedule of a trial") from None
    if digest != digest_json(content):
        raise _damaged(path, "does not match its own digest")
    return steps, epoch


def _damaged(path: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{path} {problem}.",
        cause="The file was changed or damaged after it was written. Without it nobody knows which "
        "values the checkpoint beside it was trained with.",
        fix="Restore the file from a backup, or remove the study's folder to run the search again.",
    )
