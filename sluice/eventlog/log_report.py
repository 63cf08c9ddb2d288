"""Inspects an event log, written by any program, and reports its content and problems."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from sluice.base.settings import Record
from sluice.eventlog.event_fields import (
    END_EVENTS,
    FieldKind,
    FieldProblem,
    ProblemKind,
    find_field_problems,
    numeric_fields,
    required_fields,
)
from sluice.eventlog.event_lines import EventLine, read_lines

_MAX_LISTED_PROBLEMS = 1000
"""Maximum number of problems that are listed individually. All problems are counted."""

_START_OR_END_EVENTS = frozenset(END_EVENTS).union(*END_EVENTS.values())

_PHASE_ENDS = ("complete", "end", "stopped")
"""Suffixes of the events that can end a phase ``*_start``, in logs of other programs."""

_MAX_EXCERPT_CHARACTERS = 80
"""Maximum number of characters of a line that a message contains."""


class LogProblem(Record):
    """A problem or note about one line."""

    kind: ProblemKind
    line: int = Field(description="Line number, from 1.")
    event: str = Field(description="Event type of the line; empty when it has none.")
    field: str = Field(description="Field name; empty if the problem concerns the whole line.")
    what: str

    def __str__(self) -> str:
        return f"line {self.line}{', ' if self.event else ''}{self.event}: {self.what}"


class LogReport(Record):
    """Content of a log and its problems."""

    path: str
    counts: dict[str, int] = Field(description="Number of events by type.")
    problems: tuple[LogProblem, ...] = Field(
        description="Problems that make the log invalid; the first 1000."
    )
    num_problems: int
    notes: tuple[LogProblem, ...] = Field(
        description="Unexpected metrics, and phases that are not event types of Sluice; the first "
        "1000. Notes do not make the log invalid."
    )
    non_finite: tuple[LogProblem, ...] = Field(
        description="Numbers that are NaN or infinite; the first 1000."
    )
    num_non_finite: int
    gaps: tuple[LogProblem, ...] = Field(
        description="Missing parts of an incomplete log: end events and folds."
    )
    torn_line: str | None = Field(
        description="The last line if it is incomplete, for example after a crash."
    )

    @property
    def valid(self) -> bool:
        """True when the log has events, and each complete line is an event with all its fields."""
        return self.num_problems == 0

    @property
    def complete(self) -> bool:
        """True when the log has events, no end event or fold is missing, and no line is torn."""
        return bool(self.counts) and not self.gaps and self.torn_line is None


def inspect_log(
    path: str | Path, *, test_metrics: tuple[str, ...] | None, headline: str | None
) -> LogReport:
    """Check every event of a log and return a report.

    Valid and complete are different properties: a run that is in progress or crashed has a valid
    but incomplete log. Non-finite numbers and notes make a log neither invalid nor incomplete.
    If ``test_metrics`` and ``headline`` are None, every log that ``EventLog`` wrote and that has an
    event is valid.

    The type of an event is in its field ``event`` or, in logs of other programs, ``phase``. The
    fields of a phase that is not an event type of Sluice are not checked; the report has a note on
    it. Such a phase named ``*_start`` requires a later ``*_complete``, ``*_end`` or ``*_stopped``.

    Args:
        path: The NDJSON file.
        test_metrics: Metrics that every ``fold_complete`` must contain. None if the workload is
            unknown. In this case, the report has a note on each ``fold_complete`` without a number
            named ``test_*``, or with other such names than the first ``fold_complete``.
        headline: Metric that every ``experiment_complete`` must contain; empty for no metric. None
            if the workload is unknown. In this case, the report has a note on each
            ``experiment_complete`` without a number named ``mean_*``.

    Raises:
        StorageError: The file cannot be read.

    Cost:
        About 7 s per 1,000,000 events with constant memory, because the log is read line by line.
    """
    inspection = _Inspection(test_metrics=test_metrics, headline=headline)
    invalid_line: EventLine | None = None
    for line in read_lines(path):
        if invalid_line is not None:
            inspection.add_invalid_line(invalid_line)
        invalid_line = line if line.record is None else None
        if line.record is not None:
            inspection.add_record(line.number, line.record)
    # An invalid last line without a newline counts as incomplete, which is not a problem. In a file
    # without any record, such a line is a problem.
    is_torn = (
        invalid_line is not None and not invalid_line.has_newline and inspection.num_records > 0
    )
    if invalid_line is not None and not is_torn:
        inspection.add_invalid_line(invalid_line)
    return inspection.report(
        path, torn_line=invalid_line.text if invalid_line is not None and is_torn else None
    )


@dataclass(slots=True, kw_only=True)
class _Inspection:
    """State of the inspection of one log."""

    test_metrics: tuple[str, ...] | None
    headline: str | None
    required_by_event: dict[str, dict[str, FieldKind] | None] = field(default_factory=dict)
    """Result of ``required_fields`` for each event type so far."""
    counts: Counter[str] = field(default_factory=Counter)
    num_records: int = 0
    notes: "_Listing" = field(default_factory=lambda: _Listing())
    problems: "_Listing" = field(default_factory=lambda: _Listing())
    non_finite: "_Listing" = field(default_factory=lambda: _Listing())
    open_starts: dict[tuple[Any, ...], LogProblem] = field(default_factory=dict)
    """Gap to report for each start event without an end event so far, by event type and, for folds,
    seed and fold."""
    first_metrics: tuple[str, ...] = ()
    """Names of the metrics of the first completed fold."""
    completed_folds: set[int | str | None] = field(default_factory=set)
    """Ids of completed folds."""
    last_experiment_end: tuple[int, int] | None = None
    """Line number and total_folds of the last experiment_complete."""

    def add_invalid_line(self, line: EventLine) -> None:
        what = f"the line must be one JSON object, got {line.text[:_MAX_EXCERPT_CHARACTERS]!a}"
        self.problems.add(
            LogProblem(kind="invalid JSON", line=line.number, event="", field="", what=what)
        )

    def add_record(self, line_number: int, record: Mapping[str, Any]) -> None:
        """Add one event to the report."""
        self.num_records += 1
        is_phase = "event" not in record and isinstance(record.get("phase"), str)
        event = record["phase"] if is_phase else record.get("event")
        if not isinstance(event, str):
            what = "field 'event' is missing or not a string"
            self.problems.add(
                LogProblem(
                    kind="no event type", line=line_number, event="", field="event", what=what
                )
            )
            return
        self.counts[event] += 1
        if event not in self.required_by_event:
            self.required_by_event[event] = required_fields(
                event, test_metrics=self.test_metrics, headline=self.headline
            )
        required_kinds = self.required_by_event[event]
        field_problems = find_field_problems(event, record, required_kinds)
        for listing, problems in (
            (self.notes if is_phase and required_kinds is None else self.problems, field_problems),
            (self.notes, self._find_metric_notes(event, record)),
        ):
            for problem in problems:
                listing.add(_to_log_problem(problem, line_number, event))
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                what = f"{name} is {value}"
                self.non_finite.add(
                    LogProblem(
                        kind="non-finite", line=line_number, event=event, field=name, what=what
                    )
                )
        if is_phase and required_kinds is None:
            self._track_phase(line_number, event)
        else:
            self._track_event(line_number, event, record)

    def report(self, path: str | Path, *, torn_line: str | None) -> LogReport:
        if not self.num_records:
            self._replace_problems()
        return LogReport(
            path=str(path),
            counts=dict(self.counts),
            problems=tuple(self.problems.entries),
            num_problems=self.problems.count,
            notes=tuple(self.notes.entries),
            non_finite=tuple(self.non_finite.entries),
            num_non_finite=self.non_finite.count,
            gaps=(
                *self.open_starts.values(),
                *self._find_missing_folds(),
                *self._find_missing_end(),
            ),
            torn_line=torn_line,
        )

    def _find_missing_folds(self) -> list[LogProblem]:
        """Compare the completed folds with the number that the experiment reports."""
        experiment_end = self.last_experiment_end
        if experiment_end is None or experiment_end[1] <= len(self.completed_folds):
            return []
        line_number, total_folds = experiment_end
        completed = ", ".join(map(str, sorted(self.completed_folds, key=str))) or "none"
        what = (
            f"total_folds is {total_folds}, but only these folds have a fold_complete: {completed}"
        )
        return [_make_gap(line_number, "experiment_complete", what)]

    def _find_missing_end(self) -> list[LogProblem]:
        """Return a gap if there are epochs, but no start or end of a fold or experiment."""
        other_event_types = {
            "experiment_start",
            "fold_start",
            "experiment_complete",
            "fold_complete",
        }
        if not self.counts["epoch_complete"] or other_event_types & self.counts.keys():
            return []
        return [_make_gap(1, "epoch_complete", "no fold_complete or experiment_complete follows")]

    def _replace_problems(self) -> None:
        """Replace the problems of all lines by one problem of the whole file."""
        first_problem = self.problems.entries[0] if self.problems.count else None
        if first_problem is None:
            what = "the file is empty: it contains no event"
            problem = LogProblem(kind="empty", line=1, event="", field="", what=what)
        else:
            what = f"this is not an event log, it contains no event: {first_problem.what}"
            problem = LogProblem(
                kind="not a log", line=first_problem.line, event="", field="", what=what
            )
        self.problems = _Listing(entries=[problem], count=1)

    def _find_metric_notes(self, event: str, record: Mapping[str, Any]) -> list[FieldProblem]:
        """Return a note if metrics are missing, or have other names than in the first fold.

        There are notes only if the workload is unknown. The metrics of a known workload are
        required fields.
        """
        if event == "experiment_complete" and self.headline is None:
            if not numeric_fields("mean_", record):
                return [_metric_note("mean_*", "no number is named mean_* (the headline metric)")]
        elif event == "fold_complete" and self.test_metrics is None:
            names = numeric_fields("test_", record)
            if not names:
                return [
                    _metric_note("test_*", "no number is named test_* (a metric of the test rows)")
                ]
            self.first_metrics = self.first_metrics or names
            if names != self.first_metrics:
                expected, actual = ", ".join(self.first_metrics), ", ".join(names)
                what = f"the first fold has {expected}, but this fold has {actual}"
                return [_metric_note("test_*", what)]
        return []

    def _track_event(self, line_number: int, event: str, record: Mapping[str, Any]) -> None:
        """Add a gap for a start event; remove the gap of the start event that this event ends."""
        total_folds = record.get("total_folds")
        if event == "fold_complete":
            self.completed_folds.add(_id_field(record, "fold_id"))
        elif event == "experiment_complete" and isinstance(total_folds, int):
            self.last_experiment_end = (line_number, total_folds)
        if event not in _START_OR_END_EVENTS:
            return
        seed_and_fold = (_id_field(record, "seed"), _id_field(record, "fold_id"))
        if event in END_EVENTS:
            key = seed_and_fold if event == "fold_start" else ()
            what = f"no {' or '.join(END_EVENTS[event])} follows"
            self.open_starts[(event, *key)] = _make_gap(line_number, event, what)
            return
        for start, ends in END_EVENTS.items():
            if event not in ends:
                continue
            is_fold_end = event == "fold_complete"
            ended_keys = [
                start_key
                for start_key in self.open_starts
                if start_key[0] == start
                and (not is_fold_end or _is_same_fold(start_key[1:], seed_and_fold))
            ]
            for start_key in ended_keys:
                del self.open_starts[start_key]

    def _track_phase(self, line_number: int, event: str) -> None:
        """Track the start and end of a phase in a log of another program."""
        name, _, suffix = event.rpartition("_")
        if name and suffix == "start":
            ends = " or ".join(f"{name}_{end}" for end in _PHASE_ENDS)
            self.open_starts[(event,)] = _make_gap(line_number, event, f"no {ends} follows")
        elif name and suffix in _PHASE_ENDS:
            self.open_starts.pop((f"{name}_start",), None)


@dataclass(slots=True)
class _Listing:
    """List of the first problems, and the number of all problems."""

    entries: list[LogProblem] = field(default_factory=list)
    count: int = 0

    def add(self, problem: LogProblem) -> None:
        self.count += 1
        if len(self.entries) < _MAX_LISTED_PROBLEMS:
            self.entries.append(problem)


def _to_log_problem(problem: FieldProblem, line_number: int, event: str) -> LogProblem:
    return LogProblem(
        kind=problem.kind, line=line_number, event=event, field=problem.field, what=problem.what
    )


def _make_gap(line: int, event: str, what: str) -> LogProblem:
    return LogProblem(kind="missing end", line=line, event=event, field="", what=what)


def _metric_note(name: str, what: str) -> FieldProblem:
    return FieldProblem("unexpected metric", name, what)


def _id_field(record: Mapping[str, Any], name: str) -> int | str | None:
    value = record.get(name)
    return value if isinstance(value, int | str) else None


def _is_same_fold(start: tuple[Any, ...], end: tuple[Any, ...]) -> bool:
    """Return whether an end event belongs to a start event of a fold.

    An end event without a seed ends the fold of every seed.

    Args:
        start: Seed and fold of the start event.
        end: Seed and fold of the end event.
    """
    return start == end or (end[0] is None and start[1] == end[1])
