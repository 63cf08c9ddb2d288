"""What training writes down while it runs: one JSON object a line, checked before and after.

A number that is not finite is written as the string "NaN", "Infinity" or "-Infinity" (JSON has
no such numbers) and read back as a float, so that a diverged run stays readable by any tool.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.errors import ContractError
from sluice.failfast.event_fields import declared_fields, field_problems
from sluice.failfast.responses import respond
from sluice.files import storage_error
from sluice.settings import Record

_STAMP = ("event", "timestamp")
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsRead:
    """The events of one log, in order, and the unfinished last line if there is one."""

    events: list[dict[str, Any]]
    torn_line: str | None


class LogReport(Record):
    """What a log holds and what is wrong with it."""

    path: str
    counts: dict[str, int]
    problems: tuple[str, ...]
    non_finite: tuple[str, ...]
    torn_line: str | None

    @property
    def valid(self) -> bool:
        """True when there is at least one event and every event has its fields."""
        return not self.problems


class EventLog:
    """An append-only writer of one log; use as a context manager.

    Args:
        path: The NDJSON file; its folder is made. A log that is there is continued, and a torn
            last line, which only a crash leaves, is cut off and kept in ``torn_line``.
        clock: Gives the time of an event, with a time zone.

    Raises:
        StorageError: The file cannot be made, written or flushed.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime]) -> None:
        self.path = path
        self.torn_line: str | None = None
        self._clock = clock
        self._file: BufferedWriter | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.torn_line = _cut_torn_line(self.path)
            self._file = self.path.open("ab")
        except OSError as error:
            raise storage_error(self.path, error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    def write(self, event: str, **fields: Any) -> None:
        """Check one event against its declared type, write it as one line and flush.

        Further fields (``seed`` and the like) are allowed; nothing is written on an error.

        Raises:
            ContractError: Unknown event type, a field missing or of the wrong type.
            StorageError: The line cannot be written.
        """
        if self._file is None:
            raise ContractError(
                f"{self.path}: an event log must be open to be written, got '{event}' after close.",
                fix="Write inside 'with EventLog(...) as log:'.",
            )
        problems = field_problems(
            event, fields, declared_fields(event, test_metrics=(), headline="")
        )
        problems += [f"field '{name}' is reserved" for name in _STAMP if name in fields]
        if problems:
            raise ContractError(
                f"{self.path}: event '{event}': {'; '.join(problems)}.",
                fix="Give every declared field of the event as a plain Python value.",
            )
        record = {"event": event, "timestamp": self._clock().isoformat(), **fields}
        try:
            line = json.dumps(_encode(record), allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"{self.path}: event '{event}' cannot be written as JSON ({error}).",
                fix="Give plain Python numbers, text, lists and mappings.",
            ) from error
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise storage_error(self.path, error) from error


def read_events(path: Path) -> EventsRead:
    """Read a log back; a torn last line is reported, not fatal.

    Raises:
        ContractError: A line before the last is not a JSON object; the message names it.
        StorageError: The file cannot be read.
    """
    numbered, torn_line = _read_numbered(path)
    return EventsRead(events=[event for _, event in numbered], torn_line=torn_line)


def inspect_log(path: Path, *, test_metrics: tuple[str, ...], headline: str) -> LogReport:
    """Check every event of a log and return what was found, good or bad (LOG-1).

    Args:
        path: The NDJSON file.
        test_metrics: Names every ``fold_complete`` must carry.
        headline: Name every ``experiment_complete`` must carry; empty for none.

    Raises:
        ContractError: A line before the last is not a JSON object.
        StorageError: The file cannot be read.
    """
    numbered, torn_line = _read_numbered(path)
    problems: list[str] = []
    non_finite: list[str] = []
    counts: Counter[str] = Counter()
    for line_number, record in numbered:
        event = record.get("event")
        if not isinstance(event, str):
            problems.append(f"line {line_number}: field 'event' is missing or not text")
            continue
        counts[event] += 1
        declared = declared_fields(event, test_metrics=test_metrics, headline=headline)
        where = f"line {line_number}, {event}"
        problems += [f"{where}: {problem}" for problem in field_problems(event, record, declared)]
        non_finite += [
            f"{where}: {name} is {record[name]}"
            for name in declared or ()
            if isinstance(record.get(name), float) and not math.isfinite(record[name])
        ]
    if not numbered:
        problems.append("the log holds no event")
    return LogReport(
        path=str(path),
        counts=dict(counts),
        problems=tuple(problems),
        non_finite=tuple(non_finite),
        torn_line=torn_line,
    )


def validate_log(path: Path, *, test_metrics: tuple[str, ...], headline: str) -> LogReport:
    """Return the report of a log in which every event has its fields; refuse any other (LOG-1).

    Non-finite numbers and a torn last line are in the report; they do not make a log invalid.

    Args:
        path: The NDJSON file.
        test_metrics: Names every ``fold_complete`` must carry.
        headline: Name every ``experiment_complete`` must carry; empty for none.

    Raises:
        ContractError: An event has a field missing or of the wrong type, or there is no event;
            the message names line, event and field.
        StorageError: The file cannot be read.
    """
    report = inspect_log(path, test_metrics=test_metrics, headline=headline)
    if not report.valid:
        response = respond("log validation failed")
        shown = "; ".join(report.problems[:5])
        more = f" (and {len(report.problems) - 5} more)" if len(report.problems) > 5 else ""
        raise ContractError(f"{path}: {shown}{more}.", cause=response.cause, fix=response.fix)
    return report


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _decode(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _NON_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
    }


def _read_numbered(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], str | None]:
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise storage_error(path, error) from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    events = []
    for number, line in lines:
        record = _parse(line)
        if record is not None:
            events.append((number, _decode(record)))
        elif number == lines[-1][0]:
            return events, line
        else:
            raise ContractError(
                f"{path}, line {number}: every line but the last must be one JSON object, "
                f"got {line[:60]!r}.",
                cause="Something other than the event log wrote to the file, or it was damaged.",
                fix="Remove the line, or run again with a fresh log.",
            )
    return events, None


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _cut_torn_line(path: Path) -> str | None:
    if not path.exists():
        return None
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return None
    keep = content.rfind(b"\n") + 1
    tail = content[keep:].decode(errors="replace")
    with path.open("r+b") as file:
        if _parse(tail) is not None:  # complete but for its line end
            file.seek(0, 2)
            file.write(b"\n")
            return None
        file.truncate(keep)
    return tail
