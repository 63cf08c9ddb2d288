"""The gate's error rates for people: a line a world, red where a figure is not held."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.gate.error_rates import CellResult, FamilyResult, Rate
from sluice.bench.gate.naive import NAIVE
from sluice.bench.gate.worlds import World

MOST_OF_A_FAMILY = 0.05
"""Families of attempts on one window with a false promotion."""


def holds(cell: CellResult) -> bool:
    """Return whether neither rate is proven beyond its figure: its Wilson interval reaches it.

    With the 1,000 simulations a figure is measured with, that forgives about 1.5 points of chance;
    the table shows the rates themselves.
    """
    most, least = cell.most_allowed, cell.least_power
    few = most is None or cell.false_promotions.interval[0] <= most
    return few and (least is None or cell.power.interval[1] >= least)


def family_holds(family: FamilyResult) -> bool:
    """Return whether false promotions with the budget are not proven beyond alpha."""
    return family.with_budget.interval[0] <= MOST_OF_A_FAMILY


def cell_table(cells: Sequence[CellResult]) -> Table:
    """Return the rates of promotion of every world, per cent with Wilson intervals.

    ``seeds`` are the candidate's and the reference's, ``share`` their part of the variance.
    """
    table = Table(box=box.SIMPLE_HEAD, title="Promotions of 100", title_justify="left")
    for name in ("rho", "tails", "horizon", "seeds", "share", "rows", "false, the gate", "power"):
        table.add_column(name, justify="right")
    for name in NAIVE:
        table.add_column(f"false, {name}", justify="right")
    for cell in cells:
        most, least = cell.most_allowed, cell.least_power
        table.add_row(
            *_world_cells(cell.world),
            _shown(
                cell.false_promotions, bad=most is not None and cell.false_promotions.rate > most
            ),
            _shown(cell.power, bad=least is not None and cell.power.rate < least),
            *(f"{100 * cell.naive[name].rate:.1f}" for name in NAIVE),
        )
    return table


def family_table(families: Sequence[FamilyResult]) -> Table:
    """Return how often retraining on one window ends in any false promotion."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Retraining on one window: any false promotion, of 100",
        title_justify="left",
    )
    for name in ("attempts", "alpha shared", "alpha spent each time"):
        table.add_column(name, justify="right" if name != "attempts" else "left")
    for family in families:
        kind = "new seeds of one recipe" if family.is_same_recipe else "a new recipe each"
        table.add_row(
            f"{family.attempts}, {kind}",
            _shown(family.with_budget, bad=family.with_budget.rate > MOST_OF_A_FAMILY),
            _shown(family.without_budget, bad=False),
        )
    return table


def world_name(world: World) -> str:
    """Return a world in a few words."""
    reference = "against a rule" if world.deterministic else "a side"
    return (
        f"rho {world.rho:g}, {world.tails}, horizon {world.horizon_rows}, {world.num_seeds} seeds "
        f"{reference} with {100 * world.seed_share:.0f} %, {world.num_rows} rows"
    )


def _world_cells(world: World) -> tuple[str, ...]:
    seeds = f"{world.num_seeds}, {'none' if world.deterministic else world.num_seeds}"
    share = f"{100 * world.seed_share:.0f} %"
    rows = str(world.num_rows)
    return (f"{world.rho:g}", world.tails, str(world.horizon_rows), seeds, share, rows)


def _shown(rate: Rate, *, bad: bool) -> Text:
    low, high = rate.interval
    text = f"{100 * rate.rate:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return Text(text, "bold red" if bad else "")
