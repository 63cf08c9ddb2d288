"""One event a line: how it is written as strict JSON, and read back line by line.

A number that is not finite is written as the string "NaN", "Infinity" or "-Infinity" (JSON has
no such numbers) and read back as a float, so that a diverged run stays readable by any tool.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.base.errors import StorageError
from sluice.eventlog.event_fields import EVENT_FIELDS

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST_LINE = 64 * 2**20
"""A line beyond this is no event [bytes]; it keeps a wrong file from filling the memory."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of a log."""

    number: int
    """Counted from 1."""
    record: dict[str, Any] | None
    """The event; None when the line is not one JSON object."""
    text: str
    """The line as it stands there, of a line that is no event; empty otherwise."""
    ended: bool = True
    """Whether its line end is there; a crash while writing leaves a line without."""


def write_line(record: Mapping[str, Any]) -> bytes:
    """Return one event as a line.

    Raises:
        TypeError: A value has no JSON form.
        ValueError: A value contains itself.
    """
    text = json.dumps(encode_numbers(record), allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def read_lines(path: str | Path) -> Iterator[EventLine]:
    """Yield every line that is not blank, one at a time, however long the log is.

    Raises:
        StorageError: The file is not there or cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            number = 0
            while content := file.readline(_LONGEST_LINE):
                number += 1
                # Editors of another system put a mark before the first line.
                text = content.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
                if not text.strip():
                    continue
                record = parse_line(text)
                yield EventLine(
                    number,
                    record,
                    "" if record is not None else text.rstrip("\r\n"),
                    ended=text.endswith("\n"),
                )
    except OSError as error:
        raise StorageError(
            f"Cannot read the log {path} ({error.strerror or error}).",
            fix="Check the path: a log is one file of JSON lines that this user may read.",
        ) from error


def parse_line(text: str) -> dict[str, Any] | None:
    """Return the event in one line, or None when it is not one JSON object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _decode(record) if isinstance(record, dict) else None


def encode_numbers(value: Any) -> Any:
    """Return ``value`` with every number that is not finite as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): encode_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_numbers(item) for item in value]
    return value


def _decode(record: dict[str, Any]) -> dict[str, Any]:
    if not any(value in _NON_FINITE for value in record.values() if isinstance(value, str)):
        return record
    event = record.get("event")
    declared = EVENT_FIELDS.get(event, {}) if isinstance(event, str) else {}
    return {
        # A summary may consist of the word alone; it is text all the same.
        name: _NON_FINITE.get(value, value)
        if isinstance(value, str) and declared.get(name) != "text"
        else value
        for name, value in record.items()
    }
