"""Finds copies of the target among the features, under the target's name or another name."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.pluralize import pluralize
from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_Values = NDArray[np.float64]

_MAX_RELATIVE_GAP = 0.1
"""Maximum of ``(1 - c) / (1 - p)`` for a copy of the target. ``c`` is the correlation of the
feature with the target, and ``p`` the correlation of the target with its previous row."""

_MAX_READ_ROWS = 4096
"""Maximum number of targets that are read from a source that is not in memory."""

_MIN_ROWS = 10
"""Minimum number of rows with a finite feature and a finite target; with fewer rows, the feature is
not compared."""


def find_target_copies(
    workload: Workload, frame: pd.DataFrame, train: Examples, settings: PocSettings
) -> CheckOutcome | None:
    """Return a finding for features that copy the target, or None.

    A feature is a copy if it has the target's name, equals the target in every row, or has an
    absolute correlation of at least ``target_copy_correlation`` with the target. If the absolute
    correlation is lower, but at least ``near_target_copy_correlation``, the outcome is a warning.

    A high correlation counts only if it is ten times closer to 1 than the correlation of the target
    with its own value in the previous row. The reason is that a feature of the past may resemble a
    slowly changing target: consecutive prices correlate above 0.9999 over a long history.

    The result is None if y is not the target column of the same row, for example if ``examples``
    takes the target from a later row.

    Args:
        workload: Declares features and target.
        frame: The feature frame.
        train: Train examples of the first fold.
        settings: ``target_copy_correlation`` and ``near_target_copy_correlation``.
    """
    target = workload.target_column
    if target not in frame.columns or not _is_numeric(frame[target]):
        return None
    values = _to_floats(frame[target])
    if not _is_target_of_own_row(values, train, settings.target_copy_correlation):
        return None
    features = [name for name in workload.feature_columns if name in frame.columns]
    if target in features:
        return _copy_finding(
            [target], f"feature_columns contains the target '{target}' itself", frame
        )
    numeric_features = [name for name in features if _is_numeric(frame[name])]
    similarity = {name: _similarity(_to_floats(frame[name]), values) for name in numeric_features}
    copies = [
        name
        for name, correlation in similarity.items()
        if correlation >= settings.target_copy_correlation
    ]
    if copies:
        names = ", ".join(f"'{name}'" for name in copies[:5])
        return _copy_finding(
            copies,
            f"the correlation with the target '{target}' in {len(frame):,} rows is at least "
            f"{settings.target_copy_correlation:g} for {names}",
            frame,
        )
    near_copies = {
        n: correlation
        for n, correlation in similarity.items()
        if correlation >= settings.near_target_copy_correlation
    }
    return (
        _near_copy_finding(near_copies, target, settings.near_target_copy_correlation)
        if near_copies
        else None
    )


def _copy_finding(copies: list[str], observation: str, frame: pd.DataFrame) -> CheckOutcome:
    return CheckOutcome(
        outcome="fail",
        summary=f"No feature may be a copy of the target, but {observation}.",
        numbers={"rows": len(frame), "copies": len(copies), "first_copy": copies[0]},
        fault="target leakage",
    )


def _near_copy_finding(
    near_copies: dict[str, float], target: str, min_correlation: float
) -> CheckOutcome:
    first = max(near_copies, key=near_copies.__getitem__)
    more = pluralize(len(near_copies) - 1, "other feature")
    others = f" The same holds for {more}." if len(near_copies) > 1 else ""
    return CheckOutcome(
        outcome="warn",
        summary=f"A single feature should not nearly equal the target: '{first}' has a correlation "
        f"of {near_copies[first]:.4f} with '{target}', so it looks like a noisy copy (limit "
        f"{min_correlation:g}).{others}",
        numbers={
            "near_copies": len(near_copies),
            "first": first,
            "correlation": near_copies[first],
        },
        fault="target leakage",
        cause="The feature is computed from the target, is measured at the same time or later, or "
        "explains nearly all of the target for a good reason.",
        fix=f"Check that '{first}' is known before '{target}' is. If it is not, remove '{first}' "
        "from feature_columns.",
    )


def _is_target_of_own_row(values: _Values, train: Examples, min_correlation: float) -> bool:
    """Return whether y of each example is the target column of the same row, possibly scaled."""
    train = sample_evenly(train, _MAX_READ_ROWS) if not train.is_in_memory else train
    y = train.targets.detach().double().reshape(len(train), -1).numpy()
    if y.shape[1] != 1:
        return False
    row_values = values[train.rows]
    is_finite = np.isfinite(row_values) & np.isfinite(y[:, 0])
    if np.allclose(row_values[is_finite], y[is_finite, 0], rtol=1e-4, atol=0.0):
        return True
    return abs(_correlation(row_values[is_finite], y[is_finite, 0])) >= min_correlation


def _similarity(feature: _Values, target: _Values) -> float:
    """Return the absolute correlation of a feature and the target.

    The result is 0 if the target correlates similarly well with its own value in the previous row,
    and if too few rows can be compared.
    """
    is_finite = np.isfinite(feature) & np.isfinite(target)
    one, two = feature[is_finite], target[is_finite]
    if len(one) < _MIN_ROWS or np.ptp(two) == 0:
        return 0.0
    if np.array_equal(one, two):
        return 1.0
    correlation = abs(_correlation(one, two))
    previous_row_correlation = abs(_correlation(two[1:], two[:-1]))
    return (
        correlation if 1 - correlation < _MAX_RELATIVE_GAP * (1 - previous_row_correlation) else 0.0
    )


def _correlation(one: _Values, two: _Values) -> float:
    """Return Pearson's correlation; 0 for fewer than two values, or if one series is constant."""
    if len(one) < 2:
        return 0.0
    a, b = one - one.mean(), two - two.mean()
    norm = float(np.sqrt(a @ a) * np.sqrt(b @ b))
    return float(a @ b) / norm if norm > 0 else 0.0


def _is_numeric(series: "pd.Series[float]") -> bool:
    return series.dtype.kind in "fiub"


def _to_floats(series: "pd.Series[float]") -> _Values:
    return np.asarray(series.to_numpy(np.float64, na_value=np.nan))
