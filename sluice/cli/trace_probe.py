"""``sluice trace probe``: tests a workload for faults that a recorded run cannot show."""

from typing import TYPE_CHECKING, Annotated

import typer

from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.output import print_json, results_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from sluice.probes.result import ProbeResult
    from sluice.probes.subject import Subject

_COLOURS = {"pass": "green", "fail": "red", "insufficient": "yellow", "skipped": "dim"}


def add_probe(group: typer.Typer) -> None:
    """Add ``sluice trace probe``."""

    @group.command("probe", epilog="Example: sluice trace probe my_file:MyWorkload --only modes")
    def probe(
        target: Annotated[
            str,
            typer.Argument(help="'module:Workload', or a pipeline's name or YAML file."),
        ],
        only: Annotated[
            str,
            typer.Option(
                help="Comma-separated names of the probes to run, such as 'causality,padding'. "
                "Default: all.",
                show_default=False,
            ),
        ] = "",
        seed: Annotated[int, typer.Option(help="Seed of weights and perturbations.", min=0)] = 0,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Test a workload for faults that a recorded run cannot show.

        The probes test causality and padding (with perturbed inputs), tokenizers, gradients (in
        double precision), the schedule (in a dry run), evaluation mode, seeds, and the rows of
        several ranks. Exit code 1 when a probe fails. With ``--only``, the exit code is also 1 when
        a named probe does not apply to the workload or has no clear result.
        """
        from sluice.probes.library import run_probes

        names = [name.strip() for name in only.split(",") if name.strip()]
        probe_results = list(run_probes(_subject(target, seed), names))
        if as_json:
            print_json([result.model_dump() for result in probe_results])
        else:
            results_console().print(_table(probe_results))
        failed_outcomes = ("fail", "insufficient", "skipped") if names else ("fail",)
        if any(result.outcome in failed_outcomes for result in probe_results):
            raise typer.Exit(EXIT_GATE_BLOCKED)


def _subject(target: str, seed: int) -> "Subject":
    from pathlib import Path

    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.config.resolved import resolve
    from sluice.models.settings import ModelSettings
    from sluice.probes.subject import Subject
    from sluice.training.settings import TrainSettings
    from sluice.workloads.load import load_workload

    if ":" in target and not Path(target).exists():
        return Subject(
            workload=load_workload(target, {}, where=target),
            model_settings=ModelSettings(),
            train_settings=TrainSettings(),
            seed=seed,
        )
    pipeline = find_pipeline(target, defs_folder())
    return Subject(
        workload=resolve(pipeline).workload,
        model_settings=pipeline.model,
        train_settings=pipeline.training,
        seed=seed,
    )


def _table(probe_results: "Sequence[ProbeResult]") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table("probe", "outcome", "result", box=None, pad_edge=False)
    for result in probe_results:
        lines = [result.seen]
        lines += [f"why: {result.why}"] if result.why else []
        lines += [f"do:  {result.fix}"] if result.fix else []
        colour = _COLOURS[result.outcome]
        table.add_row(
            result.name,
            f"[{colour}]{result.outcome}[/{colour}]",
            escape("\n".join(lines)),
        )
    return table
