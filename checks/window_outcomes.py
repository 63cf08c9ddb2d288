"""Evaluates expectations on many windows of rows at once, each as if it were the whole table.

Great Expectations needs at least 0.2 s per table. The windows are therefore concatenated and all
rows are evaluated in one pass. The result of a window is computed from the results of its rows.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.checks.expectations import violating_rows
from sluice.checks.suite_report import columns_of
from sluice.data.expectations import Between, Expectation, NotNull, RowCount, StdBetween


def find_alarms(
    windows: Sequence[pd.DataFrame], expectations: Sequence[Expectation]
) -> NDArray[np.bool_]:
    """Return a mask (W, E) of the windows W and the expectations E that they do not pass.

    A window does not pass an expectation that fails or cannot be measured, as in a run.

    Args:
        windows: Tables with the columns of the expectations. A column must have the same type in
            all tables.
        expectations: Declared and implied expectations. A ``RowCount`` is not allowed, because it
            applies to the whole table and not to a window.

    Raises:
        ContractError: An expectation cannot be measured on these columns at all.
    """
    assert not any(isinstance(e, RowCount) for e in expectations)
    sizes = np.array([len(window) for window in windows])
    columns = list(dict.fromkeys(c for e in expectations for c in columns_of(e)))
    rows = pd.concat([window[columns] for window in windows], ignore_index=True)
    # Index of the window of each of the N rows.
    window_index_N = np.repeat(np.arange(len(windows)), sizes)
    row_expectations = [e for e in expectations if not isinstance(e, StdBetween)]
    violations = violating_rows(rows, row_expectations) if row_expectations and len(rows) else {}
    # Start with alarms everywhere, so that an empty window does not pass.
    is_alarm_WE = np.ones((len(windows), len(expectations)), np.bool_)
    for position, expectation in enumerate(expectations):
        if len(rows) == 0:
            continue
        if isinstance(expectation, StdBetween):
            passes_W: NDArray[np.bool_] = _std_passes(
                rows[expectation.column], window_index_N, len(windows), expectation
            )
        else:
            passes_W = _rows_pass(
                rows, violations[expectation], window_index_N, len(windows), expectation
            )
        is_alarm_WE[:, position] = ~passes_W
    return is_alarm_WE


def _rows_pass(
    rows: pd.DataFrame,
    is_violation_N: NDArray[np.bool_],
    window_index_N: NDArray[np.int64],
    num_windows: int,
    expectation: Expectation,
) -> NDArray[np.bool_]:
    num_violations = np.bincount(window_index_N, weights=is_violation_N, minlength=num_windows)
    if isinstance(expectation, NotNull):
        is_measured_N: NDArray[np.float64] = np.ones(len(rows))
    else:
        has_all_values = rows[list(columns_of(expectation))].notna().all(axis=1)
        is_measured_N = has_all_values.to_numpy().astype(np.float64)
    num_measured = np.bincount(window_index_N, weights=is_measured_N, minlength=num_windows)
    mostly = expectation.mostly if isinstance(expectation, Between) else 1.0
    passed_share = np.divide(
        num_measured - num_violations,
        num_measured,
        out=np.zeros(num_windows),
        where=num_measured > 0,
    )
    passes_W: NDArray[np.bool_] = (num_measured > 0) & (passed_share >= mostly)
    return passes_W


def _std_passes(
    column: "pd.Series[float]",
    window_index_N: NDArray[np.int64],
    num_windows: int,
    expectation: StdBetween,
) -> NDArray[np.bool_]:
    std = column.groupby(window_index_N).std().reindex(range(num_windows)).to_numpy(np.float64)
    passes_W: NDArray[np.bool_] = (std >= expectation.low) & (std <= expectation.high)
    return passes_W  # NaN is outside every range
