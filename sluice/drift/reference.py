"""A reference to judge windows against: computed once, frozen, kept under its digest.

Shape legend: N = rows, C = columns.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.config.drift_settings import DriftSettings
from sluice.drift.calibration import Null, calibrate_column
from sluice.drift.cells import num_filled
from sluice.drift.columns import ColumnReference, reference_column
from sluice.drift.dependence import Dependence
from sluice.drift.joint import Features, JointReference

_REPORT_EVERY = 16
"""Columns between two progress messages."""

_Result = TypeVar("_Result")
OnProgress = Callable[[str], None]
"""Receives one line about what is done so far."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """What distances mean for windows of one size; None where such a window decides nothing."""

    num_rows: int
    columns: tuple[Null | None, ...]
    joint: Null | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriftReference:
    """Everything that is needed to judge windows; the rows themselves are not."""

    settings: DriftSettings
    seed: int
    columns: tuple[ColumnReference, ...]
    joint: JointReference | None
    """None when there is one column."""

    calibration: Calibration
    left_out: tuple[str, ...] = ()
    """Names of the columns that ``max_columns`` excludes: windows are not compared in them."""

    @property
    def num_rows(self) -> int:
        """Rows of the reference."""
        return self.columns[0].num_rows

    @property
    def family(self) -> int:
        """How many tests a window undergoes."""
        return family_size(len(self.columns))

    @property
    def omission(self) -> str:
        """What ``max_columns`` excludes, in a sentence; empty when every column is compared."""
        if not self.left_out:
            return ""
        num_columns = len(self.columns) + len(self.left_out)
        return (
            f"{len(self.left_out):,} of {num_columns:,} columns are left out: a random sample of "
            f"{len(self.columns):,} is compared (drift.max_columns)."
        )

    @property
    def features(self) -> Features:
        """The random features, which the seed and the columns determine."""
        return Features.draw(self.columns, self.settings.num_features, self.seed)

    def needed_rows(self, dependence: Dependence) -> int:
        """Return how many rows a window needs to decide about what depends so [rows]."""
        return needed_rows(dependence, self.settings)

    def calibrated_for(self, num_rows: int, *, threads: int) -> "DriftReference":
        """Return this reference with thresholds for windows of ``num_rows``.

        Judging does this by itself; who judges many windows of one size keeps the result.
        """
        if num_rows == self.calibration.num_rows:
            return self
        calibration = _calibrate(
            self.columns, self.joint, self.settings, num_rows, self.seed, threads, no_progress
        )
        return replace(self, calibration=calibration)


def no_progress(message: str) -> None:
    """Report no progress."""


def build_reference(
    frame: pd.DataFrame,
    settings: DriftSettings,
    *,
    seed: int,
    threads: int,
    on_progress: OnProgress = no_progress,
) -> DriftReference:
    """Return the reference that later windows are judged against.

    Args:
        frame: Numbers and categories (text, booleans), rows in time order.
        settings: Kept with the reference: every window is judged by them.
        seed: Draws the sample of columns, random features and the windows that thresholds are
            calibrated on; equal seeds give equal references.
        threads: Columns worked on at a time; the result does not depend on it.
        on_progress: Receives a line for every 16 columns measured or calibrated.

    Raises:
        ContractError: There are too few rows or no columns, two have one name, or a compared one
            holds no value or neither numbers nor categories.

    Cost:
        5,000 rows of 50 columns: 3 s; 1,000,000 rows: 20 s. 20,000
        rows of 6,912 columns, of which 128 are compared: 14 s and 0.3 GB.

    Assumes:
        The reference itself is free of drift: what moved within it counts as normal.
    """
    frame, left_out = _sampled(named(frame), settings.max_columns, seed)
    _require_rows(frame, settings)
    tail = settings.alpha / family_size(frame.shape[1])
    with ThreadPoolExecutor(threads) as pool:
        measured = pool.map(
            lambda at: reference_column(frame.iloc[:, at], settings, tail), range(frame.shape[1])
        )
        columns = tuple(_reported(measured, frame.shape[1], "measured", on_progress))
        joint = None
        if len(columns) > 1:
            features = Features.draw(columns, settings.num_features, seed)
            codes = encode(frame, columns, pool)
            joint = JointReference.of(features, codes, tail, pool.map)
    calibration = _calibrate(
        columns, joint, settings, settings.window_rows, seed, threads, on_progress
    )
    return DriftReference(
        settings=settings,
        seed=seed,
        columns=columns,
        joint=joint,
        calibration=calibration,
        left_out=left_out,
    )


def encode(
    frame: pd.DataFrame, columns: Sequence[ColumnReference], pool: ThreadPoolExecutor
) -> list[NDArray[np.uint8]]:
    """Return the codes of each of the columns (N,)."""
    return list(pool.map(lambda column: column.cells.encode(frame[column.name]), columns))


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with text for names.

    Raises:
        ContractError: Two columns have one name.
    """
    names = frame.columns.astype(str)
    if not names.is_unique:
        raise ContractError(
            f"Columns must have different names, got '{names[names.duplicated()][0]}' twice.",
            fix="Rename one of them.",
        )
    return frame.set_axis(names, axis=1)


