"""Decisions of Ray Tune's schedulers and searchers that survive a kill of the driver."""

from sluice.base.errors import TrialFailed
from sluice.tuning.resumable.events import Attempt, CheckpointKey, Event
from sluice.tuning.resumable.links import listening, study_of
from sluice.tuning.resumable.study import Study
from sluice.tuning.resumable.wrappers import resumable

__all__ = [
    "Attempt",
    "CheckpointKey",
    "Event",
    "Study",
    "TrialFailed",
    "listening",
    "resumable",
    "study_of",
]
