"""Measurements beside their targets, as every ``sluice bench`` command shows them."""

from rich import box
from rich.table import Table

from sluice.base.settings import Record


class Speed(Record):
    """One measurement and what it is held to."""

    name: str
    value: float
    unit: str
    target: float
    higher_is_better: bool = False

    @property
    def reached(self) -> bool:
        """Whether the target is met."""
        if self.higher_is_better:
            return self.value >= self.target
        return self.value <= self.target


def speed_table(measured: list[Speed]) -> Table:
    """Return a table of what was measured and what it is held to."""
    table = Table(box=box.SIMPLE_HEAD, title="Speeds on this machine", title_justify="left")
    for name in ("", "measured", "target", ""):
        table.add_column(name, justify="right" if name else "left")
    for speed in measured:
        sign = "at least" if speed.higher_is_better else "at most"
        mark = "[green]reached[/green]" if speed.reached else "[yellow]not here[/yellow]"
        value, target = f"{speed.value:,.3g} {speed.unit}", f"{sign} {speed.target:,.3g}"
        table.add_row(speed.name, value, target, mark)
    return table
