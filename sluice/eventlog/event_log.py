"""Event log of a training: one JSON object per line, validated when written and when read."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.base.errors import ContractError
from sluice.base.files import make_folder, storage_error
from sluice.eventlog.event_fields import find_field_problems, required_fields
from sluice.eventlog.event_lines import EventLine, encode_line, parse_line, read_lines
from sluice.eventlog.log_report import LogReport, inspect_log
from sluice.eventlog.log_response import respond_to_log_problem

_RESERVED_FIELDS = ("event", "timestamp")
_MAX_LISTED_PROBLEMS = 5
"""Maximum number of problems that a message lists. The report lists more problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvents:
    """Events of one log, in order, and the incomplete last line, if there is one."""

    events: list[dict[str, Any]]
    torn_line: str | None
    """Text of the last line if it is incomplete; else None."""


class EventLog:
    """An append-only writer of one log; use as a context manager.

    ::

        with EventLog("run/events.ndjson") as log:
            log.write("epoch_complete", epoch=1, train_loss=0.7, val_loss=0.8)

    Event types and their required fields; additional fields are written too:

    - experiment_start: architecture (string), features (list of strings), config (mapping)
    - fold_start: fold_id, train_size, val_size, test_size (integers)
    - epoch_complete: epoch (integer), train_loss, val_loss (numbers)
    - fold_complete: fold_id (integer); usually numbers named test_*, the metrics of the fold
    - experiment_complete: total_folds (integer), elapsed_seconds (number); usually a number
      named mean_*, the headline metric
    - gate_start: workload, level (strings), checks (list of strings)
    - check_start: name, check_id (strings)
    - check_complete: name, check_id, outcome, summary (strings), seconds (number)
    - gate_complete: outcome (string), seconds (number)
    - gate_stopped: reason, check (strings)

    Args:
        path: The NDJSON file; its folder is created. Events are appended to an existing log. If a
            crash left an incomplete last line, it is removed and stored in ``torn_line``.
        clock: Returns the time of an event with a time zone; the system clock in UTC by default.

    Raises:
        StorageError: The file cannot be created, written or flushed.
    """

    def __init__(
        self, path: str | Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.path = Path(path)
        self.torn_line: str | None = None
        self._clock = clock
        self._file: BufferedWriter | None = None

    def __enter__(self) -> Self:
        try:
            make_folder(self.path.parent)
            self.torn_line = _remove_torn_line(self.path)
            self._file = self.path.open("ab")
        except OSError as error:
            raise storage_error(self.path, error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    def write(self, event: str, **fields: Any) -> None:
        """Validate one event, write it as one line and flush.

        Additional fields, such as ``seed``, are allowed. If the event is invalid, nothing is
        written.

        Raises:
            ContractError: The event type is unknown, or a field is missing or has the wrong type.
            StorageError: The line cannot be written.
        """
        if self._file is None:
            raise ContractError(
                f"{self.path}: the event log must be open for writing, got '{event}' while it is "
                "closed.",
                fix="Write inside 'with EventLog(...) as log:'.",
            )
        required_kinds = required_fields(event, test_metrics=(), headline="")
        problems = [problem.what for problem in find_field_problems(event, fields, required_kinds)]
        problems += [f"field '{name}' is reserved" for name in _RESERVED_FIELDS if name in fields]
        if problems:
            raise ContractError(
                f"{self.path}: event '{event}': {'; '.join(problems)}.",
                fix="Pass every required field of the event as a plain Python value.",
            )
        record = {"event": event, "timestamp": self._clock().isoformat(), **fields}
        try:
            line = encode_line(record)
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"{self.path}: event '{event}' cannot be written as JSON ({error}).",
                fix="Pass plain Python numbers, strings, lists and mappings.",
            ) from error
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise storage_error(self.path, error) from error


def read_events(path: str | Path) -> LogEvents:
    """Read a log; an invalid last line without a newline is returned in ``torn_line``.

    Raises:
        ContractError: Another line is not a JSON object; the message contains the line number.
        StorageError: The file cannot be read.
    """
    events: list[dict[str, Any]] = []
    invalid_line: EventLine | None = None
    for line in read_lines(path):
        if invalid_line is not None:  # only the last line may be incomplete
            raise _invalid_line_error(path, invalid_line)
        if line.record is None:
            invalid_line = line
        else:
            events.append(line.record)
    if invalid_line is not None and invalid_line.has_newline:
        raise _invalid_line_error(path, invalid_line)
    return LogEvents(
        events=events, torn_line=invalid_line.text if invalid_line is not None else None
    )


def _invalid_line_error(path: str | Path, line: EventLine) -> ContractError:
    response = respond_to_log_problem("invalid JSON")
    return ContractError(
        f"{path}, line {line.number}: the line must be one JSON object, got {line.text[:60]!a}.",
        cause=response.cause,
        fix=response.fix,
    )


def validate_log(
    path: str | Path, *, test_metrics: tuple[str, ...] | None, headline: str | None
) -> LogReport:
    """Return the report of a valid log; raise an error for an invalid one.

    Non-finite numbers, an incomplete last line, a missing end event and notes do not make a log
    invalid; they are in the report.

    Args:
        path: The NDJSON file.
        test_metrics: Metrics that every ``fold_complete`` must contain; None if unknown.
        headline: Metric that every ``experiment_complete`` must contain; empty for no metric,
            None if unknown. ``inspect_log`` describes the checks for None.

    Raises:
        ContractError: A required field is missing or has the wrong type, a complete line is not an
            event, or the log has no event. The message contains line, event and field.
        StorageError: The file cannot be read.
    """
    report = inspect_log(path, test_metrics=test_metrics, headline=headline)
    if not report.valid:
        response = respond_to_log_problem(report.problems[0].kind)
        problems_text = "; ".join(map(str, report.problems[:_MAX_LISTED_PROBLEMS]))
        num_more = report.num_problems - _MAX_LISTED_PROBLEMS
        more = f" (and {num_more} more)" if num_more > 0 else ""
        raise ContractError(
            f"{path}: {problems_text}{more}.", cause=response.cause, fix=response.fix
        )
    return report


def _remove_torn_line(path: Path) -> str | None:
    """Remove an incomplete last line and return its text; None if the last line is complete.

    If only the newline of the last event is missing, it is added.
    """
    if not path.exists():
        return None
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return None
    start = content.rfind(b"\n") + 1
    last_line = content[start:].decode(errors="replace")
    with path.open("r+b") as file:
        if parse_line(last_line) is not None:  # only the newline is missing
            file.seek(0, 2)
            file.write(b"\n")
            return None
        file.truncate(start)
    return last_line
