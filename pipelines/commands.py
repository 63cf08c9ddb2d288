"""The commands that need the orchestrator: ``sluice run`` and ``sluice dev``."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sluice.commands.output import results
from sluice.errors import GATE_SAID_NO, StorageError
from sluice.files import storage_error
from sluice.home import Home

if TYPE_CHECKING:
    from sluice.pipeline import PipelineSettings

DEFAULT_PIPELINE = "sp500_volatility"


def register(app: typer.Typer) -> None:
    """Add ``sluice run`` and ``sluice dev``."""

    @app.command()
    def run(
        pipeline: Annotated[
            str, typer.Argument(help="A pipeline's name, or the path of its defs.yaml.")
        ] = DEFAULT_PIPELINE,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Take a pipeline from raw rows to a verdict; promote when the verdict says so.

        Exit code 0 when the candidate is in production, 1 when a gate said no.

        Example: sluice run sp500_volatility
        """
        started = time.perf_counter()
        from sluice.pipeline import defs_folder, find_pipeline

        settings = find_pipeline(pipeline, defs_folder())
        _ = settings.loaded_workload  # a mistake here costs no start of the orchestrator
        home = _prepared(Home.from_environment(os.environ, cwd=Path.cwd()))
        _run(settings, home, as_json=as_json, started=started)

    @app.command()
    def dev(
        pipeline: Annotated[
            list[str] | None, typer.Argument(help="Pipeline files to add to the shipped ones.")
        ] = None,
        port: Annotated[int, typer.Option(help="Port on loopback.", min=1, max=65535)] = 3000,
    ) -> None:
        """Open the Dagster UI with schedules and sensors on http://127.0.0.1:3000.

        Example: sluice dev --port 3001
        """
        from pipelines.definitions import EXTRA
        from pipelines.instance import close_ghost_runs, open_instance
        from sluice.pipeline import defs_folder, locate_pipeline, read_pipeline

        home = _prepared(Home.from_environment(os.environ, cwd=Path.cwd()))
        files = [locate_pipeline(name, defs_folder()).resolve() for name in pipeline or []]
        for file in files:
            read_pipeline(file)
        shipped = defs_folder().resolve()
        extra = [str(file) for file in files if not file.is_relative_to(shipped)]
        with open_instance(home) as instance:
            close_ghost_runs(instance)
        os.environ |= {
            "SLUICE_HOME": str(home.root),
            "DAGSTER_HOME": str(home.dagster),
            EXTRA: os.pathsep.join(extra),
        }
        print(f"Sluice on http://127.0.0.1:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        command = ["-m", "dagster", "dev", "-m", "pipelines.definitions"]
        os.execv(sys.executable, [sys.executable, *command, "-h", "127.0.0.1", "-p", str(port)])


def _prepared(home: Home) -> Home:
    try:
        home.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(home.root, error) from None
    if not os.access(home.root, os.W_OK):
        raise StorageError(
            f"Cannot write {home.root} (Permission denied).",
            fix="Make the folder writable, or point SLUICE_HOME at one that is.",
        )
    return home


def _run(settings: "PipelineSettings", home: Home, *, as_json: bool, started: float) -> None:
    from pipelines.console import RunConsole
    from pipelines.run import run_pipeline
    from pipelines.summary import summary

    with RunConsole(Console(stderr=True)) as console:
        report = run_pipeline(settings, home, console, started=started)
    if as_json:
        print(report.model_dump_json(indent=1))
    else:
        summary(report, home, results())
    if not report.in_production:
        raise typer.Exit(GATE_SAID_NO)
