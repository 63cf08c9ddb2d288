"""The examples with the highest loss, and their unusual features.

Shape legend: N = examples, D = features.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.findings.check_outcome import HardExample, UnusualFeature
from sluice.findings.row_descriptions import describe_rows

_MIN_DEVIATIONS = 2.0
"""A value is unusual only if its distance from the median is at least this number [robust std]."""

_MAX_FEATURES = 3
"""Maximum number of unusual features per example."""

_MAX_RARE_SHARE = 0.01
"""In a column of which most rows are equal, a value is unusual only if it is rare: at most this
share of the rows may be at least as far from the median. A large deviation does not suffice: in a
one-hot column of weekdays, every seventh row is 2.9 standard deviations from the median 0."""

_MAD_TO_STD = 1.4826
"""Standard deviation of a normal variable divided by its median absolute deviation."""


def find_hard_examples(
    loss_N: NDArray[np.float64],
    rows: NDArray[np.int64],
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
    *,
    count: int,
    display_column: str | None = None,
) -> tuple[HardExample, ...]:
    """Return the examples with the highest loss, each with its unusual features.

    A feature is unusual if its value is at least 2 robust standard deviations from the median of
    the given rows. A robust standard deviation is the median absolute deviation, scaled so that it
    equals the standard deviation for a normal variable; outliers do not inflate it.

    In a column of which most rows are equal, such as a one-hot column, a value is unusual only if
    at most 1 % of the rows (or a single row) are at least as far from the median. The three
    features with the largest deviations are returned.

    Examples of equal loss are listed in row order. Non-finite losses, non-numeric columns and
    missing cells are ignored.

    Args:
        loss_N: Loss of each example, in the workload's unit.
        rows: Positions of the examples in ``frame``, (N,).
        frame: Feature frame.
        feature_columns: Columns to examine; columns that the frame lacks are skipped.
        count: Maximum number of examples to return.
        display_column: Column that describes the rows to a reader.
    """
    finite_indices = np.flatnonzero(np.isfinite(loss_N))
    descending_order = np.argsort(-loss_N[finite_indices], kind="stable")
    hardest_indices = finite_indices[descending_order][:count]
    if hardest_indices.size == 0:
        return ()
    unusual_features = find_unusual_features(hardest_indices, rows, frame, feature_columns)
    descriptions = describe_rows(frame, rows[hardest_indices], display_column)
    median = float(np.median(loss_N[finite_indices]))
    return tuple(
        HardExample(
            row=_label(frame.index[rows[i]]),
            description=description,
            loss=float(loss_N[i]),
            # Without a positive median, the ratio has no meaning.
            times_median=float(loss_N[i]) / median if median > 0 else float("nan"),
            unusual_features=features,
        )
        for i, description, features in zip(
            hardest_indices, descriptions, unusual_features, strict=True
        )
    )


def find_unusual_features(
    selected_indices: NDArray[np.int64],
    rows: NDArray[np.int64],
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
) -> tuple[tuple[UnusualFeature, ...], ...]:
    """Return the unusual features of each selected example, compared with all given rows.

    Args:
        selected_indices: Indices into ``rows``.
        rows: Positions of the examples in ``frame``, (N,), over which the median is taken.
        frame: Feature frame.
        feature_columns: Columns to examine; columns that the frame lacks are skipped.
    """
    columns = [name for name in feature_columns if name in frame.columns]
    names = [name for name in columns if pd.api.types.is_numeric_dtype(frame[name])]
    value_ND = frame.iloc[rows].loc[:, names].to_numpy(np.float64, na_value=np.nan)
    deviation_ND = _deviations(value_ND)
    return tuple(
        _select_unusual_features(names, value_ND[i], deviation_ND[i]) for i in selected_indices
    )


def _deviations(value_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the deviations from the median, in robust standard deviations; NaN for a missing cell.

    The deviation is 0 in a constant column. In a column of which most rows are equal, the unit is
    the standard deviation, and the deviation is 0 for a value that is not rare.
    """
    deviation_ND = np.full(value_ND.shape, np.nan)
    for column, value_N in enumerate(value_ND.T):
        finite_N = value_N[np.isfinite(value_N)]
        if finite_N.size == 0:
            continue
        distance_N = value_N - np.median(finite_N)
        scale = _MAD_TO_STD * float(np.median(np.abs(finite_N - np.median(finite_N))))
        if scale > 0:
            deviation_ND[:, column] = distance_N / scale
        else:
            deviation_ND[:, column] = _deviations_of_rare_values(distance_N, float(finite_N.std()))
    return deviation_ND


def _deviations_of_rare_values(
    distance_N: NDArray[np.float64], scale: float
) -> NDArray[np.float64]:
    """Return ``distance_N`` in units of ``scale``; 0 for values that are not rare."""
    if not scale > 0:
        return np.zeros_like(distance_N)
    absolute_distance_N = np.abs(distance_N[np.isfinite(distance_N)])
    # A value of a single row is always rare. Otherwise no value of a small table would be unusual.
    max_rare_rows = max(1, int(_MAX_RARE_SHARE * absolute_distance_N.size))
    sorted_distances = np.sort(absolute_distance_N)
    num_at_least_as_far_N = absolute_distance_N.size - np.searchsorted(
        sorted_distances, np.abs(distance_N), side="left"
    )
    is_common_N = np.isfinite(distance_N) & (num_at_least_as_far_N > max_rare_rows)
    return np.where(is_common_N, 0.0, distance_N / scale)


def _select_unusual_features(
    names: list[str], value_D: NDArray[np.float64], deviation_D: NDArray[np.float64]
) -> tuple[UnusualFeature, ...]:
    absolute_deviation_D = np.where(np.isfinite(deviation_D), np.abs(deviation_D), 0.0)
    order = np.argsort(-absolute_deviation_D, kind="stable")[:_MAX_FEATURES]
    return tuple(
        UnusualFeature(feature=names[d], value=float(value_D[d]), deviations=float(deviation_D[d]))
        for d in order
        if absolute_deviation_D[d] >= _MIN_DEVIATIONS
    )


def _label(label: object) -> str:
    if isinstance(label, pd.Timestamp) and label == label.normalize():
        return str(label.date())
    return str(label)
