"""Provides the likely cause and the fix for a problem of an event log."""

from dataclasses import dataclass

from sluice.eventlog.event_fields import EVENT_FIELDS, ProblemKind
from sluice.findings.catalogue import find_fault

_FORMAT_NOTE = (
    'An event log has one JSON object per line, such as {"event": "fold_complete", "fold_id": 0}, '
    "as written by sluice.failfast.EventLog."
)
_TYPES_NOTE = f"Types: {', '.join(EVENT_FIELDS)}."


@dataclass(frozen=True, slots=True)
class LogResponse:
    """Likely cause of a problem of a log, and what to do about it."""

    cause: str
    fix: str


_RESPONSES: dict[ProblemKind, LogResponse] = {
    "empty": LogResponse(
        "The program that writes the log stopped before its first event, or writes to another "
        "path.",
        "Check the path, or run the program again and read its output before the first event.",
    ),
    "not a log": LogResponse(
        "The file is not an event log: a table, a binary file, plain text, or a JSON document of "
        "several lines.",
        f"Check the path. {_FORMAT_NOTE}",
    ),
    "invalid JSON": LogResponse(
        "Other output was written to the file, two programs wrote to it at the same time, or a "
        "program continued after a crash without removing the incomplete line.",
        "Remove the named lines, or run again with a new log, and let only one program write each "
        "log. EventLog removes an incomplete line when it continues a log.",
    ),
    "no event type": LogResponse(
        "The lines are JSON objects of another format, or the event type is in another field.",
        f"Write the type of each event as a string in its field 'event' or 'phase'. {_TYPES_NOTE}",
    ),
    "unknown event": LogResponse(
        "The event type is misspelled, or the file contains events of another program.",
        f"Use a known type, and write further information in additional fields. {_TYPES_NOTE}",
    ),
    "missing end": LogResponse(
        "The run is still in progress, or it crashed before it wrote the named events.",
        "Wait for the end of the run and check again, or restart it: a training resumes from its "
        "last checkpoint.",
    ),
}


def respond_to_log_problem(kind: ProblemKind) -> LogResponse:
    """Return the likely cause and the fix for a problem of a log."""
    default = find_fault("log validation failed")
    return _RESPONSES.get(kind) or LogResponse(default.cause, default.fix)
