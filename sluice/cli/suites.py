"""``sluice suites``: manages and runs regression suites."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.cli.output import print_json, results_console
from sluice.cli.registry_access import newest_trained_here

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineSettings
    from sluice.evaluation.suites.library import SuiteLibrary
    from sluice.evaluation.suites.result import SuiteReport
    from sluice.evaluation.suites.suite import Suite
    from sluice.registry.ledger import Ledger

Pipeline = Annotated[
    str, typer.Argument(help="A pipeline's name, or the path of its YAML file.", show_default=False)
]
Name = Annotated[str, typer.Argument(help="Name of the suite.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_MAX_ROWS_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add ``suites`` and its commands to the command line."""
    group = typer.Typer(
        name="suites",
        help="Regression suites: named sets of rows that every candidate is tested on.",
        epilog="Example: sluice suites run sp500_volatility",
        no_args_is_help=True,
    )
    for name, command, example in (
        ("list", list_suites, "list sp500_volatility"),
        ("show", show, "show sp500_volatility hard"),
        ("add", add, "add sp500_volatility crashes --query 'returns_vs < -2'"),
        ("run", run, "run sp500_volatility --version 3"),
    ):
        group.command(name, epilog=f"Example: sluice suites {example}")(command)
    app.add_typer(group)


def list_suites(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """List every version of every suite."""
    library = _suite_library(_pipeline_settings(pipeline).name)
    entries = [entry for name in library.names() for entry in library.entries(name)]
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in entries])
        return
    if not entries:
        results_console().print("No suite exists yet. To add one: sluice suites add --help")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("suite", "version", "rows", "chosen by", "added", "digest"):
        table.add_column(column)
    for entry in entries:
        added_text = f"{entry.added_at:%Y-%m-%d %H:%M}"
        numbers = (str(entry.version), str(entry.num_rows))
        table.add_row(
            entry.name, *numbers, entry.kind.replace("_", " "), added_text, entry.digest[:12]
        )
    results_console().print(table)


def show(
    pipeline: Pipeline,
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, help="Version number of the suite.", show_default="newest")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of a suite, each with the reason why it is in the suite."""
    from sluice.evaluation.suites.suite import describe_origin

    suite_version = _suite_library(_pipeline_settings(pipeline).name).load(name, version)
    if as_json:
        print_json(suite_version.model_dump(mode="json") | {"digest": suite_version.suite.digest})
        return
    table = Table(title=f"{name} version {suite_version.version}", title_justify="left", box=None)
    table.add_column("row")
    table.add_column("why")
    for row in suite_version.suite.rows[:_MAX_ROWS_SHOWN]:
        table.add_row(row.label, row.reason)
    console = results_console(markup=False)
    console.print(table)
    if len(suite_version.suite.rows) > _MAX_ROWS_SHOWN:
        console.print(
            f"and {len(suite_version.suite.rows) - _MAX_ROWS_SHOWN} more; --json lists all"
        )
    console.print(describe_origin(suite_version.suite.origin))


def add(
    pipeline: Pipeline,
    name: Name,
    query: Annotated[
        str | None,
        typer.Option(
            help="Condition on the features: column names, numbers, strings, comparisons, 'in', "
            "'and', 'or', 'not' and arithmetic. 'index' is the index label of the row.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet file with a column 'row', the index label of the row, and an "
            "optional column 'reason'.",
            show_default=False,
        ),
    ] = None,
    hard: Annotated[
        bool,
        typer.Option(
            "--hard",
            help="Use the rows with the highest losses of the production version. If no version is "
            "in production, the newest version that was trained here is used.",
        ),
    ] = False,
    revise: Annotated[
        bool, typer.Option("--revise", help="Create the next version of an existing suite.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a suite: from a query on the features, a file of rows, or the rows of highest loss."""
    num_sources = (query is not None) + (file is not None) + hard
    if num_sources != 1:
        raise SettingsError(
            f"Exactly one of --query, --file and --hard is required, got {num_sources} of them.",
            fix="Give exactly one of these options; see sluice suites add --help.",
        )
    settings = _pipeline_settings(pipeline)
    suite = _create_suite(settings, name, query, file)
    library, now = _suite_library(settings.name), datetime.now(UTC)
    entry = library.revise(suite, at=now) if revise else library.add(suite, at=now)
    if as_json:
        print_json(entry.model_dump(mode="json"))
    else:
        results_console(markup=False).print(
            f"Suite {entry.name} version {entry.version}: {pluralize(entry.num_rows, 'row')}."
        )


