"""The table of the drift benchmark, with its targets."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.drift.error_rates import SHIFT, DriftRates
from sluice.bench.planted.rate import Rate

MAX_FALSE_ALARM_RATE, MIN_POWER = 0.05, 0.95

_MIN_ORACLE_SHARE = 0.9
"""Minimum power as a share of the power of an oracle test, if the latter is below ``MIN_POWER``."""


def reaches_targets(cell: DriftRates) -> bool:
    """Return whether no rate is significantly worse than its target (by its Wilson interval).

    Where even an oracle test misses ``MIN_POWER``, nine tenths of its power are required.
    """
    return cell.false_alarms.interval[0] <= MAX_FALSE_ALARM_RATE and cell.power.interval[
        1
    ] >= _min_power(cell)


def _min_power(cell: DriftRates) -> float:
    oracle = cell.oracle_power
    return MIN_POWER if oracle >= MIN_POWER else _MIN_ORACLE_SHARE * oracle


def cell_table(cells: Sequence[DriftRates]) -> Table:
    """Return the rates of all scenarios [%], with Wilson intervals; missed targets in red."""
    table = Table(
        box=box.SIMPLE_HEAD, title="Windows reported as DRIFT [%] (AR(1))", title_justify="left"
    )
    for name in (
        "rho",
        "columns",
        "rows",
        "false",
        f"{SHIFT:g} sigma detected",
        "oracle power",
        "undecided",
        "false, KS + BH",
        "false, PSI > 0.25",
    ):
        table.add_column(name, justify="right")
    for cell in cells:
        world = cell.world
        table.add_row(
            f"{world.rho:g}",
            str(world.num_columns),
            str(world.window_rows),
            _rate_text(cell.false_alarms, is_missed=cell.false_alarms.rate > MAX_FALSE_ALARM_RATE),
            _rate_text(cell.power, is_missed=cell.power.rate < _min_power(cell)),
            f"{100 * cell.oracle_power:.1f}",
            f"{100 * cell.inconclusive.rate:.1f}",
            f"{100 * cell.naive_ks.rate:.1f}",
            f"{100 * cell.naive_psi.rate:.1f}",
        )
    return table


def _rate_text(rate: Rate, *, is_missed: bool) -> Text:
    low, high = rate.interval
    text = f"{100 * rate.rate:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return Text(text, "bold red" if is_missed else "")
