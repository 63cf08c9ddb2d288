"""Error rates of drift detection in simulated scenarios, and its speed."""

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

NAIVE_PSI = 0.25
"""Population stability index (PSI) of a column above which the naive test reports drift. This value
is common in practice."""

NAIVE_KS = 0.05
"""Smallest adjusted p-value of all columns up to which the naive Kolmogorov-Smirnov test reports
drift."""

_WINDOWS_PER_REFERENCE = 10
"""Number of windows that are tested against each reference. Every simulation draws another
reference, so the rates include its estimation error."""

_GAP_ROWS = 300
"""Gap between reference and windows, so that they are independent [rows]."""


class DriftScenario(Record):
    """Independent AR(1) columns with unit variance."""

    rho: float = Field(ge=0, lt=1)
    num_columns: int = Field(10, ge=1)
    reference_rows: int = Field(5_000, ge=100)
    window_rows: int = Field(500, ge=30)


class DriftRates(Record):
    """Rates in one scenario, over windows of many references."""

    world: DriftScenario
    false_alarms: Rate = Field(description="Windows without drift that are reported as DRIFT.")
    inconclusive: Rate
    power: Rate = Field(description="Windows whose shifted column is reported as DRIFT.")
    naive_ks: Rate = Field(
        description="False alarms of the Kolmogorov-Smirnov test for independent rows, with "
        "p-values adjusted by the Benjamini-Hochberg method."
    )
    naive_psi: Rate = Field(
        description="Windows without drift in which the PSI of a column is above 0.25."
    )

    @property
    def oracle_power(self) -> float:
        """Power of an oracle test of the mean, with known distribution and dependence."""
        world = self.world
        variance = (1 + world.rho) / (1 - world.rho)
        error = math.sqrt(variance * (1 / world.window_rows + 1 / world.reference_rows))
        tests = family_size(world.num_columns)
        required = float(ndtri(1 - DriftSettings().alpha / tests / 2))
        return float(ndtr(SHIFT / error - required))


def measure_drift(
    worlds: Sequence[DriftScenario], *, references: int, seed: int, processes: int
) -> Iterator[DriftRates]:
    """Yield the rates of each scenario.

    Cost:
        0.5 s for one reference of 10 columns and its 10 windows, each tested with and without the
        shift.
    """
    context = get_context("spawn")
    for world in worlds:
        tasks = [(world, seed, at) for at in range(references)]
        if processes == 1:
            counts = [_count_outcomes(task) for task in tasks]
        else:
            with ProcessPoolExecutor(processes, mp_context=context) as pool:
                counts = list(pool.map(_count_outcomes, tasks, chunksize=4))
        total = references * _WINDOWS_PER_REFERENCE
        rates = [Rate(count=int(count), total=total) for count in np.sum(counts, axis=0)]
        false, unsure, power, naive_ks, naive_psi = rates
        yield DriftRates(
            world=world,
            false_alarms=false,
            inconclusive=unsure,
            power=power,
            naive_ks=naive_ks,
            naive_psi=naive_psi,
        )


def measure_speed(
    *, num_rows: int, num_columns: int, reference_rows: int, seed: int, threads: int
) -> tuple[float, float]:
    """Return the time to build a reference, and to test a window against it [s].

    The reference includes the thresholds for windows of that size.
    """
    rng = np.random.default_rng(seed)
    names = [f"column {at}" for at in range(num_columns)]
    frame = pd.DataFrame(rng.normal(size=(reference_rows, num_columns)), columns=names)
    settings = DriftSettings(window_rows=num_rows)
    started = time.perf_counter()
    reference = build_reference(frame, settings, seed=seed, threads=threads)
    build_s = time.perf_counter() - started
    window = pd.DataFrame(rng.normal(size=(num_rows, num_columns)), columns=names)
    started = time.perf_counter()
    evaluate_window(reference, window, window="speed", threads=threads)
    return build_s, time.perf_counter() - started


def _count_outcomes(task: tuple[DriftScenario, int, int]) -> NDArray[np.int64]:
    """Count false alarms, inconclusive windows, detected shifts, and naive false alarms."""
    world, seed, at = task
    rng = np.random.default_rng([seed, at, round(1000 * world.rho)])
    rows = world.reference_rows + _WINDOWS_PER_REFERENCE * (world.window_rows + _GAP_ROWS)
    frame = pd.DataFrame(_ar1(rng, world.rho, rows, world.num_columns)).rename(columns=str)
    settings = DriftSettings(window_rows=world.window_rows)
    reference = build_reference(frame[: world.reference_rows], settings, seed=at, threads=1)
    count_R = np.zeros(5, np.int64)
    for start in range(world.reference_rows, rows, world.window_rows + _GAP_ROWS):
        window = frame[start + _GAP_ROWS : start + _GAP_ROWS + world.window_rows]
        report = evaluate_window(reference, window, window="null", threads=1)
        shifted = evaluate_window(
            reference, window.assign(**{"0": window["0"] + SHIFT}), window="shift", threads=1
        )
        ks, psi = _naive(reference, report)
        is_undecided = report.verdict == "INCONCLUSIVE"
        is_detected = shifted.columns[0].verdict == "DRIFT"
        count_R += np.array(
            [report.verdict == "DRIFT", is_undecided, is_detected, ks, psi], np.int64
        )
    return count_R


def _naive(reference: DriftReference, report: DriftReport) -> tuple[bool, bool]:
    """Return whether textbook KS and PSI tests report drift in the window."""
    distances = [{s.name: s.distance for s in column.statistics} for column in report.columns]
    rows = report.num_rows * reference.num_rows / (report.num_rows + reference.num_rows)
    p_values = [
        float(kolmogorov(np.sqrt(rows) * by_name["ks"])) for by_name in distances if by_name
    ]
    adjusted = benjamini_hochberg(p_values) if p_values else ()
    has_large_psi = any(by_name["psi"] > NAIVE_PSI for by_name in distances if by_name)
    return min(adjusted, default=1.0) <= NAIVE_KS, has_large_psi


def _ar1(rng: np.random.Generator, rho: float, rows: int, columns: int) -> NDArray[np.float64]:
    # Imported here, because it imports all of scipy.stats.
    from scipy.signal import lfilter

    shocks = rng.normal(size=(rows + 100, columns)) * np.sqrt(1 - rho**2)
    column_NC: NDArray[np.float64] = lfilter([1.0], [1.0, -rho], shocks, axis=0)[100:]
    return column_NC
