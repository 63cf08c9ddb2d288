"""Table of delays and false rollbacks: a line per scenario, red where a target is missed."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.bench.rollout.simulation import RolloutMeasurement


def rollout_table(measurements: Sequence[RolloutMeasurement]) -> Table:
    """Return the measurements beside their targets."""
    table = Table(box=box.SIMPLE_HEAD, title="Rollouts, assessed every 2 s", title_justify="left")
    for name in ("", "median [s]", "p90 [s]", "rolled back [%]", "z-test, false [%]"):
        table.add_column(escape(name), justify="right" if name else "left", no_wrap=not name)
    for measurement in measurements:
        style = "" if measurement.reaches_targets else "bold red"
        table.add_row(
            measurement.name,
            Text(_seconds(measurement.median_s, measurement.max_median_s), style),
            Text(_seconds(measurement.p90_s, measurement.max_p90_s), style),
            Text(_share(measurement), style),
            f"{100 * measurement.naive / measurement.rollouts:.1f}",
        )
    return table


def _seconds(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if limit is None else f"{value:.0f} (at most {limit:.0f})"


def _share(measurement: RolloutMeasurement) -> str:
    share = f"{100 * measurement.back / measurement.rollouts:.1f}"
    if measurement.max_rollback_rate is None:
        return share + (f", {measurement.early} early" if measurement.early else "")
    return f"{share} (at most {100 * measurement.max_rollback_rate:g})"
