"""The table of measured values and their targets that most ``sluice bench`` commands print."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sluice.base.settings import Record


class Speed(Record):
    """One measured value (a time, a rate, a ratio or a count) with its target."""

    name: str
    value: float
    unit: str
    target: float
    """Minimum of the value if ``higher_is_better``, otherwise its maximum."""
    higher_is_better: bool = False

    @property
    def reaches_target(self) -> bool:
        """Whether the value reaches its target; False for NaN."""
        if self.higher_is_better:
            return self.value >= self.target
        return self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """Return the fields and whether the value reaches its target."""
        return self.model_dump() | {"reaches_target": self.reaches_target}


def speed_at_most(name: str, value: float, unit: str, target: float) -> Speed:
    """Return a value whose target is a maximum."""
    return Speed(name=name, value=value, unit=unit, target=target)


def speed_at_least(name: str, value: float, unit: str, target: float) -> Speed:
    """Return a value whose target is a minimum."""
    return Speed(name=name, value=value, unit=unit, target=target, higher_is_better=True)


def collect_measurements(
    measurements: Iterable[Record | Speed], activity: str
) -> tuple[list[Speed], list[dict[str, Any]]]:
    """Run a benchmark; return its speeds, and its other records as dictionaries for JSON.

    Each speed is printed on stderr as soon as it is measured.
    """
    stderr = Console(stderr=True)
    speeds: list[Speed] = []
    records: list[dict[str, Any]] = []
    with stderr.status(activity):
        for measurement in measurements:
            if isinstance(measurement, Speed):
                speeds.append(measurement)
                stderr.print(
                    f"  {measurement.name}: {measurement.value:,.3g} {measurement.unit}",
                    highlight=False,
                )
            else:
                records.append(measurement.model_dump(mode="json"))
    return speeds, records


def speed_table(speeds: list[Speed]) -> Table:
    """Return a table with the value and target of each speed, and whether it reaches the target."""
    table = Table(box=box.SIMPLE_HEAD, title="Speeds on this machine", title_justify="left")
    for header in ("", "measured", "target", ""):
        table.add_column(header, justify="right" if header else "left")
    for speed in speeds:
        relation = "at least" if speed.higher_is_better else "at most"
        result = "[green]reached[/green]" if speed.reaches_target else "[yellow]missed[/yellow]"
        value, target = f"{speed.value:,.3g} {speed.unit}", f"{relation} {speed.target:,.3g}"
        table.add_row(speed.name, value, target, result)
    return table
