"""``sluice drift``: tests a window of rows for drift against a reference."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sluice.base.cpu_count import count_cores
from sluice.base.digests import digest_frame
from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.base.files import write_atomic
from sluice.cli.output import print_json, results_console
from sluice.config.drift_settings import MIN_WINDOW_ROWS, DriftSettings

if TYPE_CHECKING:
    from sluice.drift.report import DriftReport

_DEFAULTS = DriftSettings()
_EXAMPLE = "Example: sluice drift training.parquet yesterday.csv --ignore time --html drift.html"
_MAX_COLUMNS_SHOWN = 30


def register(app: typer.Typer) -> None:
    """Add ``drift`` to the command line."""
    app.command("drift", epilog=_EXAMPLE)(drift)


def drift(
    reference: Annotated[
        Path,
        typer.Argument(help="Reference rows in time order: Parquet or CSV.", show_default=False),
    ],
    window: Annotated[
        Path, typer.Argument(help="Rows to test, in time order.", show_default=False)
    ],
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to ignore, such as the time; may be repeated.", show_default=False
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Rate of false alarms per window, over all columns, in (0, 0.5).")
    ] = _DEFAULTS.alpha,
    min_rows: Annotated[
        int,
        typer.Option(
            help="Minimum size of a window [rows]. The verdict on a smaller window is INCONCLUSIVE."
        ),
    ] = _DEFAULTS.min_rows,
    max_columns: Annotated[
        int,
        typer.Option(
            help="Maximum number of columns to compare. If the table has more columns, a random "
            "sample of them is compared."
        ),
    ] = _DEFAULTS.max_columns,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the random windows that calibrate the test.")
    ] = 0,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Also write a report with figures to this HTML file.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test which columns of a window have drifted from the reference.

    Exit code 0 for STABLE, 1 for DRIFT or INCONCLUSIVE.
    """
    # Imported here, because --help needs neither pandas nor figures.
    from sluice.drift.page import drift_page
    from sluice.drift.reference import build_reference
    from sluice.drift.table_file import read_frame
    from sluice.drift.window_evaluation import evaluate_window

    ignored_columns = tuple(ignore or ())
    reference_frame, window_frame = (
        read_frame(reference, ignored_columns=ignored_columns),
        read_frame(window, ignored_columns=ignored_columns),
    )
    window_rows = max(len(window_frame), MIN_WINDOW_ROWS)
    settings = DriftSettings.parse(
        {
            "alpha": alpha,
            "min_rows": min_rows,
            "window_rows": window_rows,
            "max_columns": max_columns,
        },
        where="sluice drift",
    )
    num_threads = count_cores()
    drift_reference = build_reference(reference_frame, settings, seed=seed, threads=num_threads)
    report = evaluate_window(
        drift_reference, window_frame, window=digest_frame(window_frame), threads=num_threads
    )
    if html is not None:
        title = f"{window.name} against {reference.name}"
        write_atomic(html, drift_page(report, drift_reference, title=title).encode())
        typer.echo(f"report: {html}", err=True)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if not report.passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _format_number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "-"


def _print_report(report: "DriftReport") -> None:
    table = Table(title=report.verdict, title_justify="left")
    for name in ("column", "verdict", "adjusted p", "effect", "why"):
        table.add_column(name, justify="right" if name in ("adjusted p", "effect") else "left")
    stable_columns = [column for column in report.columns if column.verdict == "STABLE"]
    inconclusive_columns = [column for column in report.columns if column.verdict == "INCONCLUSIVE"]
    ranked_columns = [
        *report.drifted_columns,
        *inconclusive_columns,
        *sorted(stable_columns, key=lambda column: column.p_value),
    ]
    for column in ranked_columns[:_MAX_COLUMNS_SHOWN]:
        numbers = (_format_number(column.adjusted_p), _format_number(column.effect))
        table.add_row(column.column, column.verdict, *numbers, column.reason)
    console = results_console(markup=False)
    console.print(table)
    if len(ranked_columns) > _MAX_COLUMNS_SHOWN:
        console.print(f"and {len(ranked_columns) - _MAX_COLUMNS_SHOWN} more; --json lists all")
    if report.joint is not None:
        console.print(f"All columns together: {report.joint.verdict}. {report.joint.reason}")
    if report.extra_columns:
        console.print(f"Not in the reference: {', '.join(report.extra_columns)}")
    console.print(f"{report.reason} {report.remedy}")
