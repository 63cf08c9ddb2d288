"""Tables of the promotion gate's error rates. An estimate that misses its target is red."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.gate.error_rates import RetrainingRates, ScenarioRates
from sluice.bench.gate.naive import NAIVE_BOUNDS
from sluice.bench.gate.scenarios import GateScenario
from sluice.bench.planted.rate import Rate

MAX_RETRAINING_RATE = 0.05
"""Target: maximum share of simulations in which any of several retrainings on one window is
promoted falsely, if they share alpha."""


def reaches_targets(rates: ScenarioRates) -> bool:
    """Return whether no rate is significantly worse than its target (by its Wilson interval).

    With 1,000 simulations, a rate may miss its target by about 1.5 percentage points by chance. The
    tables nevertheless mark every estimate that misses its target.
    """
    max_rate, min_power = rates.max_false_rate, rates.min_power
    has_few_false_promotions = max_rate is None or rates.false_promotions.interval[0] <= max_rate
    return has_few_false_promotions and (min_power is None or rates.power.interval[1] >= min_power)


def retraining_reaches_target(rates: RetrainingRates) -> bool:
    """Return whether false promotions with shared alpha are not significantly above the target."""
    return rates.with_shared_alpha.interval[0] <= MAX_RETRAINING_RATE


def scenario_table(all_rates: Sequence[ScenarioRates]) -> Table:
    """Return the promotion rates of all scenarios [%], with Wilson intervals.

    The column ``seeds`` contains the numbers of seeds of candidate and reference. The columns
    ``false: ...`` contain the false promotions by the gate and by each naive test.
    """
    table = Table(box=box.SIMPLE_HEAD, title="False promotions and power [%]", title_justify="left")
    for name in ("rho", "tails", "horizon", "seeds", "seed share", "rows", "false: gate", "power"):
        table.add_column(name, justify="right")
    for name in NAIVE_BOUNDS:
        table.add_column(f"false: {name}", justify="right")
    for rates in all_rates:
        max_rate, min_power = rates.max_false_rate, rates.min_power
        table.add_row(
            *_scenario_cells(rates.scenario),
            _rate_text(
                rates.false_promotions,
                is_missed=max_rate is not None and rates.false_promotions.rate > max_rate,
            ),
            _rate_text(
                rates.power, is_missed=min_power is not None and rates.power.rate < min_power
            ),
            *(f"{100 * rates.naive[name].rate:.1f}" for name in NAIVE_BOUNDS),
        )
    return table


def retraining_table(all_rates: Sequence[RetrainingRates]) -> Table:
    """Return the shares of simulations with a false promotion [%], with Wilson intervals."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Retraining on one window: simulations with a false promotion [%]",
        title_justify="left",
    )
    for name in ("attempts", "alpha shared", "full alpha each time"):
        table.add_column(name, justify="right" if name != "attempts" else "left")
    for rates in all_rates:
        kind = "new seeds of one recipe" if rates.is_same_recipe else "a new recipe each"
        table.add_row(
            f"{rates.num_attempts}, {kind}",
            _rate_text(
                rates.with_shared_alpha,
                is_missed=rates.with_shared_alpha.rate > MAX_RETRAINING_RATE,
            ),
            _rate_text(rates.with_full_alpha, is_missed=False),
        )
    return table


def scenario_name(scenario: GateScenario) -> str:
    """Return a short description of a scenario."""
    reference = "against a rule" if scenario.has_deterministic_reference else "per arm"
    return (
        f"rho {scenario.rho:g}, {scenario.tails}, horizon {scenario.horizon_rows}, "
        f"{scenario.num_seeds} seeds {reference}, seed effects {100 * scenario.seed_share:.0f} % "
        f"of the variance, {scenario.num_rows} rows"
    )


def _scenario_cells(scenario: GateScenario) -> tuple[str, ...]:
    reference_seeds = "none" if scenario.has_deterministic_reference else scenario.num_seeds
    seeds = f"{scenario.num_seeds}, {reference_seeds}"
    share = f"{100 * scenario.seed_share:.0f} %"
    rows = str(scenario.num_rows)
    return (f"{scenario.rho:g}", scenario.tails, str(scenario.horizon_rows), seeds, share, rows)


def _rate_text(rate: Rate, *, is_missed: bool) -> Text:
    low, high = rate.interval
    text = f"{100 * rate.rate:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return Text(text, "bold red" if is_missed else "")
