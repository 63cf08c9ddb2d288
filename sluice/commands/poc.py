"""``sluice poc``: the gate alone, on a pipeline or on anyone's workload, without Dagster."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sluice.commands.output import results
from sluice.errors import GATE_SAID_NO

# torch takes 1.7 s to import, and every command's --help would wait for it.
if TYPE_CHECKING:
    from sluice.failfast.result import CheckResult, GateReport
    from sluice.failfast.settings import PocSettings
    from sluice.models.settings import ModelSettings
    from sluice.training.settings import TrainSettings
    from sluice.workloads.workload import Workload

MARKS = {
    "pass": "[green]ok[/green]  ",
    "warn": "[yellow]warn[/yellow]",
    "fail": "[red]no[/red]  ",
    "insufficient": "[red]?[/red]   ",
    "skipped": "[dim]--[/dim]  ",
}


def register(app: typer.Typer) -> None:
    """Add ``sluice poc``."""

    @app.command()
    def poc(
        target: Annotated[
            str, typer.Argument(help="A pipeline's name or defs.yaml, or 'module:Workload'.")
        ],
        minimum: Annotated[
            bool, typer.Option("--minimum", help="Only POC-1 to POC-5, even if more are known.")
        ] = False,
        seed: Annotated[int, typer.Option(help="Seeds weights and order.", min=0)] = 0,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Run the proof-of-concept gate: what seconds on real data say about hours of training.

        Exit code 1 when the gate fails; nothing is left behind.

        Example: sluice poc sp500_volatility --minimum
        """
        report = _gate(target, seed=seed, show=Console(stderr=True), minimum=minimum)
        if as_json:
            print(report.model_dump_json(indent=1))
        else:
            _print(report, results())
        if not report.passed:
            raise typer.Exit(GATE_SAID_NO)


def _gate(target: str, *, seed: int, show: Console, minimum: bool) -> "GateReport":
    from sluice.data.validation import validate_schema
    from sluice.failfast.gate import deepest_level, run_gate
    from sluice.failfast.user_code import users_code

    workload, model, training, poc = _setup(target)
    with users_code("load_rows"):
        raw = workload.load_rows()
    validate_schema(raw, workload.raw_schema, stage="raw data")
    with users_code("compute_features or plan_folds"):
        frame = workload.compute_features(raw)
        folds = workload.plan_folds(frame)
    validate_schema(frame, workload.feature_schema, stage="features")

    def heard(result: "CheckResult") -> None:
        show.print(
            f"  {MARKS[result.outcome]} {result.requirement:<7} {result.name:<26} "
            f"{result.seconds:5.1f} s  {escape(result.summary)}",
            highlight=False,
            soft_wrap=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        return run_gate(
            workload,
            frame,
            folds,
            model,
            training,
            poc,
            level="minimum" if minimum else deepest_level(),
            seed=seed,
            folder=Path(folder),
            clock=lambda: datetime.now(UTC),
            on_result=heard,
        )


def _setup(
    target: str,
) -> "tuple[Workload, ModelSettings, TrainSettings, PocSettings]":
    """A workload by import path is taken with every setting at its default."""
    from sluice.failfast.settings import PocSettings
    from sluice.models.settings import ModelSettings
    from sluice.pipeline import defs_folder, find_pipeline
    from sluice.training.settings import TrainSettings
    from sluice.workloads.load import load_workload

    module, colon, _ = target.partition(":")
    if colon and not Path(target).exists() and "/" not in module:
        workload = load_workload(target, {}, where=target)
        return workload, ModelSettings(), TrainSettings(), PocSettings()
    pipeline = find_pipeline(target, defs_folder())
    return pipeline.loaded_workload, pipeline.model, pipeline.training, pipeline.poc


def _print(report: "GateReport", console: Console) -> None:
    for result in report.results:
        if result.outcome in ("fail", "insufficient"):
            console.print(
                f"[bold]{result.requirement} {result.name}[/bold]: {escape(result.summary)}"
            )
            console.print(f"why: {result.cause}\ndo:  {result.fix}", highlight=False, markup=False)
    said = "[green]passed[/green]" if report.passed else "[red]failed[/red]"
    passed = sum(r.outcome in ("pass", "warn") for r in report.results)
    console.print(
        f"The {report.level} gate {said}: {passed} of {len(report.results)} checks hold, "
        f"{report.seconds:.1f} s.",
        highlight=False,
    )
