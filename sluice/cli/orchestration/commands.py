"""The commands that need Dagster: run, tune, dev and doctor expectations."""

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from sluice.base.command_lines import program_name
from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError, StorageError
from sluice.base.files import make_folder, storage_error
from sluice.base.garbage_collection import collection_paused
from sluice.base.home import Home
from sluice.cli.doctor import get_doctor_group
from sluice.cli.output import results_console
from sluice.observability import spans

if TYPE_CHECKING:
    from sluice.cluster.settings import ComputeSettings
    from sluice.config.resolved import ResolvedPipeline

DEFAULT_PIPELINE = "sp500_volatility"
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="KEY=VALUE that overrides a setting of the file, such as training.learning_rate=0.01; "
        "may be repeated.",
        show_default=False,
    ),
]
IGNORED_WARNINGS = (
    "ignore:Parameter `execution_type` of function `AssetsDefinition.__init__` is currently",
)
"""Filter in the format of PYTHONWARNINGS. Dagster would print this warning at every start."""


def register(app: typer.Typer) -> None:
    """Add ``sluice run``, ``tune``, ``dev`` and ``doctor expectations``."""

    @app.command()
    def run(
        pipeline: Annotated[
            str, typer.Argument(help="A pipeline's name, or the path of its YAML file.")
        ] = DEFAULT_PIPELINE,
        rehearsal: Annotated[
            bool, typer.Option(help="After a promotion, rehearse a rollout in a sandbox.")
        ] = True,
        overrides: Overrides = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Run a pipeline from raw rows to a verdict, and promote a candidate that is better.

        If the pipeline has a rollout, and a version is in production, a rollout of the candidate
        starts instead of the promotion. If an approval is required, it must be given first.

        Exit code 0 when the verdict is PROMOTE or the candidate is already in production; 1 when a
        gate did not pass or a training failed.

        Example: sluice run sp500_volatility
        """
        start_s = time.perf_counter()
        with collection_paused():
            from sluice.base.artifacts import ArtifactStore
            from sluice.config.pipeline import defs_folder, find_pipeline
            from sluice.config.resolved import resolve
            from sluice.evaluation.suites.library import SuiteLibrary, require_guarded_suites

        resolved = resolve(find_pipeline(pipeline, defs_folder(), overrides or ()))
        _require_available_compute(resolved.settings.compute)
        home = _create_home(Home.from_environment(os.environ, cwd=Path.cwd()))
        settings = resolved.settings
        require_guarded_suites(
            SuiteLibrary(home.suites / settings.name, ArtifactStore(home.artifacts)),
            settings.suites.guarded_suites,
        )
        _run(resolved, home, name=pipeline, rehearsal=rehearsal, as_json=as_json, start_s=start_s)

    @app.command()
    def tune(
        pipeline: Annotated[
            str, typer.Argument(help="A pipeline's name, or the path of its YAML file.")
        ] = DEFAULT_PIPELINE,
        trials: Annotated[
            int | None,
            typer.Option(
                help="Number of trials; with pbt, the population size. Default: as in the file."
            ),
        ] = None,
        scheduler: Annotated[
            str | None,
            typer.Option(
                help="auto, asha, median, pbt, none (no early stopping), or a scheduler of Ray "
                "Tune as module:Class with the arguments in the file. Default: as in the file."
            ),
        ] = None,
        address: Annotated[
            str | None,
            typer.Option(
                help="Address of a Ray cluster, 'host:port' or 'auto'. Default: Ray is started on "
                "this machine."
            ),
        ] = None,
        workers: Annotated[
            int | None, typer.Option(help="Maximum number of parallel trials.")
        ] = None,
        gpus: Annotated[
            float | None, typer.Option(help="GPUs per trial: a fraction up to 1, or an integer.")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Base seed of the search.")] = None,
        overrides: Overrides = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Search for better settings with Ray Tune, on rows outside the test sets.

        The gates before a training must pass first. An interrupted search resumes with the same
        decisions. Exit code 1 when a gate did not pass or the search failed.

        Example: sluice tune sp500_volatility --trials 50 --scheduler asha
        """
        from sluice.cli.orchestration.tune import tune as search
        from sluice.cli.orchestration.tune import with_search
        from sluice.config.pipeline import defs_folder, find_pipeline
        from sluice.config.resolved import resolve

        search_options = {"num_trials": trials, "scheduler": scheduler, "seed": seed}
        compute_options = {"address": address, "workers": workers, "gpus_per_worker": gpus}
        resolved = with_search(
            resolve(find_pipeline(pipeline, defs_folder(), overrides or ())),
            search={name: value for name, value in search_options.items() if value is not None},
            compute={name: value for name, value in compute_options.items() if value is not None},
        )
        _require_available_compute(resolved.settings.compute)
        home = _create_home(Home.from_environment(os.environ, cwd=Path.cwd()))
        search(resolved, home, as_json=as_json)

    @app.command()
    def dev(
        pipeline: Annotated[
            list[str] | None,
            typer.Argument(help="Pipelines to load, by name or file. Default: shipped pipelines."),
        ] = None,
        port: Annotated[
            int, typer.Option(help="Port of the UI on 127.0.0.1.", min=1, max=65535)
        ] = 3000,
        trusted_hosts: Annotated[
            list[str] | None,
            typer.Option(
                "--trusted-host",
                help="Host name, besides localhost, under which your proxy serves the pages; may "
                "be repeated.",
                show_default=False,
            ),
        ] = None,
    ) -> None:
        """Open the Dagster UI with schedules and sensors on http://127.0.0.1:3000.

        Web pages of other sites cannot use the UI. GraphQL is accepted only as JSON by POST, from
        the UI's pages or from programs. The host name must be localhost, 127.0.0.1 or a name of
        --trusted-host.

        Checks link to the pages of SLUICE_HOME/reports. They are served on port 3001 or the next
        free port. If SLUICE_REPORTS_URL names another port of this machine, the search for a free
        port starts there.

        Example: sluice dev my_model.yaml
        """
        from sluice.config.pipeline import defs_folder, locate_pipeline, read_pipeline
        from sluice.pipelines.definitions import PIPELINES_VARIABLE
        from sluice.pipelines.instance import close_killed_runs, open_instance

        _require_free_port(port)
        home = _create_home(Home.from_environment(os.environ, cwd=Path.cwd()))
        named_files = [locate_pipeline(name, defs_folder()).resolve() for name in pipeline or []]
        # Repeated files are removed, because a repeated file would define its assets twice.
        files = list(dict.fromkeys(named_files))
        for file in files:
            read_pipeline(file)
        with open_instance(home) as instance:
            close_killed_runs(instance)
        os.environ |= {
            "SLUICE_HOME": str(home.root),
            "DAGSTER_HOME": str(home.dagster),
            PIPELINES_VARIABLE: os.pathsep.join(str(file) for file in files),
            "PYTHONWARNINGS": ",".join(
                [os.environ.get("PYTHONWARNINGS", ""), *IGNORED_WARNINGS]
            ).strip(","),
        }
        # The path is absolute, because the component resolves relative paths in the project's root.
        if home.registry_key is not None:
            os.environ["SLUICE_REGISTRY_KEY"] = str(home.registry_key)
        host_names = trusted_hosts or []
        reports_address = _serve_reports(home, port=port, trusted_hosts=host_names)
        print(
            f"Sluice starts on http://127.0.0.1:{port}, reports on {reports_address} "
            "(Ctrl-C stops both)",
            file=sys.stderr,
            flush=True,
        )
        # Restore the default action of SIGINT. Shell scripts start background processes with SIGINT
        # ignored, and Dagster's child processes would inherit this setting and never stop.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        service_arguments = ["-P", "-m", "sluice.pipelines.dev_services", str(port), *host_names]
        os.execv(sys.executable, [sys.executable, *service_arguments])

    @get_doctor_group(app).command()
    def expectations(
        pipeline: Annotated[
            str, typer.Argument(help="A pipeline's name, or the path of its YAML file.")
        ] = DEFAULT_PIPELINE,
        window_rows: Annotated[int, typer.Option(help="Window length [rows].", min=10)] = 250,
        step_rows: Annotated[
            int,
            typer.Option(help="Distance between the starts of consecutive windows [rows].", min=1),
        ] = 50,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure the false and missed alarms of each expectation.

        False alarms are counted on rolling windows of the pipeline's rows, missed alarms on the
        same windows with planted corruptions. The result is also saved as a page in
        SLUICE_HOME/reports. The exit code is 0 for any result.

        Example: sluice doctor expectations sp500_volatility --window-rows 500
        """
        from sluice.cli.orchestration.expectation_doctor import examine_expectations

        home = _create_home(Home.from_environment(os.environ, cwd=Path.cwd()))
        examine_expectations(
            pipeline, home, window_rows=window_rows, step_rows=step_rows, as_json=as_json
        )


def _require_free_port(port: int) -> None:
    """Raise before Dagster starts if the UI cannot listen on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SettingsError(
                f"The UI cannot listen on port {port} of 127.0.0.1: {error.strerror}.",
                cause="Another process uses the port, or the system reserves it.",
                fix="Stop the other process, or choose another --port.",
            ) from None


def _serve_reports(home: Home, *, port: int, trusted_hosts: Sequence[str]) -> str:
    """Start the report server and return its address.

    The address is also stored in ``SLUICE_REPORTS_URL``, for the runs that the UI starts.
    """
    from sluice.pipelines.report_server import LOOPBACK, start_server
    from sluice.reports.folder import DEFAULT_PORT, URL_VARIABLE

    configured_url = urlsplit(os.environ.get(URL_VARIABLE, ""))
    is_local = configured_url.hostname in (LOOPBACK, "localhost")
    try:
        first_port = configured_url.port if is_local and configured_url.port else DEFAULT_PORT
    except ValueError as error:
        raise SettingsError(
            f"{URL_VARIABLE} must be an address like http://127.0.0.1:3001, got "
            f"'{configured_url.geturl()}': {error}.",
            fix="Correct the variable or unset it.",
        ) from None
    address = start_server(
        home.reports, first_port=first_port, reserved_port=port, trusted_hosts=trusted_hosts
    )
    # If the variable names another host, this host is a proxy in front of the server. The variable
    # stays unchanged, because links to the pages must use the address of the proxy.
    if is_local or not configured_url.hostname:
        os.environ[URL_VARIABLE] = address
    return address


def _create_home(home: Home) -> Home:
    """Create the home folder if it is missing, and return ``home`` if the folder is writable."""
    try:
        make_folder(home.root)
    except OSError as error:
        raise storage_error(home.root, error) from None
    if not os.access(home.root, os.W_OK):
        raise StorageError(
            f"Cannot write {home.root} (Permission denied).",
            fix="Make the folder writable, or set SLUICE_HOME to a writable folder.",
        )
    return home


def _require_available_compute(compute: "ComputeSettings") -> None:
    """Raise before Dagster starts if a run would reject the Ray cluster or the GPUs."""
    from sluice.base.cpu_count import count_cores
    from sluice.cluster.ray_address import require_cluster
    from sluice.cluster.slots import count_slots

    require_cluster(compute.address)
    if compute.address is None and compute.gpus_per_worker > 0:
        import torch

        count_slots([{"CPU": count_cores(), "GPU": torch.cuda.device_count()}], compute)


def _run(
    pipeline: "ResolvedPipeline",
    home: Home,
    *,
    name: str,
    rehearsal: bool,
    as_json: bool,
    start_s: float,
) -> None:
    with collection_paused():
        from sluice.pipelines.console import RunConsole
        from sluice.pipelines.rehearsal import with_rehearsal
        from sluice.pipelines.run import run_pipeline
        from sluice.pipelines.summary import print_summary

    stderr = Console(stderr=True)
    with spans.span("sluice run", pipeline=pipeline.settings.name), RunConsole(stderr) as console:
        report = run_pipeline(pipeline, home, console, start_s=start_s)
    if rehearsal:
        report = with_rehearsal(report, pipeline, home, stderr)
    if as_json:
        print(report.model_dump_json(indent=1))
    else:
        program = program_name(sys.argv[0], cwd=Path.cwd(), path=os.environ.get("PATH"))
        print_summary(report, home, results_console(), pipeline=name, program=program)
    if not report.gate_passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)
