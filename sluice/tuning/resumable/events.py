"""What happens in a study, and the line that the journal keeps of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, Literal

EventKind = Literal["start", "result", "complete", "error"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CheckpointKey:
    """Which checkpoint of a study: what a trial had learned at a time of one of its attempts."""

    trial: int
    attempt: int
    """Number of times the trial had copied another one."""

    time: float
    """Value of ``time_attr``."""

    def resolve(self) -> SimpleNamespace:
        """Return what Tune's future of a checkpoint resolves to; ours exists already."""
        return SimpleNamespace(checkpoint=self, metrics={})


@dataclass(frozen=True, slots=True)
class Attempt:
    """A stretch of training with one configuration."""

    start: CheckpointKey | None
    """Checkpoint that it starts from; None where it starts from nothing."""

    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a trial did: it got a worker, reported, returned, or failed for good."""

    trial: int
    attempt: int = 0
    kind: EventKind = "result"
    result: Mapping[str, Any] = field(default_factory=dict)
    """The reported scalars; empty unless it is a result."""

    reason: str = ""
    checkpoint: str = ""
    """Path of the checkpoint that was reported with the result; empty without one."""


class EventLines:
    """Turns events into short lines and back.

    A line leaves out what is usual, and the folder of a checkpoint where it is that of the
    trial's last one.
    """

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}

    def encode(self, event: Event) -> dict[str, Any]:
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

    def decode(self, line: Mapping[str, Any]) -> Event:
        """Return the event of a line; lines must come in the order in which they were written."""
        fields = dict(line)
        trial = fields["trial"]
        if "folder" in fields:
            self._folders[trial] = fields.pop("folder")
        if "checkpoint" in fields:
            folder = self._folders[trial]
            fields["checkpoint"] = str(PurePosixPath(folder, fields["checkpoint"]))
        return Event(**fields)


def _split(path: str) -> tuple[str, str]:
    pure = PurePosixPath(path)
    return str(pure.parent), pure.name
