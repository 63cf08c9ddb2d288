"""Lets the decisions of Ray Tune's schedulers and searchers survive a kill of the driver."""

from sluice.base.errors import TrialFailed
from sluice.tuning.resumable.events import CheckpointKey, StudyEvent, TrialAttempt
from sluice.tuning.resumable.study import Study
from sluice.tuning.resumable.tuner_runs import get_study, listening
from sluice.tuning.resumable.wrappers import resumable

__all__ = [
    "CheckpointKey",
    "Study",
    "StudyEvent",
    "TrialAttempt",
    "TrialFailed",
    "get_study",
    "listening",
    "resumable",
]
