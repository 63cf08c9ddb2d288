"""Table of delays and false rollbacks: a line per scenario, red where a target is missed."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.bench.rollout.simulation import RolloutMeasurement


def rollout_table(measured: Sequence[RolloutMeasurement]) -> Table:
    """Return the measurements beside their targets."""
    table = Table(box=box.SIMPLE_HEAD, title="Rollouts, assessed every 2 s", title_justify="left")
    for name in ("", "median [s]", "p90 [s]", "rolled back [%]", "z-test, false [%]"):
        table.add_column(escape(name), justify="right" if name else "left", no_wrap=not name)
    for one in measured:
        bad = "" if one.holds else "bold red"
        table.add_row(
            one.name,
            Text(_seconds(one.median_s, one.max_median_s), bad),
            Text(_seconds(one.p90_s, one.max_p90_s), bad),
            Text(_share(one), bad),
            f"{100 * one.naive / one.rollouts:.1f}",
        )
    return table


def _seconds(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if limit is None else f"{value:.0f} (at most {limit:.0f})"


def _share(one: RolloutMeasurement) -> str:
    share = f"{100 * one.back / one.rollouts:.1f}"
    if one.max_rollback_rate is None:
        return share + (f", {one.early} early" if one.early else "")
    return f"{share} (at most {100 * one.max_rollback_rate:g})"
