"""Finds rows that are declared independent, but are in a systematic order."""

import math

import pandas as pd

from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.workload import Workload

_MIN_ROWS = 30
"""Minimum number of rows of a table; the order of fewer rows is not tested."""

_MAX_DEVIATIONS = 5.0
"""Maximum rank correlation of neighbouring targets in a random order [standard errors]. A random
order has a higher correlation with a probability below one in a million."""


def find_unshuffled_rows(workload: Workload, frame: pd.DataFrame) -> CheckOutcome | None:
    """Return a warning if rows are declared independent and neighbouring targets are similar.

    A workload with ``horizon_rows = 0`` declares that rows are independent. The promotion gate then
    counts every row as one observation, and each split of a fold is a range of row positions. If
    the rows are sorted, such as by class or by time, train and test rows differ systematically, and
    the promotion gate is too confident. In a random order, the ranks of neighbouring targets are
    uncorrelated.

    Args:
        workload: Declares the horizon and the target.
        frame: Feature frame.

    Assumes:
        The target is one numeric column; other targets are not checked. A workload with its own
        ``plan_folds`` is not checked, because its folds may be random.
    """
    if workload.horizon_rows != 0 or type(workload).plan_folds is not Workload.plan_folds:
        return None
    if workload.target_column not in frame.columns or len(frame) < _MIN_ROWS:
        return None
    target = frame[workload.target_column]
    if target.dtype.kind not in "iufb":
        return None
    rank = target.rank()
    correlation = float(
        rank.iloc[1:].reset_index(drop=True).corr(rank.iloc[:-1].reset_index(drop=True))
    )
    if not correlation * math.sqrt(len(frame)) > _MAX_DEVIATIONS:  # also for NaN, a constant target
        return None
    return CheckOutcome(
        outcome="warn",
        summary=f"Rows are declared independent (horizon_rows 0), but the targets of neighbouring "
        f"rows are similar: their rank correlation is {correlation:.2f} in {len(frame):,} rows.",
        numbers={"rows": len(frame), "neighbour_correlation": correlation},
        cause="The rows are sorted, for example by class, group or time, so train and test rows "
        "differ systematically.",
        fix="Order independent rows with in_hash_order(rows, columns, name='key') in load_rows. If "
        "the rows are a time series, declare horizon_rows = 1. If the rows depend on each other in "
        "groups, declare cluster_column.",
    )
