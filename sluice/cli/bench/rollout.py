"""``sluice bench rollout``: detection delay and false rollbacks of the rollout guards."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from sluice.base.cpu_count import count_cores
from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.output import results_console

_SEED = 20260101
_NUM_QUICK_ROLLOUTS, _NUM_ROLLOUTS = 40, 1000


def register(group: typer.Typer) -> None:
    """Add ``rollout`` to ``sluice bench``."""

    @group.command("rollout", epilog="Example: sluice bench rollout --quick")
    def rollout(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help=f"Run {_NUM_QUICK_ROLLOUTS} rollouts per scenario, for a quick check.",
            ),
        ] = False,
        rollouts: Annotated[
            int | None,
            typer.Option(
                min=10,
                help=f"Rollouts per scenario. Default: {_NUM_ROLLOUTS}.",
                show_default=False,
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Simulate rollouts: detection delay and false rollbacks, compared with a z-test.

        Exit code 1 when a delay exceeds its target or false rollbacks are significantly too many.
        """
        _rollout(rollouts or (_NUM_QUICK_ROLLOUTS if quick else _NUM_ROLLOUTS), as_json=as_json)


def _rollout(rollouts: int, *, as_json: bool) -> None:
    from sluice.bench.rollout.report import rollout_table
    from sluice.bench.rollout.scenarios import scenarios
    from sluice.bench.rollout.simulation import measure

    all_scenarios = scenarios()
    measurements = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("rollouts", total=len(all_scenarios))
        for measurement in measure(
            all_scenarios, rollouts=rollouts, seed=_SEED, processes=count_cores()
        ):
            measurements.append(measurement)
            progress.advance(bar)
    if as_json:
        printed = [
            measurement.model_dump(mode="json") | {"holds": measurement.reaches_targets}
            for measurement in measurements
        ]
        print(json.dumps({"scenarios": printed}, indent=1))
    else:
        results_console().print(rollout_table(measurements))
    if not all(measurement.reaches_targets for measurement in measurements):
        raise typer.Exit(EXIT_GATE_BLOCKED)
