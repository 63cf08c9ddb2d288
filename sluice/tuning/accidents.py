"""What ends a search unrecorded, and what is a trial's own end.

A failure that is written down is final: the search goes by it for ever. So only what follows from
a trial's values and the code is written down. What may be gone tomorrow (memory, a device, a file,
a worker) ends the search instead, and the trial runs again when it is started again. To record
such a failure for this one run alone is no way out: what is decided on it would be written down.
"""

import torch

from sluice.errors import (
    ContractError,
    RankLost,
    SettingsError,
    SluiceError,
    SourceError,
    TrainingFailed,
)
from sluice.training.out_of_memory import is_out_of_memory
from sluice.tuning.records import Segment


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


def stopped_by(segment: Segment, what: str, *, cause: str) -> TrainingFailed:
    """Return the error that ends a search at ``segment``.

    Args:
        segment: Names the trial and its values.
        what: What happened, a sentence without a full stop.
        cause: Why it is likely.
    """
    values = ", ".join(f"{path} {value}" for path, value in segment.params.items())
    return TrainingFailed(
        f"Trial {segment.trial} ({values}) could not be trained: {what}.",
        cause=cause,
        fix="Run again: nothing that was finished is lost, and this trial is tried anew. If it "
        "stops there every time, the values need more than there is: narrow their ranges, or give "
        "each worker more (fewer compute.workers).",
    )
