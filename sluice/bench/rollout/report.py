"""Delays and false rollbacks for people: a line a scenario, red where a figure is not reached."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.rollout.simulation import Measured


def rollout_table(measured: Sequence[Measured]) -> Table:
    """Return what was measured beside what it is held to."""
    table = Table(box=box.SIMPLE_HEAD, title="Rollouts, looked at every 2 s", title_justify="left")
    for name in ("", "median [s]", "p90 [s]", "back, of 100", "z-test in vain"):
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    for one in measured:
        bad = "" if one.holds else "bold red"
        table.add_row(
            one.name,
            Text(_seconds(one.median_s, one.most_median_s), bad),
            Text(_seconds(one.p90_s, one.most_p90_s), bad),
            Text(_share(one), bad),
            f"{100 * one.naive / one.rollouts:.1f}",
        )
    return table


def _seconds(value: float | None, most: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if most is None else f"{value:.0f} (at most {most:.0f})"


def _share(one: Measured) -> str:
    share = f"{100 * one.back / one.rollouts:.1f}"
    if one.most_back is None:
        return share + (f", {one.early} early" if one.early else "")
    return f"{share} (at most {100 * one.most_back:g})"
