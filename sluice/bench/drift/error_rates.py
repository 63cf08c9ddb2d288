"""Error rates of drift detection in simulations, and its speed.

Shape legend: N = rows, C = columns.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import kolmogorov, ndtr, ndtri

from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate
from sluice.config.drift_settings import DriftSettings
from sluice.drift.reference import DriftReference, build_reference, family_size
from sluice.drift.report import DriftReport
from sluice.drift.window_evaluation import evaluate_window
from sluice.evaluation.multiplicity import benjamini_hochberg

SHIFT = 0.5
"""Shift of one column at which power is measured [standard deviations]."""

NAIVE_PSI_THRESHOLD = 0.25
"""Population stability index (PSI) above which the naive test of a column reports drift. This
threshold is common in practice."""

NAIVE_KS_ALPHA = 0.05
"""Level of the naive Kolmogorov-Smirnov tests. They report drift if the smallest adjusted p-value
of the columns is at most this value."""

_WINDOWS_PER_REFERENCE = 10
"""Number of windows that are tested against each reference. Every simulation draws another
reference, so the rates include the estimation error of references."""

_GAP_ROWS = 300
"""Gap before each window, which makes the window independent of earlier rows [rows]."""


class DriftScenario(Record):
    """Independent AR(1) columns with unit variance."""

    rho: float = Field(ge=0, lt=1, description="Autocorrelation of each column at lag 1.")
    num_columns: int = Field(10, ge=1)
    reference_rows: int = Field(5_000, ge=100)
    window_rows: int = Field(500, ge=30)


class DriftRates(Record):
    """Rates in one scenario, over the windows of many references."""

    scenario: DriftScenario
    false_alarms: Rate = Field(description="Windows without drift that are reported as DRIFT.")
    inconclusive: Rate = Field(
        description="Windows without drift that are reported as INCONCLUSIVE."
    )
    power: Rate = Field(
        description="Windows in which the shift of one column is reported as DRIFT."
    )
    naive_ks: Rate = Field(
        description="False alarms of the Kolmogorov-Smirnov test for independent rows, with "
        "p-values adjusted by the Benjamini-Hochberg method."
    )
    naive_psi: Rate = Field(
        description="Windows without drift in which the PSI of a column is above 0.25."
    )

    @property
    def oracle_power(self) -> float:
        """Power of a two-sided test of the mean with known distribution and autocorrelation."""
        scenario = self.scenario
        variance_inflation = (1 + scenario.rho) / (1 - scenario.rho)
        standard_error = math.sqrt(
            variance_inflation * (1 / scenario.window_rows + 1 / scenario.reference_rows)
        )
        num_tests = family_size(scenario.num_columns)
        critical_value = float(ndtri(1 - DriftSettings().alpha / num_tests / 2))
        return float(ndtr(SHIFT / standard_error - critical_value))


def measure_drift(
    scenarios: Sequence[DriftScenario], *, num_references: int, seed: int, num_processes: int
) -> Iterator[DriftRates]:
    """Yield the rates of each scenario.

    Cost:
        0.5 s for one reference of 10 columns and its 10 windows, each tested with and without the
        shift.
    """
    context = get_context("spawn")
    for scenario in scenarios:
        tasks = [(scenario, seed, reference_number) for reference_number in range(num_references)]
        if num_processes == 1:
            counts = [_count_outcomes(task) for task in tasks]
        else:
            with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
                counts = list(pool.map(_count_outcomes, tasks, chunksize=4))
        total = num_references * _WINDOWS_PER_REFERENCE
        rates = [Rate(count=int(count), total=total) for count in np.sum(counts, axis=0)]
        false_alarms, inconclusive, power, naive_ks, naive_psi = rates
        yield DriftRates(
            scenario=scenario,
            false_alarms=false_alarms,
            inconclusive=inconclusive,
            power=power,
            naive_ks=naive_ks,
            naive_psi=naive_psi,
        )


def measure_speed(
    *, num_rows: int, num_columns: int, reference_rows: int, seed: int, threads: int
) -> tuple[float, float]:
    """Return the time to build a reference, and to test a window against it [s].

    Building the reference includes the computation of the thresholds for windows of ``num_rows``.
    """
    rng = np.random.default_rng(seed)
    names = [f"column {index}" for index in range(num_columns)]
    frame = pd.DataFrame(rng.normal(size=(reference_rows, num_columns)), columns=names)
    settings = DriftSettings(window_rows=num_rows)
    start_s = time.perf_counter()
    reference = build_reference(frame, settings, seed=seed, threads=threads)
    build_s = time.perf_counter() - start_s
    window = pd.DataFrame(rng.normal(size=(num_rows, num_columns)), columns=names)
    start_s = time.perf_counter()
    evaluate_window(reference, window, window="speed", threads=threads)
    return build_s, time.perf_counter() - start_s


def _count_outcomes(task: tuple[DriftScenario, int, int]) -> NDArray[np.int64]:
    """Return counts of windows (5,), in the order of the rates in ``DriftRates``.

    Args:
        task: Scenario, base seed, and number of the reference.
    """
    scenario, seed, reference_number = task
    rng = np.random.default_rng([seed, reference_number, round(1000 * scenario.rho)])
    interval_rows = _GAP_ROWS + scenario.window_rows
    num_rows = scenario.reference_rows + _WINDOWS_PER_REFERENCE * interval_rows
    frame = pd.DataFrame(_draw_ar1(rng, scenario.rho, num_rows, scenario.num_columns)).rename(
        columns=str
    )
    settings = DriftSettings(window_rows=scenario.window_rows)
    reference = build_reference(
        frame[: scenario.reference_rows], settings, seed=reference_number, threads=1
    )
    count_5 = np.zeros(5, np.int64)
    for start in range(scenario.reference_rows, num_rows, interval_rows):
        window = frame[start + _GAP_ROWS : start + interval_rows]
        report = evaluate_window(reference, window, window="null", threads=1)
        shifted_report = evaluate_window(
            reference, window.assign(**{"0": window["0"] + SHIFT}), window="shift", threads=1
        )
        count_5 += np.array(
            [
                report.verdict == "DRIFT",
                report.verdict == "INCONCLUSIVE",
                shifted_report.columns[0].verdict == "DRIFT",
                *_run_naive_tests(reference, report),
            ],
            np.int64,
        )
    return count_5


def _run_naive_tests(reference: DriftReference, report: DriftReport) -> tuple[bool, bool]:
    """Return whether the textbook KS test and the PSI test report drift in the window."""
    distances = [{s.name: s.distance for s in column.statistics} for column in report.columns]
    # Effective sample size of a comparison of two samples.
    effective_rows = report.num_rows * reference.num_rows / (report.num_rows + reference.num_rows)
    p_values = [
        float(kolmogorov(np.sqrt(effective_rows) * by_name["ks"]))
        for by_name in distances
        if by_name
    ]
    adjusted_p_values = benjamini_hochberg(p_values) if p_values else ()
    has_large_psi = any(by_name["psi"] > NAIVE_PSI_THRESHOLD for by_name in distances if by_name)
    return min(adjusted_p_values, default=1.0) <= NAIVE_KS_ALPHA, has_large_psi


def _draw_ar1(
    rng: np.random.Generator, rho: float, num_rows: int, num_columns: int
) -> NDArray[np.float64]:
    """Return independent AR(1) columns of unit variance (N, C), after a burn-in of 100 rows."""
    # Imported here, because it imports all of scipy.stats.
    from scipy.signal import lfilter

    shocks = rng.normal(size=(num_rows + 100, num_columns)) * np.sqrt(1 - rho**2)
    column_NC: NDArray[np.float64] = lfilter([1.0], [1.0, -rho], shocks, axis=0)[100:]
    return column_NC
