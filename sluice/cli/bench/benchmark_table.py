"""The table of measured values and their targets that most ``sluice bench`` commands print."""

from rich import box
from rich.table import Table

from sluice.base.settings import Record


class Speed(Record):
    """One measured value with its target: a time, a rate, a ratio or a count."""

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


def speed_table(speeds: list[Speed]) -> Table:
    """Return a table of measured values, their targets, and whether they reach them."""
    table = Table(box=box.SIMPLE_HEAD, title="Speeds on this machine", title_justify="left")
    for header in ("", "measured", "target", ""):
        table.add_column(header, justify="right" if header else "left")
    for speed in speeds:
        relation = "at least" if speed.higher_is_better else "at most"
        result = "[green]reached[/green]" if speed.reaches_target else "[yellow]missed[/yellow]"
        value, target = f"{speed.value:,.3g} {speed.unit}", f"{relation} {speed.target:,.3g}"
        table.add_row(speed.name, value, target, result)
    return table
