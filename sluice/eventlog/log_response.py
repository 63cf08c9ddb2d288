"""Provides the likely cause and the fix for a problem of an event log."""

from sluice.eventlog.event_fields import EVENT_FIELDS, ProblemKind
from sluice.findings.responses import FailureResponse, respond

_FORMAT = (
    'An event log has one JSON object per line, such as {"event": "fold_complete", "fold_id": 0}, '
    "as written by sluice.failfast.EventLog."
)
_TYPES = f"Types: {', '.join(EVENT_FIELDS)}."

_RESPONSES: dict[ProblemKind, FailureResponse] = {
    "empty": FailureResponse(
        "The program that writes the log stopped before its first event, or writes to another "
        "path.",
        "Check the path, or run the program again and read its output before the first event.",
    ),
    "not a log": FailureResponse(
        "The file is not an event log: a table, a binary file, plain text, or a JSON document of "
        "several lines.",
        f"Check the path. {_FORMAT}",
    ),
    "invalid JSON": FailureResponse(
        "Other output was written to the file, two programs wrote to it at the same time, or a "
        "program continued after a crash without removing the incomplete line.",
        "Remove the named lines, or run again with a new log, and let only one program write each "
        "log. EventLog removes an incomplete line when it continues a log.",
    ),
    "no event type": FailureResponse(
        "The lines are JSON objects of another format, or the event type is in another field.",
        f"Write the type of each event as a string in its field 'event' or 'phase'. {_TYPES}",
    ),
    "unknown event": FailureResponse(
        "The event type is misspelled, or the file contains events of another program.",
        f"Use a known type, and write further information in additional fields. {_TYPES}",
    ),
    "missing end": FailureResponse(
        "The run is still in progress, or it crashed before it wrote the named events.",
        "Wait for the end of the run and check again, or restart it: a training resumes from its "
        "last checkpoint.",
    ),
}


def respond_to_log_problem(kind: ProblemKind) -> FailureResponse:
    """Return the likely cause and the fix for a problem of a log."""
    return _RESPONSES.get(kind) or respond("log validation failed")
