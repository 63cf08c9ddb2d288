"""Events of a study, and their lines in the journal."""

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
    """How often the trial had copied another one."""

    time: float
    """Value of ``time_attr``."""

    def resolve(self) -> SimpleNamespace:
        """Return the value of Tune's checkpoint future; the checkpoint already exists."""
        return SimpleNamespace(checkpoint=self, metrics={})


@dataclass(frozen=True, slots=True)
class TrialAttempt:
    """A period of training with one configuration."""

    start: CheckpointKey | None
    """Checkpoint from which it starts; None to start from initial weights."""

    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEvent:
    """A trial got a worker, reported, returned, or failed permanently."""

    trial: int
    attempt: int = 0
    kind: StudyEventKind = "result"
    result: Mapping[str, Any] = field(default_factory=dict)
    """The reported scalars; empty unless the event has a result."""

    reason: str = ""
    checkpoint: str = ""
    """Path of the checkpoint that was reported with the result; empty without one."""


class EventLines:
    """Encodes events as short lines and decodes them.

    A line omits default values, and the folder of a checkpoint if it equals that of the trial's
    last checkpoint.
    """

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}

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
            folder, name = _split(event.checkpoint)
            if self._folders.get(event.trial) != folder:
                self._folders[event.trial] = line["folder"] = folder
            line["checkpoint"] = name
        return line

    def decode(self, line: Mapping[str, Any]) -> StudyEvent:
        """Return the event of a line; lines must be decoded in their original order."""
        fields = dict(line)
        trial = fields["trial"]
        if "folder" in fields:
            self._folders[trial] = fields.pop("folder")
        if "checkpoint" in fields:
            folder = self._folders[trial]
            fields["checkpoint"] = str(PurePosixPath(folder, fields["checkpoint"]))
        return StudyEvent(**fields)


def _split(path: str) -> tuple[str, str]:
    pure = PurePosixPath(path)
    return str(pure.parent), pure.name
