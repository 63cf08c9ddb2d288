"""What the drift benchmark found, beside what is promised."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.drift.error_rates import SHIFT, DriftCell
from sluice.bench.gate.error_rates import Rate

MOST_FALSE, LEAST_POWER, _OF_ORACLE = 0.05, 0.95, 0.9


def holds(cell: DriftCell) -> bool:
    """Return whether neither rate is proven beyond its figure: its Wilson interval reaches it.

    Where not even a test that knows the true distribution reaches the power wanted, nine tenths of
    what that one finds are.
    """
    oracle = cell.oracle_power
    least = LEAST_POWER if oracle >= LEAST_POWER else _OF_ORACLE * oracle
    return cell.false_alarms.interval[0] <= MOST_FALSE and cell.power.interval[1] >= least


def cell_table(cells: Sequence[DriftCell]) -> Table:
    """Return the rates of every world, per cent with Wilson intervals."""
    table = Table(
        box=box.SIMPLE_HEAD, title="Windows called DRIFT, of 100 (AR(1))", title_justify="left"
    )
    for name in (
        "rho",
        "columns",
        "rows",
        "false",
        f"{SHIFT:g} sigma found",
        "an oracle finds",
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
            _shown(cell.false_alarms, bad=cell.false_alarms.rate > MOST_FALSE),
            _shown(cell.power, bad=cell.power.rate < LEAST_POWER),
            f"{100 * cell.oracle_power:.1f}",
            f"{100 * cell.inconclusive.rate:.1f}",
            f"{100 * cell.naive_ks.rate:.1f}",
            f"{100 * cell.naive_psi.rate:.1f}",
        )
    return table


def _shown(rate: Rate, *, bad: bool) -> Text:
    low, high = rate.interval
    text = f"{100 * rate.rate:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return Text(text, "bold red" if bad else "")
