"""``sluice poc``: runs only the POC gate, without Dagster, or validates an event log."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError
from sluice.base.home import Home
from sluice.cli.output import results_console


def register(app: typer.Typer) -> None:
    """Add ``sluice poc``."""

    @app.command()
    def poc(
        target: Annotated[
            str | None,
            typer.Argument(
                help="A pipeline's name or YAML file, or 'module:Workload'.", show_default=False
            ),
        ] = None,
        minimum: Annotated[
            bool,
            typer.Option(
                "--minimum",
                help="Run only the checks of data, network, gradients and a short training; leaks, "
                "labels and checkpoints are not checked.",
            ),
        ] = False,
        log: Annotated[
            Path | None,
            typer.Option(
                "--log",
                help="Validate this event log instead of running the POC gate. A log whose last "
                "line is torn, or whose run did not end, may be valid, but is incomplete.",
                show_default=False,
            ),
        ] = None,
        schema: Annotated[
            bool,
            typer.Option("--schema", help="Print only the JSON schema of the output of --json."),
        ] = False,
        seed: Annotated[
            int, typer.Option(help="Seed of the weights and of the order of rows.", min=0)
        ] = 0,
        overrides: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                help="KEY=VALUE that overrides a setting of the pipeline's file, such as "
                "model.hidden=64; may be repeated.",
                show_default=False,
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Run the POC gate: checks of a few seconds on real data, before hours of training.

        Exit code 1 when the gate does not pass, or when the log of --log is invalid or incomplete.
        The only file that the command leaves is the event log of the gate.

        Example: sluice poc sp500_volatility --minimum
        """
        if overrides and (schema or log is not None):
            raise SettingsError(
                "--set applies only when the gate runs, not to --log or --schema.",
                fix="Leave --set out.",
            )
        if schema:
            _print_schema()
        elif log is not None:
            _validate_log(log, target, as_json=as_json)
        elif target is not None:
            _run_gate(target, overrides or (), minimum=minimum, seed=seed, as_json=as_json)
        else:
            raise SettingsError(
                "sluice poc requires a pipeline, a workload or a log.",
                fix="Give one, as in 'sluice poc sp500_volatility' or 'sluice poc "
                "my_file:MyClass'.",
            )


def _run_gate(
    target: str, overrides: Sequence[str], *, minimum: bool, seed: int, as_json: bool
) -> None:
    from sluice.failfast.gate.display import LiveLines, report_page, stderr_console
    from sluice.failfast.gate.request import GateRequest, NamedTarget
    from sluice.failfast.gate.supervisor import supervise

    request = GateRequest(
        target=NamedTarget(name=target, overrides=tuple(overrides)),
        level="minimum" if minimum else "full",
        seed=seed,
    )
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    stderr = stderr_console()
    with LiveLines(stderr, report_follows=not as_json) as live_lines:
        gate_run = supervise(request, folder=home.gates, on_event=live_lines)
    if gate_run.log is not None:
        stderr.print(
            f"log: {gate_run.log}", markup=False, highlight=False, soft_wrap=True, style="dim"
        )
    if as_json:
        from sluice.failfast.gate.report_schema import report_json

        print(report_json(gate_run.report))
    else:
        results_console().print(report_page(gate_run.report))
    if not gate_run.report.passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _validate_log(log: Path, target: str | None, *, as_json: bool) -> None:
    from sluice.cli.poc_log import validate_file

    if not validate_file(log, target, as_json=as_json):
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _print_schema() -> None:
    import json

    from sluice.failfast.gate.report_schema import poc_report_schema

    print(json.dumps(poc_report_schema(), indent=2))
