"""Multiple testing for one window: the joint test of all columns, and adjusted p-values."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.drift.joint import MapFunction
from sluice.drift.reference import DriftReference
from sluice.drift.report import (
    ColumnResult,
    JointResult,
    StatisticResult,
    statistic_with_smallest_p,
)
from sluice.evaluation.multiplicity import benjamini_hochberg

_STATISTIC_NAMES = {
    "psi": "population stability index",
    "ks": "Kolmogorov-Smirnov distance",
    "wasserstein": "Wasserstein distance in standard deviations",
    "chi_square": "chi-square statistic",
    "missing": "change of the rate of missing values",
}


def joint_result(
    reference: DriftReference,
    code_CN: Sequence[NDArray[np.uint8]],
    num_rows: int,
    map_function: MapFunction,
) -> JointResult | None:
    """Return the joint test of all columns, before the adjustment; None for a single column.

    Args:
        reference: Drift reference of the production version.
        code_CN: Bin codes (C, N) of the N rows of the window, for the C columns that can be
            compared.
        num_rows: Rows of the window [rows].
        map_function: ``map``, or the ``map`` method of a thread pool.
    """
    joint, null = reference.joint, reference.calibration.joint
    if joint is None:
        return None
    required_rows = reference.needed_rows(joint.dependence)
    statistic, reason = None, ""
    num_missing = len(reference.columns) - len(code_CN)
    if num_missing:
        reason = f"{num_missing} of {len(reference.columns)} columns cannot be compared."
    elif not joint.dependence.inflation > 0:
        reason = (
            f"The reference has {reference.num_rows} rows, too few for rows that depend on each "
            f"other over {joint.dependence.block_length} rows."
        )
    elif null is None:
        reason = f"The window has {num_rows} rows, required {required_rows}."
    else:
        distance = joint.distance(reference.features.mean(code_CN, map_function))
        (p_value,) = null.p_values(np.array([distance]))
        (threshold,) = null.thresholds(reference.settings.alpha)
        statistic = StatisticResult(
            name="mmd", distance=distance, threshold=threshold, p_value=p_value
        )
    return JointResult(
        verdict="INCONCLUSIVE",
        reason=reason,
        statistic=statistic,
        adjusted_p=math.nan,
        block_length=joint.dependence.block_length,
        needed_rows=required_rows,
    )


def adjust_results(
    columns: Sequence[ColumnResult], joint: JointResult | None, *, alpha: float
) -> tuple[tuple[ColumnResult, ...], JointResult | None]:
    """Return the results with their adjusted p-values and verdicts.

    Columns that could not be compared still count as tests, so that a missing column does not
    lower the adjusted p-values of other columns.
    """
    statistic = None if joint is None else joint.statistic
    p_values = [column.p_value for column in columns]
    if joint is not None:
        p_values.append(math.nan if statistic is None else statistic.p_value)
    adjusted_p_values = benjamini_hochberg(p_values)
    results = tuple(
        _with_adjusted_p(column, p, alpha=alpha)
        for column, p in zip(columns, adjusted_p_values, strict=False)
    )
    if joint is None or statistic is None:
        return results, joint
    has_drifted = adjusted_p_values[-1] <= alpha
    details = f"{statistic.distance:.3g}, at most {statistic.threshold:.3g} expected"
    return results, joint.model_copy(
        update={
            "adjusted_p": adjusted_p_values[-1],
            "verdict": "DRIFT" if has_drifted else "STABLE",
            "reason": f"Discrepancy {details}; adjusted p {adjusted_p_values[-1]:.2g}.",
        }
    )


def _with_adjusted_p(column: ColumnResult, adjusted_p: float, *, alpha: float) -> ColumnResult:
    if not math.isfinite(adjusted_p):
        return column
    statistic = statistic_with_smallest_p(column.statistics)
    reason = (
        f"{_STATISTIC_NAMES[statistic.name].capitalize()} {statistic.distance:.3g}, at most "
        f"{statistic.threshold:.3g} expected; adjusted p {adjusted_p:.2g}."
    )
    has_drifted = adjusted_p <= alpha
    return column.model_copy(
        update={
            "adjusted_p": adjusted_p,
            "verdict": "DRIFT" if has_drifted else "STABLE",
            "finding": column.finding if has_drifted else "none",
            "reason": reason,
        }
    )
