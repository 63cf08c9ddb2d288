"""``sluice poc --log FILE``: validates an event log and summarises it."""

import json
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.base.pluralize import pluralize
from sluice.cli.output import results_console
from sluice.eventlog.event_lines import encode_numbers
from sluice.eventlog.log_report import LogProblem, LogReport, inspect_log
from sluice.eventlog.log_response import respond_to_log_problem

_MAX_TABLE_ROWS = 20
"""Maximum number of problems in a table; ``--json`` prints up to 1000."""


def validate_file(log: Path, target: str | None, *, as_json: bool) -> bool:
    """Print a summary of an event log; return whether the log is valid and complete.

    A log is incomplete after a crash, or while the run continues: the last line is torn, a gate, a
    fold or the experiment has no end event, or a fold is missing.

    With a target, every ``fold_complete`` event must have the workload's headline metric with the
    prefix ``test_``, and ``experiment_complete`` must have it with the prefix ``mean_``. Without a
    target, the metrics of the workload are unknown. An event without any ``test_*`` or ``mean_*``
    number then only causes a note.

    Args:
        log: The NDJSON file.
        target: A pipeline's name or YAML file, or 'module:Workload'; None for any log.
        as_json: Print the report as JSON instead of tables.

    Raises:
        StorageError: The file does not exist or cannot be read.
        SettingsError: The pipeline or workload does not exist.
    """
    headline = None if target is None else _headline_metric(target)
    report = inspect_log(
        log,
        test_metrics=None if headline is None else (f"test_{headline}",),
        headline=None if headline is None else f"mean_{headline}",
    )
    if as_json:
        content = {"valid": report.valid, "complete": report.complete, **report.model_dump()}
        print(json.dumps(encode_numbers(content), indent=2, allow_nan=False))
    else:
        results_console().print(log_page(report))
    return report.valid and report.complete


def log_page(report: LogReport) -> RenderableType:
    """Return the report for a terminal: events by type, problems, conclusion."""
    counts = Table("event", box=box.SIMPLE_HEAD, pad_edge=False)
    counts.add_column("count", justify="right")
    for event, count in report.counts.items():
        counts.add_row(Text(event), f"{count:,}")
    parts: list[RenderableType] = [counts] if report.counts else []
    if not report.valid:
        parts.append(_problem_table("problem", report.problems, report.num_problems))
    if report.notes:
        parts.append(_problem_table("note", report.notes, len(report.notes)))
    if report.num_non_finite:
        parts.append(_problem_table("non-finite", report.non_finite, report.num_non_finite))
    if report.gaps:
        parts.append(_problem_table("incomplete", report.gaps, len(report.gaps)))
    return Group(*parts, _conclusion(report))


def _headline_metric(target: str) -> str:
    """Return the headline metric of the workload named by ``target``."""
    # Imported here, because these modules import torch. A log without a target does not need torch.
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.config.resolved import resolve
    from sluice.workloads.load import load_workload

    if ":" in target:
        return load_workload(target, {}, where=target).headline_metric
    return resolve(find_pipeline(target, defs_folder())).workload.headline_metric


def _problem_table(header: str, problems: tuple[LogProblem, ...], total: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column(header)
    for problem in problems[:_MAX_TABLE_ROWS]:
        table.add_row(f"{problem.line:,}", Text(problem.event), Text(problem.what))
    if total > _MAX_TABLE_ROWS:
        table.add_row("", "", f"and {total - _MAX_TABLE_ROWS:,} more")
    return table


def _conclusion(report: LogReport) -> Text:
    text = Text()
    if report.torn_line is not None:
        text.append("The last line is torn, as after a crash: ")
        text.append(f"{report.torn_line[:60]!r}\n", style="dim")
    validity, style = ("is valid", "green") if report.valid else ("is not valid", "bold red")
    text.append("The log ").append(validity, style=style)
    text.append(f": {pluralize(sum(report.counts.values()), 'event')}, ")
    text.append(pluralize(report.num_problems, "problem"))
    completeness = "complete" if report.complete else "incomplete"
    text.append(f", {completeness}.", style="" if report.complete else "bold red")
    if not (report.valid and report.complete):
        response = respond_to_log_problem(
            report.problems[0].kind if report.problems else "missing end"
        )
        text.append(f"\n  why:  {response.cause}\n  do:   {response.fix}")
    return text
