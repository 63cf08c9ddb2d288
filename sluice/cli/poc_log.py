"""``sluice poc --log FILE``: is anyone's event log whole, and what does it hold?"""

import json
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.base.pluralize import counted
from sluice.cli.output import results
from sluice.eventlog.event_lines import encode_numbers
from sluice.eventlog.log_report import LogProblem, LogReport, inspect_log
from sluice.eventlog.log_response import respond_to

_SHOWN = 20
"""Problems of a kind in the table for people; --json has the first 1000."""


def validate_file(log: Path, target: str | None, *, as_json: bool) -> bool:
    """Print what an event log holds; return whether it is valid and complete.

    A log with a torn last line, without the end of what began or without a fold that it counts is
    incomplete: a crash or a run that goes on leaves it so.

    Without a target the names of the metrics are not known, and a ``fold_complete`` without a
    number named ``test_*`` or an ``experiment_complete`` without one named ``mean_*`` is only
    noted. With a target they must have ``test_`` and ``mean_`` before the workload's headline
    metric.

    Args:
        log: The NDJSON file.
        target: A pipeline's name or file, or 'module:Workload'; None when there is none.
        as_json: Print the report as JSON instead of tables.

    Raises:
        StorageError: There is no such file, or it cannot be read.
        SettingsError: There is no such pipeline or workload.
    """
    headline = None if target is None else _headline(target)
    report = inspect_log(
        log,
        test_metrics=None if headline is None else (f"test_{headline}",),
        headline=None if headline is None else f"mean_{headline}",
    )
    if as_json:
        found = {"valid": report.valid, "complete": report.complete, **report.model_dump()}
        print(json.dumps(encode_numbers(found), indent=2, allow_nan=False))
    else:
        results().print(log_page(report))
    return report.valid and report.complete


def log_page(report: LogReport) -> RenderableType:
    """Return the report for a terminal: events by type, what was noticed, the verdict."""
    counts = Table("event", box=box.SIMPLE_HEAD, pad_edge=False)
    counts.add_column("count", justify="right")
    for event, count in report.counts.items():
        counts.add_row(Text(event), f"{count:,}")
    parts: list[RenderableType] = [counts] if report.counts else []
    if not report.valid:
        parts.append(_table("problem", report.problems, report.num_problems))
    if report.notes:
        parts.append(_table("note", report.notes, len(report.notes)))
    if report.num_non_finite:
        parts.append(_table("not finite", report.non_finite, report.num_non_finite))
    if report.gaps:
        parts.append(_table("incomplete", report.gaps, len(report.gaps)))
    return Group(*parts, _verdict(report))


def _headline(target: str) -> str:
    """Return the headline metric of the workload that ``target`` means."""
    # Here, because they import torch, and a log is looked at without it.
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.workloads.load import load_workload

    if ":" in target:
        return load_workload(target, {}, where=target).headline_metric
    return find_pipeline(target, defs_folder()).loaded_workload.headline_metric


def _table(title: str, problems: tuple[LogProblem, ...], total: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column(title)
    for problem in problems[:_SHOWN]:
        table.add_row(f"{problem.line:,}", Text(problem.event), Text(problem.what))
    if total > _SHOWN:
        table.add_row("", "", f"and {total - _SHOWN:,} more")
    return table


def _verdict(report: LogReport) -> Text:
    text = Text()
    if report.torn_line is not None:
        text.append("The last line is torn, as a crash leaves it: ")
        text.append(f"{report.torn_line[:60]!r}\n", style="dim")
    said, style = ("is valid", "green") if report.valid else ("is not valid", "bold red")
    text.append("The log ").append(said, style=style)
    text.append(f": {counted(sum(report.counts.values()), 'event')}, ")
    text.append(counted(report.num_problems, "problem"))
    completeness = "complete" if report.complete else "incomplete"
    text.append(f", {completeness}.", style="" if report.complete else "bold red")
    if not (report.valid and report.complete):
        response = respond_to(report.problems[0].kind if report.problems else "no end")
        text.append(f"\n  why:  {response.cause}\n  do:   {response.fix}")
    return text
