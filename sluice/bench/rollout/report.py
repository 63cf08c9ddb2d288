"""Table of detection delays and rollbacks; values of a scenario that misses a target are red."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.base.pluralize import pluralize
from sluice.bench.rollout.simulation import RolloutMeasurement


def rollout_table(measurements: Sequence[RolloutMeasurement]) -> Table:
    """Return the table of the measurements, with their targets in parentheses."""
    table = Table(box=box.SIMPLE_HEAD, title="Rollouts, assessed every 2 s", title_justify="left")
    for name in (
        "",
        "median delay [s]",
        "p90 delay [s]",
        "rolled back [%]",
        "false rollbacks by z-test [%]",
    ):
        table.add_column(escape(name), justify="right" if name else "left", no_wrap=not name)
    for measurement in measurements:
        style = "" if measurement.reaches_targets else "bold red"
        z_test_share = measurement.num_false_naive / measurement.num_rollouts
        table.add_row(
            measurement.name,
            Text(_delay_text(measurement.median_s, measurement.max_median_s), style),
            Text(_delay_text(measurement.p90_s, measurement.max_p90_s), style),
            Text(_rollback_text(measurement), style),
            f"{100 * z_test_share:.1f}",
        )
    return table


def _delay_text(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if limit is None else f"{value:.0f} (at most {limit:.0f})"


def _rollback_text(measurement: RolloutMeasurement) -> str:
    share = f"{100 * measurement.num_rolled_back / measurement.num_rollouts:.1f}"
    if measurement.max_rollback_rate is None:
        num_early = measurement.num_early
        return share + (
            f", {pluralize(num_early, 'false rollback')} before the simulated harm"
            if num_early
            else ""
        )
    return f"{share} (at most {100 * measurement.max_rollback_rate:g})"