def family_size(num_columns: int) -> int:
    """Return the number of tests: one for each column, and one for all of several together.

    >>> family_size(1), family_size(50)
    (1, 51)
    """
    return num_columns + (num_columns > 1)


def needed_rows(dependence: Dependence, settings: DriftSettings) -> int:
    """Return how many rows a window needs to decide about what depends so [rows]."""
    return max(settings.min_rows, settings.min_blocks * dependence.block_length)


def is_judgeable(dependence: Dependence, num_rows: int, settings: DriftSettings) -> bool:
    """Return whether a window of that size can decide about what depends so."""
    # The stretch is NaN when the reference is too short.
    return num_rows >= needed_rows(dependence, settings) and dependence.stretch > 0


def _calibrate(
    columns: Sequence[ColumnReference],
    joint: JointReference | None,
    settings: DriftSettings,
    num_rows: int,
    seed: int,
    threads: int,
    on_progress: OnProgress,
) -> Calibration:
    draws = settings.resamples(family_size(len(columns)))

    def of(column: ColumnReference) -> Null | None:
        if not is_judgeable(column.dependence, num_rows, settings):
            return None
        return calibrate_column(column, settings, num_rows=num_rows, draws=draws, seed=seed)

    with ThreadPoolExecutor(threads) as pool:
        calibrated = pool.map(of, columns)
        nulls = tuple(_reported(calibrated, len(columns), "calibrated", on_progress))
    together = None
    if joint is not None and is_judgeable(joint.dependence, num_rows, settings):
        together = joint.calibrate(num_rows=num_rows, draws=draws, seed=seed)
    return Calibration(num_rows=num_rows, columns=nulls, joint=together)


def _sampled(
    frame: pd.DataFrame, max_columns: int, seed: int
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the columns that are compared, in their order, and the names of those left out."""
    num_columns = frame.shape[1]
    if num_columns <= max_columns:
        return frame, ()
    rng = np.random.default_rng([seed, num_columns])
    is_compared = frame.columns.isin(rng.choice(sorted(frame.columns), max_columns, replace=False))
    return frame.loc[:, is_compared], tuple(frame.columns[~is_compared])


def _reported(
    results: Iterable[_Result], total: int, verb: str, on_progress: OnProgress
) -> Iterator[_Result]:
    """Yield the results, with a progress message for every few of them."""
    for done, result in enumerate(results, 1):
        yield result
        if done % _REPORT_EVERY == 0 or done == total:
            on_progress(f"{verb} {done:,} of {total:,} columns")


def _require_rows(frame: pd.DataFrame, settings: DriftSettings) -> None:
    if len(frame) < settings.min_rows or frame.shape[1] == 0:
        raise ContractError(
            f"A drift reference needs at least {settings.min_rows} rows and one column, got "
            f"{len(frame)} rows and {frame.shape[1]} columns.",
            fix="Take a longer stretch of rows that are known to be good.",
        )
    empty = [str(name) for name, values in frame.items() if not num_filled(values)]
    if empty:
        raise ContractError(
            f"Every column of a drift reference must hold a value, got {len(empty)} without any: "
            f"{', '.join(empty[:5])}.",
            fix="Leave these columns out, or take rows in which they are filled.",
        )
