"""Encodes and reads the lines of event logs: one event per line, as strict JSON.

A non-finite number is written as the string "NaN", "Infinity" or "-Infinity", because JSON has no
non-finite numbers. Any tool can therefore read the log of a diverged run. If such a string is the
value of a field, it is read back as a float; inside a list or mapping, it remains a string.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sluice.base.errors import StorageError
from sluice.eventlog.event_fields import EVENT_FIELDS

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_LINE_BYTES = 64 * 2**20
"""Maximum length of a line [bytes]; a longer line is not an event. The limit bounds the memory if
the file is not a log."""

_SKIP_BYTES = 2**20
"""Number of bytes that are read at a time to skip the rest of a line that is too long."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of a log."""

    number: int
    """Line number, from 1."""
    record: dict[str, Any] | None
    """The event; None if the line is not a JSON object."""
    text: str
    """Text of a line that is not an event, cut to 64 MiB; empty otherwise."""
    has_newline: bool = True
    """Whether the line ends with a newline; False if a process crashed while writing the line."""


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return one event as a line of a log.

    Raises:
        TypeError: A value cannot be represented in JSON.
        ValueError: A value contains itself.
    """
    text = json.dumps(encode_numbers(record), allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def read_lines(path: str | Path) -> Iterator[EventLine]:
    """Yield every non-blank line; only one line is in memory at a time.

    Raises:
        StorageError: The file does not exist or cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            number = 0
            while content := file.readline(_MAX_LINE_BYTES):
                number += 1
                has_newline = content.endswith(b"\n")
                is_too_long = False
                if not has_newline and len(content) == _MAX_LINE_BYTES:
                    is_too_long, has_newline = _skip_rest_of_line(file)
                # Some editors write a byte order mark before the first line.
                text = content.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
                if not (is_too_long or text.strip()):
                    continue
                record = None if is_too_long else parse_line(text)
                yield EventLine(
                    number,
                    record,
                    "" if record is not None else text.rstrip("\r\n"),
                    has_newline=has_newline,
                )
    except OSError as error:
        raise StorageError(
            f"Cannot read the log {path} ({error.strerror or error}).",
            fix="Check the path: a log is a file of JSON lines that this user may read.",
        ) from error


def _skip_rest_of_line(file: BinaryIO) -> tuple[bool, bool]:
    """Read the rest of a line; return whether there was a rest, and whether there was a newline."""
    chunk, has_rest = b"", False
    while not chunk.endswith(b"\n"):
        chunk = file.readline(_SKIP_BYTES)
        if not chunk:
            return has_rest, False
        has_rest = True
    return True, True


def parse_line(text: str) -> dict[str, Any] | None:
    """Return the event of one line, or None if the line is not a JSON object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _decode_numbers(record) if isinstance(record, dict) else None


def encode_numbers(value: Any) -> Any:
    """Return ``value`` with every non-finite number replaced by a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): encode_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_numbers(item) for item in value]
    return value


def _decode_numbers(record: dict[str, Any]) -> dict[str, Any]:
    """Return the event with "NaN", "Infinity" and "-Infinity" as floats."""
    if not any(value in _NON_FINITE for value in record.values() if isinstance(value, str)):
        return record
    event = record.get("event")
    declared_fields = EVENT_FIELDS.get(event, {}) if isinstance(event, str) else {}
    return {
        # A field that is declared as a string may contain one of these words as text.
        name: _NON_FINITE.get(value, value)
        if isinstance(value, str) and declared_fields.get(name) != "string"
        else value
        for name, value in record.items()
    }
