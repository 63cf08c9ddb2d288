"""A target that stands among the features, under its own name or another."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.config.poc_settings import PocSettings
from sluice.findings.finding import Finding
from sluice.workloads.workload import Examples, Workload

_Values = NDArray[np.float64]

_NEARER_THAN_A_ROW = 0.1
"""A copy is at least this much nearer to the target than the target's own neighbouring row."""

_FEWEST_ROWS = 10


def find_target_copies(
    workload: Workload, frame: pd.DataFrame, train: Examples, settings: PocSettings
) -> Finding | None:
    """Return the features that are the target as a finding, or None.

    A copy has the target's name, its values in every row, or a correlation with it of at least
    ``copy_correlation``. Slow series are like their own past without being copies: a price and
    the next one correlate above 0.9999 over a long history. So the correlation must also be ten
    times closer to 1 than that of the target with itself one row before.

    Nothing is found where the examples' y is not the target column of the same row, as when
    ``examples`` takes the target from a later row.

    Args:
        workload: Declares features and target.
        frame: The feature frame.
        train: Train examples of the first fold.
        settings: ``copy_correlation`` and ``near_copy_correlation``.
    """
    target = workload.target_column
    if target not in frame.columns or not _is_number(frame[target]):
        return None
    values = _numbers(frame[target])
    if not _is_own_row(values, train, settings.copy_correlation):
        return None
    features = [name for name in workload.feature_columns if name in frame.columns]
    if target in features:
        return _found([target], f"feature_columns names the target '{target}' itself", frame)
    others = [name for name in features if _is_number(frame[name])]
    following = {name: _following(_numbers(frame[name]), values) for name in others}
    copies = [name for name, found in following.items() if found >= settings.copy_correlation]
    if copies:
        names = ", ".join(f"'{name}'" for name in copies[:5])
        return _found(
            copies, f"{names} follows the target '{target}' in all {len(frame)} rows", frame
        )
    near = {n: found for n, found in following.items() if found >= settings.near_copy_correlation}
    return _nearly(near, target, settings.near_copy_correlation) if near else None


def _found(copies: list[str], what: str, frame: pd.DataFrame) -> Finding:
    return Finding(
        outcome="fail",
        summary=f"No feature may be the target: {what}.",
        numbers={"rows": len(frame), "copies": len(copies), "first_copy": copies[0]},
        kind="target among features",
    )


def _nearly(near: dict[str, float], target: str, least: float) -> Finding:
    first = max(near, key=near.__getitem__)
    others = f", and {len(near) - 1} more as well" if len(near) > 1 else ""
    return Finding(
        outcome="warn",
        summary=f"One feature alone should not be nearly the target: '{first}' has correlation "
        f"{near[first]:.4f} with '{target}', and {least:g} already looks like a copy with "
        f"noise{others}.",
        numbers={"near_copies": len(near), "first": first, "correlation": near[first]},
        kind="target among features",
        cause="The feature is computed from the target, or was measured together with it or "
        "after it; or it really explains nearly everything.",
        fix=f"Make sure that '{first}' is known before '{target}' is; if not, take it out of "
        "feature_columns.",
    )


def _is_own_row(values: _Values, train: Examples, least: float) -> bool:
    """Is each example's y the target column of its own row, scaled or not?"""
    y = train.y.detach().double().reshape(len(train.y), -1).numpy()
    if y.shape[1] != 1:
        return False
    own = values[train.rows]
    known = np.isfinite(own) & np.isfinite(y[:, 0])
    if np.allclose(own[known], y[known, 0], rtol=1e-4, atol=0.0):
        return True
    return abs(_correlation(own[known], y[known, 0])) >= least


def _following(feature: _Values, target: _Values) -> float:
    """Return the size of the correlation; 0 when the target's own last row is about as near."""
    known = np.isfinite(feature) & np.isfinite(target)
    one, two = feature[known], target[known]
    if len(one) < _FEWEST_ROWS or np.ptp(two) == 0:
        return 0.0
    if np.array_equal(one, two):
        return 1.0
    correlation = abs(_correlation(one, two))
    own_past = abs(_correlation(two[1:], two[:-1]))
    return correlation if 1 - correlation < _NEARER_THAN_A_ROW * (1 - own_past) else 0.0


def _correlation(one: _Values, two: _Values) -> float:
    """Return Pearson's correlation; 0 when either does not vary."""
    if len(one) < 2:
        return 0.0
    a, b = one - one.mean(), two - two.mean()
    norm = float(np.sqrt(a @ a) * np.sqrt(b @ b))
    return float(a @ b) / norm if norm > 0 else 0.0


def _is_number(series: "pd.Series[float]") -> bool:
    return series.dtype.kind in "fiub"


def _numbers(series: "pd.Series[float]") -> _Values:
    return np.asarray(series.to_numpy(np.float64, na_value=np.nan))
