"""A frame, folds, loss tables and suites with given values, for the tests of suites."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.evaluation.losses import LossTable
from sluice.evaluation.metric_table import MetricTable
from sluice.evaluation.scoring import Scores
from sluice.evaluation.suites.run import SuiteScores
from sluice.evaluation.suites.suite import Query, Suite, SuiteVersion, make_suite
from sluice.evaluation.unseen_members import row_labels
from sluice.training.members import Member
from tests.sluice.evaluation.scored_workload import Counting, make_member

NOW = datetime(2025, 3, 14, tzinfo=UTC)
NUM_ROWS, FIRST_TEST = 120, 40
"""Rows 40 to 79 are the test window of fold 0, rows 80 to 119 that of fold 1."""

DAYS = pd.date_range("2020-01-01", periods=NUM_ROWS)
LABELS = row_labels(DAYS)
TESTED = LABELS[FIRST_TEST:]
FOLD_N = np.repeat([0, 1], 40)


def make_frame() -> pd.DataFrame:
    x_N = np.tile([0.0, 1.0, 2.0, 3.0], NUM_ROWS // 4)
    x_N[50] = 30.0
    return pd.DataFrame({"x": x_N, "y": np.arange(NUM_ROWS, dtype=float)}, index=DAYS)


def make_members(*, fold_0: int = 30, fold_1: int = 70) -> tuple[Member, ...]:
    """Return one member per fold, trained up to these rows inclusive."""
    return tuple(
        make_member(0, fold, through=LABELS[row]) for fold, row in ((0, fold_0), (1, fold_1))
    )


def make_losses(
    loss_SN: NDArray[np.float64], subject: str, *, seeds: Sequence[int] | None = None
) -> LossTable:
    return LossTable(
        subject=subject,
        window="window",
        seeds=tuple(range(len(loss_SN))) if seeds is None else tuple(seeds),
        fold_N=FOLD_N,
        label_N=TESTED,
        loss_SN=loss_SN,
    )


def make_scores(table: LossTable, mistakes: NDArray[np.float64] | None = None) -> Scores:
    mistake_table = None
    if mistakes is not None:
        mistake_table = LossTable(
            subject=table.subject,
            window=table.window,
            seeds=table.seeds,
            fold_N=table.fold_N,
            label_N=table.label_N,
            loss_SN=mistakes,
        )
    _, counts = np.unique(table.fold_N, return_counts=True)
    metrics = MetricTable(
        subject=table.subject,
        window=table.window,
        seeds=table.seeds,
        fold_rows=tuple(map(int, counts)),
        values={},
    )
    return Scores(losses=table, mistakes=mistake_table, metric_table=metrics)


def make_flat_losses(num_seeds: int, level: float = 1.0) -> NDArray[np.float64]:
    """Return nearly equal losses that grow by 0.001 per row, so that there are no ties."""
    return np.tile(level + np.arange(80) * 1e-3, (num_seeds, 1))


def make_suite_scores(
    candidate: NDArray[np.float64],
    reference: NDArray[np.float64],
    baseline: NDArray[np.float64],
) -> SuiteScores:
    return SuiteScores(
        candidate=make_scores(make_losses(candidate, "candidate")),
        reference=make_scores(make_losses(reference, "reference")),
        baseline=make_scores(make_losses(baseline, "baseline", seeds=())),
    )


def make_version(suite: Suite, version: int = 1) -> SuiteVersion:
    return SuiteVersion(suite=suite, version=version, added_at=NOW)


def make_rows_suite(*positions: int, name: str = "chosen") -> Suite:
    """Return a suite of the rows at these positions of the frame."""
    reasons = {str(LABELS[position]): f"row {position}" for position in positions}
    return make_suite(name, reasons, Query(expression="x"))


WORKLOAD = Counting()
