"""``sluice bench drift``: false alarms, power and speed of drift detection, in simulations."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sluice.base.cpu_count import count_cores
from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.bench.benchmark_table import Speed, speed_table
from sluice.cli.output import results_console

if TYPE_CHECKING:
    from sluice.bench.drift.error_rates import DriftRates

_SEED = 20260101
_RHOS = (0.0, 0.5, 0.8)
_COLUMNS, _QUICK_COLUMNS = 20, 5
_REFERENCES, _QUICK_REFERENCES = 100, 8
_ROWS, _QUICK_ROWS = 1_000_000, 20_000
_SPEED_COLUMNS = 50


def register(group: typer.Typer) -> None:
    """Add ``drift`` to ``sluice bench``."""

    @group.command("drift", epilog="Example: sluice bench drift --quick")
    def drift(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Use few references and rows, for a quick check. Do not report these results.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Simulate dependent rows with and without a shift, and compare with textbook tests.

        Exit code 1 when a rate is significantly worse than its target; speeds depend on the
        machine.
        """
        _drift(quick=quick, as_json=as_json)


def _drift(*, quick: bool, as_json: bool) -> None:
    from sluice.bench.drift.table import cell_table, reaches_targets

    stderr = Console(stderr=True)
    with stderr.status("measuring the speed"):
        speeds = measure_drift_speeds(num_rows=_QUICK_ROWS if quick else _ROWS)
    cells = _simulate(stderr, quick=quick)
    if as_json:
        printed = {
            "cells": [
                cell.model_dump(mode="json") | {"holds": reaches_targets(cell)} for cell in cells
            ],
            "speeds": [speed.model_dump() | {"reached": speed.reached} for speed in speeds],
        }
        print(json.dumps(printed, indent=1))
    else:
        results_console().print(cell_table(cells), speed_table(speeds))
    if not all(map(reaches_targets, cells)):
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _simulate(stderr: Console, *, quick: bool) -> list["DriftRates"]:
    from sluice.bench.drift.error_rates import DriftScenario, measure_drift

    columns = _QUICK_COLUMNS if quick else _COLUMNS
    scenarios = [
        DriftScenario(rho=rho, num_columns=count) for count in (1, columns) for rho in _RHOS
    ]
    cells = []
    with stderr.status("simulating windows"):
        for cell in measure_drift(
            scenarios,
            references=_QUICK_REFERENCES if quick else _REFERENCES,
            seed=_SEED,
            processes=count_cores(),
        ):
            cells.append(cell)
            stderr.print(
                f"  rho {cell.world.rho:g}, {cell.world.num_columns} columns: "
                f"false {cell.false_alarms}, power {cell.power}",
                highlight=False,
                soft_wrap=True,
            )
    return cells


def measure_drift_speeds(*, num_rows: int) -> list[Speed]:
    """Return the times to build a reference, and to test a window of 50 columns against it."""
    from sluice.bench.drift.error_rates import measure_speed

    build_s, test_s = measure_speed(
        num_rows=num_rows,
        num_columns=_SPEED_COLUMNS,
        reference_rows=20_000,
        seed=_SEED,
        threads=count_cores(),
    )
    return [
        Speed(
            name=f"drift, {num_rows:,} rows x {_SPEED_COLUMNS} columns",
            value=test_s,
            unit="s",
            target=5.0,
        ),
        Speed(
            name="building the drift reference, 20,000 rows", value=build_s, unit="s", target=30.0
        ),
    ]
