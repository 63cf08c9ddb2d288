"""Tables of the gate's error rates by scenario; an estimate that misses its target is red."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.gate.error_rates import RetrainingRates, ScenarioRates
from sluice.bench.gate.naive import NAIVE
from sluice.bench.gate.scenarios import GateScenario
from sluice.bench.planted.rate import Rate

MAX_FAMILY_RATE = 0.05
"""Maximum share of simulations in which any of the attempts on one window is promoted falsely."""


def reaches_targets(cell: ScenarioRates) -> bool:
    """Return whether no rate is significantly worse than its target (by its Wilson interval).

    With 1,000 simulations, a rate may miss its target by about 1.5 percentage points by chance. The
    tables mark each estimate that misses its target, also by chance.
    """
    max_rate, min_power = cell.max_false_rate, cell.min_power
    has_few_false_promotions = max_rate is None or cell.false_promotions.interval[0] <= max_rate
    return has_few_false_promotions and (min_power is None or cell.power.interval[1] >= min_power)


def family_reaches_target(family: RetrainingRates) -> bool:
    """Return whether false promotions with shared alpha are not significantly above the target."""
    return family.with_budget.interval[0] <= MAX_FAMILY_RATE


def cell_table(cells: Sequence[ScenarioRates]) -> Table:
    """Return the promotion rates of all scenarios [%], with Wilson intervals.

    The column ``seeds`` has the numbers of seeds of candidate and reference, ``share`` the share
    of the variance, without the noise, that comes from seed effects.
    """
    table = Table(box=box.SIMPLE_HEAD, title="False promotions and power [%]", title_justify="left")
    for name in ("rho", "tails", "horizon", "seeds", "share", "rows", "false: gate", "power"):
        table.add_column(name, justify="right")
    for name in NAIVE:
        table.add_column(f"false: {name}", justify="right")
    for cell in cells:
        max_rate, min_power = cell.max_false_rate, cell.min_power
        table.add_row(
            *_world_cells(cell.world),
            _rate_text(
                cell.false_promotions,
                is_missed=max_rate is not None and cell.false_promotions.rate > max_rate,
            ),
            _rate_text(cell.power, is_missed=min_power is not None and cell.power.rate < min_power),
            *(f"{100 * cell.naive[name].rate:.1f}" for name in NAIVE),
        )
    return table


def family_table(families: Sequence[RetrainingRates]) -> Table:
    """Return how often repeated retraining on one window leads to any false promotion."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Retraining on one window: any false promotion [%]",
        title_justify="left",
    )
    for name in ("attempts", "alpha shared", "full alpha each time"):
        table.add_column(name, justify="right" if name != "attempts" else "left")
    for family in families:
        kind = "new seeds of one recipe" if family.is_same_recipe else "a new recipe each"
        table.add_row(
            f"{family.attempts}, {kind}",
            _rate_text(family.with_budget, is_missed=family.with_budget.rate > MAX_FAMILY_RATE),
            _rate_text(family.without_budget, is_missed=False),
        )
    return table


def scenario_name(world: GateScenario) -> str:
    """Return a short description of a scenario."""
    reference = "against a rule" if world.deterministic else "per arm"
    return (
        f"rho {world.rho:g}, {world.tails}, horizon {world.horizon_rows}, {world.num_seeds} seeds "
        f"{reference}, seed effects {100 * world.seed_share:.0f} % of the variance, "
        f"{world.num_rows} rows"
    )


def _world_cells(world: GateScenario) -> tuple[str, ...]:
    seeds = f"{world.num_seeds}, {'none' if world.deterministic else world.num_seeds}"
    share = f"{100 * world.seed_share:.0f} %"
    rows = str(world.num_rows)
    return (f"{world.rho:g}", world.tails, str(world.horizon_rows), seeds, share, rows)


def _rate_text(rate: Rate, *, is_missed: bool) -> Text:
    low, high = rate.interval
    text = f"{100 * rate.rate:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return Text(text, "bold red" if is_missed else "")
