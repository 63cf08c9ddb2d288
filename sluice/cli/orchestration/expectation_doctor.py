"""``sluice doctor expectations``: measures the alarm rates of expectations."""

import os
import sys
from html import escape as html_escape

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.checks.alarm_rates import measure_alarms
from sluice.checks.alarm_report import AlarmRate, AlarmReport, AlarmSettings
from sluice.cli.output import results_console
from sluice.config.pipeline import defs_folder, find_pipeline
from sluice.config.resolved import resolve
from sluice.reports.folder import save_page
from sluice.reports.page import html_page, table

_MAX_MISSED_COLUMNS = 4


def examine_expectations(
    pipeline: str, home: Home, *, window_rows: int, step_rows: int, as_json: bool
) -> None:
    """Measure the false and missed alarms of a pipeline's expectations, and print the result."""
    settings = find_pipeline(pipeline, defs_folder())
    alarm_settings = AlarmSettings(window_rows=window_rows, step_rows=step_rows)
    stderr = Console(stderr=True)
    report = measure_alarms(
        resolve(settings).workload,
        alarm_settings,
        name=settings.name,
        progress=lambda text: stderr.print(f"  {text}", highlight=False, markup=False),
    )
    page = save_page(
        alarm_page(report),
        f"expectations/{settings.name}/alarm_rates",
        home=home,
        environ=os.environ,
    )
    print(f"page: {page.path}", file=sys.stderr)
    if as_json:
        print(report.model_dump_json(indent=1))
    else:
        results_console().print(alarm_tables(report))


def alarm_tables(report: AlarmReport) -> Group:
    """Return the tables of the report for a terminal."""
    expectation_table = Table(
        "table", "expectation", "false alarms", "caught", box=None, pad_edge=False
    )
    for rates in report.expectations:
        expectation_table.add_row(
            rates.table,
            escape(rates.sentence),
            _format_false_alarms(rates.false_alarms),
            f"{rates.caught:,}",
        )
    corruption_table = Table(
        "planted in", "corruption", "times", "caught", "rejected", "missed", "missed in", box=None,
        pad_edge=False,
    )  # fmt: skip
    for row in report.corruptions:
        corruption_table.add_row(
            row.planted_in,
            escape(row.corruption),
            f"{row.planted:,}",
            f"{row.caught:,}",
            f"{row.refused:,}",
            _format_rate(row.missed),
            escape(_join_columns(row.missed_in)),
        )
    return Group(
        Text(_summary(report)),
        Text(),
        expectation_table,
        Text(),
        Text(_LEGEND),
        Text(),
        corruption_table,
    )


def alarm_page(report: AlarmReport) -> str:
    """Return the report as an HTML page."""
    expectation_rows = [
        [
            rates.table,
            html_escape(rates.sentence),
            _format_false_alarms(rates.false_alarms),
            f"{rates.caught:,}",
        ]
        for rates in report.expectations
    ]
    corruption_rows = [
        [
            row.planted_in,
            html_escape(row.corruption),
            f"{row.planted:,}",
            f"{row.caught:,}",
            f"{row.refused:,}",
            _format_rate(row.missed),
            html_escape(_join_columns(row.missed_in)),
            html_escape(_best_detector(row.caught_by)),
        ]
        for row in report.corruptions
    ]
    body = [
        f"<h1>Alarm rates of the expectations of {html_escape(report.workload)}</h1>",
        f"<p>{html_escape(_summary(report))}</p>",
        "<h2>False alarms on good rows</h2>",
        '<div class="card">',
        table(
            ["table", "expectation", "false alarms", "caught"],
            expectation_rows,
            numbers=frozenset({2, 3}),
        ),
        "</div>",
        "<h2>Planted corruptions</h2>",
        f'<p class="soft">{html_escape(_LEGEND)}</p>',
        '<div class="card">',
        table(
            ["planted in", "corruption", "times", "caught", "rejected", "missed", "missed in",
             "best detector"],
            corruption_rows,
            numbers=frozenset({2, 3, 4, 5}),
        ),
        "</div>",
    ]  # fmt: skip
    return html_page(f"Alarm rates of expectations: {report.workload}", "\n".join(body))


_LEGEND = (
    "Caught: detected by an expectation. Rejected: detected only by a schema or the feature code. "
    "Missed: not detected."
)


def _summary(report: AlarmReport) -> str:
    measured_rates = [rates for rates in report.expectations if rates.false_alarms is not None]
    num_with_alarm = sum(
        rates.false_alarms.count > 0 for rates in measured_rates if rates.false_alarms
    )
    return (
        f"{num_with_alarm} of {pluralize(len(measured_rates), 'expectation')} raised a false alarm "
        f"on {pluralize(report.num_windows, 'window')} of {report.settings.window_rows} good rows. "
        f"The windows overlap, so the {report.settings.confidence:.0%} intervals of the false "
        f"alarms count them as {pluralize(report.disjoint_windows, 'disjoint window')}. "
        f"{pluralize(report.refused_windows, 'good window')} "
        f"{'was' if report.refused_windows == 1 else 'were'} rejected by a schema or the feature "
        "code. Expectations of row counts and classes of Great Expectations apply to whole "
        "tables, so they are not measured on windows."
    )


def _format_false_alarms(rate: AlarmRate | None) -> str:
    return "not measured" if rate is None else _format_rate(rate)


def _format_rate(rate: AlarmRate) -> str:
    return f"{rate.count}/{rate.of} ({rate.low:.0%} to {rate.high:.0%})"


def _best_detector(caught_by: dict[str, int]) -> str:
    """Return the expectation that caught the most windows.

    If no expectation caught a window, the result is the best other detector. ``caught_by`` is
    sorted by the number of windows, highest first. Only names of expectations contain ": ".
    """
    expectations = (name for name in caught_by if ": " in name)
    return next(expectations, next(iter(caught_by), "none"))


def _join_columns(missed_in: dict[str, int]) -> str:
    first_columns = list(missed_in)[:_MAX_MISSED_COLUMNS]
    num_more = len(missed_in) - len(first_columns)
    return ", ".join(first_columns) + (f" and {num_more} more" if num_more else "")
