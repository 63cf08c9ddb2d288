"""The table of the drift benchmark, with its targets."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sluice.bench.drift.error_rates import NAIVE_PSI_THRESHOLD, SHIFT, DriftRates
from sluice.bench.planted.rate import Rate

MAX_FALSE_ALARM_RATE, MIN_POWER = 0.05, 0.95
"""Targets of the rate of false alarms and of the power."""

_MIN_ORACLE_SHARE = 0.9
"""Target of the power as a share of ``oracle_power``; used if that is below ``MIN_POWER``."""


def reaches_targets(rates: DriftRates) -> bool:
    """Return whether no rate is significantly worse than its target (by its Wilson interval).

    If the power of an oracle test is below ``MIN_POWER``, nine tenths of that power are required.
    """
    has_few_false_alarms = rates.false_alarms.interval[0] <= MAX_FALSE_ALARM_RATE
    return has_few_false_alarms and rates.power.interval[1] >= _min_power(rates)


def _min_power(rates: DriftRates) -> float:
    oracle_power = rates.oracle_power
    return MIN_POWER if oracle_power >= MIN_POWER else _MIN_ORACLE_SHARE * oracle_power


def rate_table(all_rates: Sequence[DriftRates]) -> Table:
    """Return the rates of all scenarios [%], with Wilson intervals.

    A false alarm rate or power that misses its target is red.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Drift detection on windows of AR(1) columns [% of windows]",
        title_justify="left",
    )
    for name in (
        "rho",
        "columns",
        "window rows",
        "false alarms",
        f"{SHIFT:g} sigma detected",
        "oracle power",
        "inconclusive",
        "false alarms, KS + BH",
        f"false alarms, PSI > {NAIVE_PSI_THRESHOLD:g}",
    ):
        table.add_column(name, justify="right")
    for rates in all_rates:
        scenario = rates.scenario
        table.add_row(
            f"{scenario.rho:g}",
            str(scenario.num_columns),
            str(scenario.window_rows),
            _rate_text(
                rates.false_alarms, is_missed=rates.false_alarms.rate > MAX_FALSE_ALARM_RATE
            ),
            _rate_text(rates.power, is_missed=rates.power.rate < _min_power(rates)),
            f"{100 * rates.oracle_power:.1f}",
            f"{100 * rates.inconclusive.rate:.1f}",
            f"{100 * rates.naive_ks.rate:.1f}",
            f"{100 * rates.naive_psi.rate:.1f}",
        )
    return table


def _rate_text(rate: Rate, *, is_missed: bool) -> Text:
    low, high = rate.interval
    text = f"{100 * rate.rate:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return Text(text, "bold red" if is_missed else "")
