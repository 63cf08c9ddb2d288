"""Events of a study, and their encoding as lines of the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, Literal

StudyEventKind = Literal["start", "result", "complete", "error"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CheckpointKey:
    """Identifies a checkpoint of a study by trial, attempt and time."""

    trial: int
    attempt: int
    """Number of the attempt of the trial, from 0."""

    time: float
    """Value of ``time_attr`` in the result of the checkpoint."""

    def resolve(self) -> SimpleNamespace:
        """Return this checkpoint as the value of Tune's checkpoint future.

        Tune's schedulers call this method to wait until a checkpoint is written. A checkpoint of a
        study always exists, so the method returns immediately.
        """
        return SimpleNamespace(checkpoint=self, metrics={})


@dataclass(frozen=True, slots=True)
class TrialAttempt:
    """A period of training with one configuration."""

    start: CheckpointKey | None
    """Checkpoint from which the attempt starts; None for initial weights."""

    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEvent:
    """Event of one trial of a study."""

    trial: int
    attempt: int = 0
    kind: StudyEventKind = "result"
    """'start': the trial got a worker; 'result': it reported; 'complete': its function returned, or
    a stopping criterion of Tune ended it; 'error': it failed permanently."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Scalars that the trial reported; empty for an event without a result."""

    reason: str = ""
    """Why the trial failed, for kind 'error'."""
    checkpoint: str = ""
    """Path of the checkpoint that was reported with the result; empty without a checkpoint."""


class EventLines:
    """Encodes events as short lines and decodes them.

    A line omits default values. It also omits the folder of a checkpoint if the trial's previous
    checkpoint is in the same folder.
    """

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        """Folder of the last checkpoint of each trial."""

    def encode(self, event: StudyEvent) -> dict[str, Any]:
        """Return the line of an event."""
        line: dict[str, Any] = {"trial": event.trial}
        if event.attempt:
            line["attempt"] = event.attempt
        if event.kind != "result":
            line["kind"] = event.kind
        if event.result:
            line["result"] = dict(event.result)
        if event.reason:
            line["reason"] = event.reason
        if event.checkpoint:
            folder, name = _split_path(event.checkpoint)
            if self._folders.get(event.trial) != folder:
                self._folders[event.trial] = line["folder"] = folder
            line["checkpoint"] = name
        return line

    def decode(self, line: Mapping[str, Any]) -> StudyEvent:
        """Return the event of a line; lines must be decoded in their original order."""
        event_fields = dict(line)
        trial = event_fields["trial"]
        if "folder" in event_fields:
            self._folders[trial] = event_fields.pop("folder")
        if "checkpoint" in event_fields:
            folder = self._folders[trial]
            event_fields["checkpoint"] = str(PurePosixPath(folder, event_fields["checkpoint"]))
        return StudyEvent(**event_fields)


def _split_path(path: str) -> tuple[str, str]:
    pure_path = PurePosixPath(path)
    return str(pure_path.parent), pure_path.name
