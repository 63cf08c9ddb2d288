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
"""Autocorrelations of the simulated columns between consecutive rows."""

_NUM_COLUMNS, _NUM_QUICK_COLUMNS = 20, 5
_NUM_REFERENCES, _NUM_QUICK_REFERENCES = 100, 8
_NUM_SPEED_ROWS, _NUM_QUICK_SPEED_ROWS = 1_000_000, 20_000
_NUM_SPEED_COLUMNS = 50


def register(group: typer.Typer) -> None:
    """Add ``drift`` to ``sluice bench``."""

    @group.command("drift", epilog="Example: sluice bench drift --quick")
    def drift(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Simulate fewer drift references, columns and rows, for a quick check. Do not "
                "report these results.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure false alarms and power on simulated dependent rows; compare with textbook tests.

        The exit code is 1 if a rate is significantly worse than its target. Speeds do not affect
        the exit code, because they depend on the machine.
        """
        _run_benchmark(quick=quick, as_json=as_json)


def _run_benchmark(*, quick: bool, as_json: bool) -> None:
    from sluice.bench.drift.table import rate_table, reaches_targets

    stderr = Console(stderr=True)
    with stderr.status("measuring the speed"):
        speeds = measure_drift_speeds(num_rows=_NUM_QUICK_SPEED_ROWS if quick else _NUM_SPEED_ROWS)
    all_rates = _simulate(stderr, quick=quick)
    if as_json:
        content = {
            "scenarios": [
                rates.model_dump(mode="json") | {"reaches_targets": reaches_targets(rates)}
                for rates in all_rates
            ],
            "speeds": [speed.to_json() for speed in speeds],
        }
        print(json.dumps(content, indent=1))
    else:
        results_console().print(rate_table(all_rates), speed_table(speeds))
    if not all(map(reaches_targets, all_rates)):
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _simulate(stderr: Console, *, quick: bool) -> list["DriftRates"]:
    from sluice.bench.drift.error_rates import DriftScenario, measure_drift

    max_columns = _NUM_QUICK_COLUMNS if quick else _NUM_COLUMNS
    scenarios = [
        DriftScenario(rho=rho, num_columns=num_columns)
        for num_columns in (1, max_columns)
        for rho in _RHOS
    ]
    all_rates = []
    with stderr.status("simulating windows"):
        for rates in measure_drift(
            scenarios,
            num_references=_NUM_QUICK_REFERENCES if quick else _NUM_REFERENCES,
            seed=_SEED,
            num_processes=count_cores(),
        ):
            all_rates.append(rates)
            stderr.print(
                f"  rho {rates.scenario.rho:g}, {rates.scenario.num_columns} columns: "
                f"false alarms {rates.false_alarms}, power {rates.power}",
                highlight=False,
                soft_wrap=True,
            )
    return all_rates


def measure_drift_speeds(*, num_rows: int) -> list[Speed]:
    """Return the times to build a reference, and to test a window of 50 columns against it."""
    from sluice.bench.drift.error_rates import measure_speed

    build_s, test_s = measure_speed(
        num_rows=num_rows,
        num_columns=_NUM_SPEED_COLUMNS,
        reference_rows=20_000,
        seed=_SEED,
        threads=count_cores(),
    )
    return [
        Speed(
            name=f"testing a window for drift, {num_rows:,} rows x {_NUM_SPEED_COLUMNS} columns",
            value=test_s,
            unit="s",
            target=5.0,
        ),
        Speed(
            name=f"building the drift reference, 20,000 rows x {_NUM_SPEED_COLUMNS} columns",
            value=build_s,
            unit="s",
            target=30.0,
        ),
    ]
