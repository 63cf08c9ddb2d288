"""The table of measurements and targets that all ``sluice bench`` commands print."""

from rich import box
from rich.table import Table

from sluice.base.settings import Record


class Speed(Record):
    """One measured value with its target: a time, a rate, a ratio or a count."""

    name: str
    value: float
    unit: str
    target: float
    higher_is_better: bool = False

    @property
    def reaches_target(self) -> bool:
        """Whether the value is at most ``target``; at least, if ``higher_is_better``."""
        if self.higher_is_better:
            return self.value >= self.target
        return self.value <= self.target


def speed_table(measurements: list[Speed]) -> Table:
    """Return a table of measurements and their targets."""
    table = Table(box=box.SIMPLE_HEAD, title="Speeds on this machine", title_justify="left")
    for name in ("", "measured", "target", ""):
        table.add_column(name, justify="right" if name else "left")
    for speed in measurements:
        relation = "at least" if speed.higher_is_better else "at most"
        result = "[green]reached[/green]" if speed.reaches_target else "[yellow]missed[/yellow]"
        value, target = f"{speed.value:,.3g} {speed.unit}", f"{relation} {speed.target:,.3g}"
        table.add_row(speed.name, value, target, result)
    return table
