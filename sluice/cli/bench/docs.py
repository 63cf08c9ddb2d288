"""``sluice bench docs``: writes the reference pages of the documentation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.base.errors import ContractError
from sluice.cli.output import results_console


def register(group: typer.Typer) -> None:
    """Add ``docs`` to ``sluice bench``."""

    @group.command("docs", epilog="Example: sluice bench docs docs")
    def docs(
        folder: Annotated[Path, typer.Argument(help="Folder of the documentation.")],
        results_path: Annotated[
            Path | None,
            typer.Option(
                "--results",
                help="File with the output of 'sluice bench faults --json'. The error rates are "
                "stored in FOLDER. Default: keep the stored rates.",
            ),
        ] = None,
        commit: Annotated[
            str,
            typer.Option(
                "--commit",
                help="Commit at which the results were measured. Required with --results.",
            ),
        ] = "",
    ) -> None:
        """Write the reference pages from the code; print the changed and the removed pages.

        The pages describe faults, rules, checks, settings, commands, metrics and events.
        """
        from sluice.bench.documentation.error_rates import ERROR_RATES_FILE, ErrorRates
        from sluice.bench.documentation.writer import write_pages
        from sluice.bench.tracer.result import RunResult
        from sluice.cli.app import build_app

        if (results_path is None) != (not commit):
            raise ContractError(
                "--results and --commit must be given together.",
                fix="Give the file of results, and the commit at which the results were measured.",
            )
        if results_path is not None:
            runs = json.loads(results_path.read_bytes())["runs"]
            rates = ErrorRates.of(
                [RunResult.model_validate_json(json.dumps(run)) for run in runs], commit=commit
            )
            (folder / ERROR_RATES_FILE).write_text(rates.model_dump_json(indent=1) + "\n")
        for path in write_pages(folder, build_app()):
            results_console().print(path)
