"""``sluice bench gate``: error rates of the promotion gate, and the speed of its resampling."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from sluice.base.cpu_count import count_cores
from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.bench.benchmark_table import Speed, speed_table
from sluice.cli.output import results_console

if TYPE_CHECKING:
    from sluice.bench.gate.error_rates import RetrainingRates, ScenarioRates

_SEED = 20260101
_NUM_ATTEMPTS = 30
"""Number of attempts on one evaluation window, in the simulations of retraining."""

_NUM_QUICK_SIMULATIONS, _NUM_SIMULATIONS = 100, 1000


def register(group: typer.Typer) -> None:
    """Add ``gate`` to ``sluice bench``."""

    @group.command("gate", epilog="Example: sluice bench gate --quick")
    def gate(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help=f"Use few scenarios with {_NUM_QUICK_SIMULATIONS} simulations each, for a "
                "quick check. Do not report these results.",
            ),
        ] = False,
        simulations: Annotated[
            int | None,
            typer.Option(
                min=20,
                help=f"Number of simulations per scenario. Default: {_NUM_SIMULATIONS}.",
                show_default=False,
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure false promotions and power of the promotion gate; compare with naive tests.

        The rates are measured in simulations. The exit code is 1 if a rate is significantly worse
        than its target. Speeds do not affect the exit code, because they depend on the machine.
        """
        _run_benchmark(
            quick=quick,
            num_simulations=simulations or (_NUM_QUICK_SIMULATIONS if quick else _NUM_SIMULATIONS),
            as_json=as_json,
        )


def _run_benchmark(*, quick: bool, num_simulations: int, as_json: bool) -> None:
    from sluice.bench.gate.report import (
        reaches_targets,
        retraining_reaches_target,
        retraining_table,
        scenario_table,
    )

    stderr = Console(stderr=True)
    with stderr.status("measuring the speed of resampling"):
        speeds = measure_resampling_speeds(num_resamples=200 if quick else 2000)
    scenario_rates, retraining_rates = _simulate(
        stderr, quick=quick, num_simulations=num_simulations
    )
    passed = all(map(reaches_targets, scenario_rates)) and all(
        map(retraining_reaches_target, retraining_rates)
    )
    if as_json:
        content = {
            "scenarios": [
                rates.model_dump(mode="json") | {"reaches_targets": reaches_targets(rates)}
                for rates in scenario_rates
            ],
            "retraining": [
                rates.model_dump(mode="json") | {"reaches_target": retraining_reaches_target(rates)}
                for rates in retraining_rates
            ],
            "speeds": [speed.to_json() for speed in speeds],
        }
        print(json.dumps(content, indent=1))
    else:
        results_console().print(
            scenario_table(scenario_rates), retraining_table(retraining_rates), speed_table(speeds)
        )
    if not passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _simulate(
    stderr: Console, *, quick: bool, num_simulations: int
) -> tuple[list["ScenarioRates"], list["RetrainingRates"]]:
    from sluice.bench.gate.error_rates import measure_retraining, measure_scenarios
    from sluice.bench.gate.grid import full_grid, quick_grid
    from sluice.bench.gate.report import scenario_name
    from sluice.bench.gate.scenarios import GateScenario
    from sluice.evaluation.settings import GateSettings

    scenarios = quick_grid() if quick else full_grid()
    settings, processes = GateSettings(), count_cores()
    scenario_rates, retraining_rates = [], []
    with Progress(console=stderr, transient=True) as progress:
        bar = progress.add_task("scenarios", total=len(scenarios))
        for rates in measure_scenarios(
            scenarios,
            settings,
            num_simulations=num_simulations,
            seed=_SEED,
            num_processes=processes,
        ):
            scenario_rates.append(rates)
            progress.console.print(
                f"  {scenario_name(rates.scenario)}: false promotions {rates.false_promotions}, "
                f"power {rates.power}",
                highlight=False,
                soft_wrap=True,
            )
            progress.advance(bar)
        bar = progress.add_task("retraining on one window", total=2)
        for is_same_recipe in (True, False):
            retraining_rates.append(
                measure_retraining(
                    GateScenario(rho=0.5),
                    settings,
                    num_attempts=_NUM_ATTEMPTS,
                    is_same_recipe=is_same_recipe,
                    num_simulations=max(20, num_simulations // 10) if quick else num_simulations,
                    seed=_SEED,
                    num_processes=processes,
                )
            )
            progress.advance(bar)
    return scenario_rates, retraining_rates


def measure_resampling_speeds(*, num_resamples: int) -> list[Speed]:
    """Return the run time of the two-way bootstrap, and its speedup over the package ``arch``."""
    from sluice.bench.gate.resampling_speed import measure_resampling

    measurement = measure_resampling(
        num_seeds=8, num_rows=100_000, num_resamples=num_resamples, seed=_SEED
    )
    name = f"{num_resamples:,} two-way bootstrap resamples, 8 seeds x 100,000 rows"
    return [
        Speed(name=name, value=measurement.own_seconds, unit="s", target=1.0),
        Speed(
            name="ratio of run times of this bootstrap: package arch to Sluice",
            value=measurement.speedup,
            unit="x",
            target=5.0,
            higher_is_better=True,
        ),
    ]