def run(
    pipeline: Pipeline,
    version: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of the registered version.", show_default="newest trained here"
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=1, help="Maximum number of rows per suite on the page.")
    ] = 40,
    as_json: AsJson = False,
) -> None:
    """Run all suites on a registered version, with the current rows of the source.

    The command writes a page to SLUICE_HOME/reports. Exit code 1 when a guard does not pass.
    """
    from sluice.evaluation.suites.page import suites_page
    from sluice.reports.folder import save_page

    settings = _pipeline_settings(pipeline)
    report, number = _run_suites(settings, version)
    page = save_page(
        suites_page(report, title=f"{settings.name} version {number}", max_examples=examples),
        f"suites/{settings.name}/version-{number}",
        home=_home(),
        environ=os.environ,
    )
    if as_json:
        content = report.model_dump(mode="json") | {"outcome": report.outcome, "version": number}
        print_json(content | {"page": str(page.path)})
    else:
        _print_report(report)
        results_console(markup=False).print(f"{report.reason}\nPage: {page.path}", soft_wrap=True)
    if not report.passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _create_suite(
    settings: "PipelineSettings", name: str, query: str | None, file: Path | None
) -> "Suite":
    """Return the suite of a query or a file; if both are None, the suite of the hard rows."""
    from sluice.config.resolved import resolve
    from sluice.evaluation.suites.hard_rows import hard_suite
    from sluice.evaluation.suites.user_suites import file_suite, query_suite
    from sluice.evaluation.suites.version_scoring import SourceRows, score_registered

    workload = resolve(settings).workload
    rows = SourceRows.load(workload)
    if query is not None:
        return query_suite(name, query, rows.frame)
    if file is not None:
        return file_suite(name, file, rows.frame.index)
    with _open_ledger() as ledger:
        version = ledger.production(settings.name) or newest_trained_here(ledger, settings.name)
    store = ArtifactStore(_home().artifacts)
    return hard_suite(
        name,
        score_registered(version, workload, rows, store, code=settings.production_code).losses,
        rows.frame,
        workload.feature_columns,
        share=settings.suites.hard_share,
    )


def _run_suites(settings: "PipelineSettings", number: int | None) -> "tuple[SuiteReport, int]":
    from sluice.config.resolved import resolve
    from sluice.evaluation.suites.run import run_suites
    from sluice.evaluation.suites.version_scoring import SourceRows, score_arms

    suites = _suite_library(settings.name).newest()
    if not suites:
        raise SettingsError(
            f"{settings.name} has no suite.", fix="To add one: sluice suites add --help"
        )
    workload = resolve(settings).workload
    with _open_ledger() as ledger:
        model = settings.name
        version = ledger.version(model, number) if number else newest_trained_here(ledger, model)
        rows = SourceRows.load(workload)
        store = ArtifactStore(_home().artifacts)
        code = settings.production_code
        arms = score_arms(
            version, ledger, workload, rows, store, code=code, baseline_settings=settings.baseline
        )
    report = run_suites(
        suites, arms, workload, rows.frame, version.lineage.members, settings.suites
    )
    return report, version.number


def _print_report(report: "SuiteReport") -> None:
    from sluice.evaluation.suites.result import CHANGES

    table = Table(box=None, pad_edge=False)
    for column in ("suite", "rows scored", *CHANGES, "reference", "candidate", "gain"):
        table.add_column(column, justify="left" if column == "suite" else "right")
    for result in report.results:
        table.add_row(
            f"{result.name} v{result.version}",
            f"{len(result.rows)}/{result.num_rows}",
            *(str(result.count(change)) for change in CHANGES),
            f"{result.reference_loss:.4g}",
            f"{result.candidate_loss:.4g}",
            f"{result.gain.gain:.3g} {result.gain.outcome}",
        )
    results_console(markup=False).print(table)


def _pipeline_settings(pipeline: str) -> "PipelineSettings":
    from sluice.config.pipeline import defs_folder, find_pipeline

    return find_pipeline(pipeline, defs_folder())


def _open_ledger() -> "Ledger":
    from sluice.registry.ledger import Ledger

    return Ledger.open(_home().registry_url, clock=lambda: datetime.now(UTC), create=False)


def _suite_library(pipeline: str) -> "SuiteLibrary":
    from sluice.evaluation.suites.library import SuiteLibrary

    home = _home()
    return SuiteLibrary(home.suites / pipeline, ArtifactStore(home.artifacts))


def _home() -> Home:
    return Home.from_environment(os.environ, cwd=Path.cwd())
