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
_ATTEMPTS = 30
_QUICK_SIMULATIONS, _SIMULATIONS = 100, 1000


def register(group: typer.Typer) -> None:
    """Add ``gate`` to ``sluice bench``."""

    @group.command("gate", epilog="Example: sluice bench gate --quick")
    def gate(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Use few scenarios with 100 simulations, for a quick check. Do not report "
                "these results.",
            ),
        ] = False,
        simulations: Annotated[
            int | None,
            typer.Option(
                min=20,
                help=f"Simulations per scenario. Default: {_SIMULATIONS}.",
                show_default=False,
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Simulate scenarios with a known truth: false promotions and power, beside naive tests.

        Exit code 1 when a rate is significantly worse than its target; speeds depend on the
        machine.
        """
        _gate(
            quick=quick,
            simulations=simulations or (_QUICK_SIMULATIONS if quick else _SIMULATIONS),
            as_json=as_json,
        )


def _gate(*, quick: bool, simulations: int, as_json: bool) -> None:
    from sluice.bench.gate.report import (
        cell_table,
        family_reaches_target,
        family_table,
        reaches_targets,
    )

    stderr = Console(stderr=True)
    with stderr.status("measuring the speed of resampling"):
        speeds = measure_resampling_speeds(resamples=200 if quick else 2000)
    cells, families = _simulate(stderr, quick=quick, simulations=simulations)
    passed = all(map(reaches_targets, cells)) and all(map(family_reaches_target, families))
    if as_json:
        printed = {
            "cells": [
                cell.model_dump(mode="json") | {"holds": reaches_targets(cell)} for cell in cells
            ],
            "families": [
                family.model_dump(mode="json") | {"holds": family_reaches_target(family)}
                for family in families
            ],
            "speeds": [speed.model_dump() | {"reached": speed.reached} for speed in speeds],
        }
        print(json.dumps(printed, indent=1))
    else:
        results_console().print(cell_table(cells), family_table(families), speed_table(speeds))
    if not passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _simulate(
    stderr: Console, *, quick: bool, simulations: int
) -> tuple[list["ScenarioRates"], list["RetrainingRates"]]:
    from sluice.bench.gate.error_rates import measure_cells, measure_family
    from sluice.bench.gate.grid import full_grid, quick_grid
    from sluice.bench.gate.report import scenario_name
    from sluice.bench.gate.scenarios import GateScenario
    from sluice.evaluation.settings import GateSettings

    scenarios = quick_grid() if quick else full_grid()
    settings, processes = GateSettings(), count_cores()
    cells, families = [], []
    with Progress(console=stderr, transient=True) as progress:
        bar = progress.add_task("scenarios", total=len(scenarios))
        for cell in measure_cells(
            scenarios, settings, simulations=simulations, seed=_SEED, processes=processes
        ):
            cells.append(cell)
            progress.console.print(
                f"  {scenario_name(cell.world)}: false {cell.false_promotions}, power {cell.power}",
                highlight=False,
                soft_wrap=True,
            )
            progress.advance(bar)
        bar = progress.add_task("retraining on one window", total=2)
        for is_same_recipe in (True, False):
            families.append(
                measure_family(
                    GateScenario(rho=0.5),
                    settings,
                    attempts=_ATTEMPTS,
                    is_same_recipe=is_same_recipe,
                    simulations=max(20, simulations // 10) if quick else simulations,
                    seed=_SEED,
                    processes=processes,
                )
            )
            progress.advance(bar)
    return cells, families


def measure_resampling_speeds(*, resamples: int) -> list[Speed]:
    """Return the time of the two-way bootstrap, and its ratio to the loop of ``arch``."""
    from sluice.bench.gate.resampling_speed import measure_resampling

    speeds = measure_resampling(num_seeds=8, num_rows=100_000, resamples=resamples, seed=_SEED)
    work = f"{resamples:,} two-way resamples of 8 x 100,000"
    return [
        Speed(name=work, value=speeds.own_seconds, unit="s", target=1.0),
        Speed(
            name="run time of the loop of arch / of Sluice",
            value=speeds.ratio,
            unit="x",
            target=5.0,
            higher_is_better=True,
        ),
    ]
