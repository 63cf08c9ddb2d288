"""What a log holds and what is wrong with it, whoever wrote it (LOG-1)."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from sluice.base.settings import Record
from sluice.eventlog.event_fields import (
    ENDED_BY,
    FieldKind,
    FieldProblem,
    ProblemKind,
    declared_fields,
    find_field_problems,
    numbers_called,
)
from sluice.eventlog.event_lines import EventLine, read_lines

_MAX_LISTED = 1000
"""Problems that are kept one by one; all are counted."""

_FOLLOWED = frozenset(ENDED_BY).union(*ENDED_BY.values())

_PHASE_ENDS = ("complete", "end", "stopped")
"""How another program's log names the end of a phase that began as ``*_start``."""

_SHOWN = 80
"""Characters of a line that is no event."""


class LogProblem(Record):
    """Something about one line."""

    kind: ProblemKind
    line: int = Field(description="Counted from 1.")
    event: str = Field(description="Its event type; empty when it has none.")
    field: str = Field(description="Empty when it is about the line as a whole.")
    what: str

    def __str__(self) -> str:
        return f"line {self.line}{', ' if self.event else ''}{self.event}: {self.what}"


class LogReport(Record):
    """What a log holds and what is wrong with it."""

    path: str
    counts: dict[str, int] = Field(description="Events by type.")
    problems: tuple[LogProblem, ...] = Field(description="What makes it invalid; the first 1000.")
    num_problems: int
    notes: tuple[LogProblem, ...] = Field(
        description="What a workload would ask for and only it can name; the first 1000."
    )
    non_finite: tuple[LogProblem, ...] = Field(
        description="Numbers that are NaN or infinite; the first 1000."
    )
    num_non_finite: int
    gaps: tuple[LogProblem, ...] = Field(
        description="What a complete log would hold besides: ends of what began, missing folds."
    )
    torn_line: str | None = Field(description="The last line when it is not whole, as by a crash.")

    @property
    def valid(self) -> bool:
        """True when there is at least one event and every event has its fields."""
        return self.num_problems == 0

    @property
    def complete(self) -> bool:
        """True when everything that began has its end, and no line is torn."""
        return bool(self.counts) and not self.gaps and self.torn_line is None


def inspect_log(
    path: str | Path, *, test_metrics: tuple[str, ...] | None, headline: str | None
) -> LogReport:
    """Check every event of a log and return what was found, good or bad.

    Valid and complete are two questions: a run that goes on or crashed leaves a valid log that is
    not complete. Non-finite numbers and notes make a log neither invalid nor incomplete. What
    ``EventLog`` wrote is valid when the workload is not known.

    The type of an event is in its field ``event`` or, in logs of other programs, ``phase``. A
    phase that is no event type of Sluice is noted, and its fields are not checked; one that is
    named ``*_start`` needs its ``*_complete``, ``*_end`` or ``*_stopped``.

    Args:
        path: The NDJSON file.
        test_metrics: Names every ``fold_complete`` must carry. None when the workload is not known:
            then one without a number named ``test_*``, or with other ones than the first, is noted.
        headline: Name every ``experiment_complete`` must carry; empty for none. None when the
            workload is not known: then one without a number named ``mean_*`` is noted.

    Raises:
        StorageError: The file cannot be read.

    Cost:
        Read line by line: about 7 s per 1,000,000 events, and memory that does not grow.
    """
    found = _Inspection(test_metrics=test_metrics, headline=headline)
    bad: EventLine | None = None
    for line in read_lines(path):
        if bad is not None:
            found.refuse(bad)
        bad = line if line.record is None else None
        if line.record is not None:
            found.look(line.number, line.record)
    torn = bad is not None and not bad.ended and found.num_records > 0
    if bad is not None and not torn:
        found.refuse(bad)
    return found.report(path, torn_line=bad.text if bad is not None and torn else None)


