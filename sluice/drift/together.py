"""The tests of one window held together: all columns at once, and one adjustment for all."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.drift.joint import Map
from sluice.drift.reference import DriftReference
from sluice.drift.report import ColumnResult, JointResult, StatisticResult, surest
from sluice.evaluation.multiplicity import benjamini_hochberg

_SAYS = {
    "psi": "population stability index",
    "ks": "largest gap of the distributions",
    "wasserstein": "mean distance moved in standard deviations",
    "chi_square": "chi-square",
    "missing": "share of missing values",
}


def joint_result(
    reference: DriftReference, code_CN: Sequence[NDArray[np.uint8]], num_rows: int, run: Map
) -> JointResult | None:
    """Return the comparison of all columns together, not yet adjusted; None for one column.

    Args:
        reference: Has the features' means.
        code_CN: Codes of every column of the window; fewer when a column cannot be compared.
        num_rows: Rows of the window [rows].
        run: ``map``, or that of a pool.
    """
    joint, null = reference.joint, reference.calibration.joint
    if joint is None:
        return None
    needed = reference.needed_rows(joint.dependence)
    statistic, said = None, ""
    lacking = len(reference.columns) - len(code_CN)
    if lacking:
        said = f"Not compared: {lacking} of {len(reference.columns)} columns cannot be."
    elif not joint.dependence.stretch > 0:
        said = "The reference is too short for how long its rows depend on each other."
    elif null is None:
        said = f"The window has {num_rows} rows, required {needed}."
    else:
        distance = joint.distance(reference.features.mean(code_CN, run))
        (p_value,) = null.p_values(np.array([distance]))
        (threshold,) = null.thresholds(reference.settings.alpha)
        statistic = StatisticResult(
            name="mmd", distance=distance, threshold=threshold, p_value=p_value
        )
    return JointResult(
        verdict="INCONCLUSIVE",
        reason=said,
        statistic=statistic,
        adjusted_p=math.nan,
        block_length=joint.dependence.block_length,
        needed_rows=needed,
    )


def settle(
    columns: Sequence[ColumnResult], joint: JointResult | None, *, alpha: float
) -> tuple[tuple[ColumnResult, ...], JointResult | None]:
    """Return the results with their adjusted p-values and verdicts.

    What could not be compared stays in the family, so that losing a column makes no other one
    easier to find.
    """
    statistic = None if joint is None else joint.statistic
    p_values = [column.p_value for column in columns]
    if joint is not None:
        p_values.append(math.nan if statistic is None else statistic.p_value)
    adjusted = benjamini_hochberg(p_values)
    settled = tuple(
        _settled(column, p, alpha=alpha) for column, p in zip(columns, adjusted, strict=False)
    )
    if joint is None or statistic is None:
        return settled, joint
    drifted = adjusted[-1] <= alpha
    size = f"{statistic.distance:.3g} against {statistic.threshold:.3g} expected at most"
    return settled, joint.model_copy(
        update={
            "adjusted_p": adjusted[-1],
            "verdict": "DRIFT" if drifted else "STABLE",
            "reason": f"Discrepancy {size}, adjusted p {adjusted[-1]:.2g}.",
        }
    )


def _settled(column: ColumnResult, adjusted: float, *, alpha: float) -> ColumnResult:
    if not math.isfinite(adjusted):
        return column
    told = surest(column.statistics)
    said = (
        f"{_SAYS[told.name].capitalize()} {told.distance:.3g}, at most {told.threshold:.3g} "
        f"expected; adjusted p {adjusted:.2g}."
    )
    drifted = adjusted <= alpha
    return column.model_copy(
        update={
            "adjusted_p": adjusted,
            "verdict": "DRIFT" if drifted else "STABLE",
            "finding": column.finding if drifted else "none",
            "reason": said,
        }
    )
