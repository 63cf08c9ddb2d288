"""Why a log is not valid or not complete, and what to do, by the first thing wrong with it."""

from sluice.eventlog.event_fields import EVENT_FIELDS, ProblemKind
from sluice.findings.responses import Response, respond

_ONE_A_LINE = (
    'An event log is one JSON object a line, such as {"event": "fold_complete", "fold_id": 0}, '
    "as sluice.failfast.EventLog writes it."
)
_TYPES = f"Types: {', '.join(EVENT_FIELDS)}."

_RESPONSES: dict[ProblemKind, Response] = {
    "empty": Response(
        "The program that writes the log stopped before its first event, or it writes elsewhere.",
        "Check the path, or run again and look at what the program says before its first event.",
    ),
    "no log": Response(
        "The file is something else: a table, a binary file, text for people, or one JSON "
        "document over several lines.",
        f"Check the path. {_ONE_A_LINE}",
    ),
    "no json": Response(
        "Something printed into the file, two programs wrote to it at once, or a program went on "
        "after a crash without cutting off the torn line.",
        "Remove the named lines, or run again with a fresh log; let one program write each log. "
        "EventLog cuts a torn line off when it continues a log.",
    ),
    "no event": Response(
        "The lines are JSON of another kind, or their type stands in another field.",
        f"Write the type of each event as text into its field 'event' or 'phase'. {_TYPES}",
    ),
    "unknown event": Response(
        "The type is misspelled, or another program's events are in the file.",
        f"Use a known type; what else is to be kept goes into further fields of it. {_TYPES}",
    ),
    "no end": Response(
        "The run is still going on, or it crashed before it wrote the named events.",
        "Wait for the end of the run and check again, or start it again: a training goes on from "
        "its last checkpoint.",
    ),
}


def respond_to(kind: ProblemKind) -> Response:
    """Return the likely cause and the fix of what is wrong with a log."""
    return _RESPONSES.get(kind) or respond("log validation failed")