@dataclass(slots=True, kw_only=True)
class _Inspection:
    """What is known so far."""

    test_metrics: tuple[str, ...] | None
    headline: str | None
    declared: dict[str, dict[str, FieldKind] | None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    num_records: int = 0
    notes: "_Listing" = field(default_factory=lambda: _Listing())
    problems: "_Listing" = field(default_factory=lambda: _Listing())
    non_finite: "_Listing" = field(default_factory=lambda: _Listing())
    begun: dict[tuple[Any, ...], LogProblem] = field(default_factory=dict)
    first_metrics: tuple[str, ...] = ()
    folds: set[int | str | None] = field(default_factory=set)
    """Folds that completed."""
    end: tuple[int, int] | None = None
    """Line and total_folds of the last experiment_complete."""

    def refuse(self, line: EventLine) -> None:
        what = f"the line must be one JSON object, got {line.text[:_SHOWN]!a}"
        self.problems.add(
            LogProblem(kind="no json", line=line.number, event="", field="", what=what)
        )

    def look(self, number: int, record: Mapping[str, Any]) -> None:
        self.num_records += 1
        is_phase = "event" not in record and isinstance(record.get("phase"), str)
        event = record["phase"] if is_phase else record.get("event")
        if not isinstance(event, str):
            what = "field 'event' is missing or not text"
            self.problems.add(
                LogProblem(kind="no event", line=number, event="", field="event", what=what)
            )
            return
        self.counts[event] += 1
        if event not in self.declared:
            self.declared[event] = declared_fields(
                event, test_metrics=self.test_metrics, headline=self.headline
            )
        declared = self.declared[event]
        unknown = find_field_problems(event, record, declared)
        for listing, problems in (
            (self.notes if is_phase and declared is None else self.problems, unknown),
            (self.notes, self._unnamed_metrics(event, record)),
        ):
            for problem in problems:
                listing.add(_located(problem, number, event))
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                what = f"{name} is {value}"
                self.non_finite.add(
                    LogProblem(kind="not finite", line=number, event=event, field=name, what=what)
                )
        if is_phase and declared is None:
            self._follow_phase(number, event)
        else:
            self._follow(number, event, record)

    def report(self, path: str | Path, *, torn_line: str | None) -> LogReport:
        if not self.num_records:
            self._is_no_log()
        return LogReport(
            path=str(path),
            counts=dict(self.counts),
            problems=tuple(self.problems.kept),
            num_problems=self.problems.total,
            notes=tuple(self.notes.kept),
            non_finite=tuple(self.non_finite.kept),
            num_non_finite=self.non_finite.total,
            gaps=(*self.begun.values(), *self._missing_folds(), *self._missing_end()),
            torn_line=torn_line,
        )

    def _missing_folds(self) -> list[LogProblem]:
        """Compare the folds that completed with the number that the experiment reports."""
        if self.end is None or self.end[1] <= len(self.folds):
            return []
        line, total = self.end
        done = ", ".join(map(str, sorted(self.folds, key=str))) or "none"
        what = f"total_folds is {total}, and these folds have a fold_complete: {done}"
        return [_gap(line, "experiment_complete", what)]

    def _missing_end(self) -> list[LogProblem]:
        """Epochs that belong to nothing that began also need an end."""
        began = {"experiment_start", "fold_start", "experiment_complete", "fold_complete"}
        if not self.counts["epoch_complete"] or began & self.counts.keys():
            return []
        return [_gap(1, "epoch_complete", "no fold_complete or experiment_complete follows")]

    def _is_no_log(self) -> None:
        """One problem says it; a table would have one a line."""
        first = self.problems.kept[0] if self.problems.total else None
        if first is None:
            what = "the file is empty: it holds no event"
            only = LogProblem(kind="empty", line=1, event="", field="", what=what)
        else:
            what = f"this is not an event log, it holds no event: {first.what}"
            only = LogProblem(kind="no log", line=first.line, event="", field="", what=what)
        self.problems = _Listing(kept=[only], total=1)

    def _unnamed_metrics(self, event: str, record: Mapping[str, Any]) -> list[FieldProblem]:
        """Return what is unusual about metrics whose names nobody has told."""
        if event == "experiment_complete" and self.headline is None:
            if not numbers_called("mean_", record):
                return [_metric("mean_*", "no number is named mean_*, the headline metric")]
        elif event == "fold_complete" and self.test_metrics is None:
            names = numbers_called("test_", record)
            if not names:
                return [_metric("test_*", "no number is named test_*, a metric of the test rows")]
            self.first_metrics = self.first_metrics or names
            if names != self.first_metrics:
                first, here = ", ".join(self.first_metrics), ", ".join(names)
                return [_metric("test_*", f"the first fold has {first}, and this one {here}")]
        return []

    def _follow(self, number: int, event: str, record: Mapping[str, Any]) -> None:
        """Note what begins, and forget what ends."""
        total = record.get("total_folds")
        if event == "fold_complete":
            self.folds.add(_key(record, "fold_id"))
        elif event == "experiment_complete" and isinstance(total, int):
            self.end = (number, total)
        if event not in _FOLLOWED:
            return
        seed_and_fold = (_key(record, "seed"), _key(record, "fold_id"))
        if event in ENDED_BY:
            which = seed_and_fold if event == "fold_start" else ()
            what = f"no {' or '.join(ENDED_BY[event])} follows"
            self.begun[(event, *which)] = _gap(number, event, what)
            return
        for start, ends in ENDED_BY.items():
            if event not in ends:
                continue
            of_fold = event == "fold_complete"
            ended = [
                key
                for key in self.begun
                if key[0] == start and (not of_fold or _same_fold(key[1:], seed_and_fold))
            ]
            for key in ended:
                del self.begun[key]

    def _follow_phase(self, number: int, event: str) -> None:
        """Follow what another program's log begins and ends."""
        name, _, part = event.rpartition("_")
        if name and part == "start":
            ends = " or ".join(f"{name}_{end}" for end in _PHASE_ENDS)
            self.begun[(event,)] = _gap(number, event, f"no {ends} follows")
        elif name and part in _PHASE_ENDS:
            self.begun.pop((f"{name}_start",), None)


@dataclass(slots=True)
class _Listing:
    """The first problems, and how many there are."""

    kept: list[LogProblem] = field(default_factory=list)
    total: int = 0

    def add(self, problem: LogProblem) -> None:
        self.total += 1
        if len(self.kept) < _MAX_LISTED:
            self.kept.append(problem)


def _located(problem: FieldProblem, number: int, event: str) -> LogProblem:
    return LogProblem(
        kind=problem.kind, line=number, event=event, field=problem.field, what=problem.what
    )


def _gap(line: int, event: str, what: str) -> LogProblem:
    return LogProblem(kind="no end", line=line, event=event, field="", what=what)


def _metric(name: str, what: str) -> FieldProblem:
    return FieldProblem("metric not named", name, what)


def _key(record: Mapping[str, Any], name: str) -> int | str | None:
    value = record.get(name)
    return value if isinstance(value, int | str) else None


def _same_fold(begun: tuple[Any, ...], ended: tuple[Any, ...]) -> bool:
    """Say whether an end belongs to a start; an end that names no seed belongs to every seed."""
    return begun == ended or (ended[0] is None and begun[1] == ended[1])
