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
"""Numbers of rollouts per scenario."""


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
                help=f"Number of rollouts per scenario. Default: {_NUM_ROLLOUTS}.",
                show_default=False,
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure detection delay and false rollbacks in simulations, compared with a z-test.

        The exit code is 1 if a delay exceeds its target, or if the rate of false rollbacks is
        significantly above its target.
        """
        _run_benchmark(
            rollouts or (_NUM_QUICK_ROLLOUTS if quick else _NUM_ROLLOUTS), as_json=as_json
        )


def _run_benchmark(num_rollouts: int, *, as_json: bool) -> None:
    from sluice.bench.rollout.report import rollout_table
    from sluice.bench.rollout.scenarios import scenarios
    from sluice.bench.rollout.simulation import measure_rollouts

    all_scenarios = scenarios()
    measurements = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("scenarios", total=len(all_scenarios))
        for measurement in measure_rollouts(
            all_scenarios, num_rollouts=num_rollouts, seed=_SEED, num_processes=count_cores()
        ):
            measurements.append(measurement)
            progress.advance(bar)
    if as_json:
        content = [
            measurement.model_dump(mode="json") | {"reaches_targets": measurement.reaches_targets}
            for measurement in measurements
        ]
        print(json.dumps({"scenarios": content}, indent=1))
    else:
        results_console().print(rollout_table(measurements))
    if not all(measurement.reaches_targets for measurement in measurements):
        raise typer.Exit(EXIT_GATE_BLOCKED)
