"""Finds rows that are declared independent, but are in a systematic order."""

import math

import pandas as pd

from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.workload import Workload

_MIN_ROWS = 30
"""Minimum number of rows of a table to test their order."""

_MAX_DEVIATIONS = 5.0
"""Rank correlation of neighbouring targets above which rows are not in random order [standard
errors of the correlation in a random order]. The rate of false alarms is below one in a million."""


def find_unshuffled_rows(workload: Workload, frame: pd.DataFrame) -> CheckOutcome | None:
    """Return a warning if targets of neighbouring rows are similar despite independent rows.

    A workload with ``horizon_rows = 0`` declares that rows are independent. The gate then counts
    every row as one observation, and the folds divide the table at positions. If the rows are
    sorted, such as by class or by time, train and test rows differ systematically, and the gate is
    too confident. In a random order, the ranks of neighbouring targets are uncorrelated.

    Args:
        workload: Declares the horizon and the target.
        frame: Feature frame.

    Assumes:
        One numeric target column; other targets are not checked. Workloads with their own folds are
        not checked, because these may be random.
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
        cause="The rows are in the order of the file, such as by class, by group or by time, so "
        "that train and test rows differ systematically.",
        fix="Order independent rows with in_hash_order(rows, columns, name='key') in load_rows. If "
        "they are in time order, declare horizon_rows = 1. If they are related in groups, declare "
        "cluster_column.",
    )
