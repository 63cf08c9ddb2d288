"""A frame, folds and arms whose every loss is written by hand, for the tests of suites."""

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
from tests.sluice.evaluation.scored_workload import Counting, member

NOW = datetime(2025, 3, 14, tzinfo=UTC)
NUM_ROWS, FIRST_TEST = 120, 40
"""Rows 40 to 79 are the test window of fold 0, rows 80 to 119 that of fold 1."""

DAYS = pd.date_range("2020-01-01", periods=NUM_ROWS)
LABELS = row_labels(DAYS)
TESTED = LABELS[FIRST_TEST:]
FOLD_N = np.repeat([0, 1], 40)


def frame() -> pd.DataFrame:
    x_N = np.tile([0.0, 1.0, 2.0, 3.0], NUM_ROWS // 4)
    x_N[50] = 30.0
    return pd.DataFrame({"x": x_N, "y": np.arange(NUM_ROWS, dtype=float)}, index=DAYS)


def members(*, fold_0: int = 30, fold_1: int = 70) -> tuple[Member, ...]:
    """One member a fold, trained through these rows."""
    return tuple(member(0, fold, through=LABELS[row]) for fold, row in ((0, fold_0), (1, fold_1)))


def losses(
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


def scores(table: LossTable, mistakes: NDArray[np.float64] | None = None) -> Scores:
    counted = None
    if mistakes is not None:
        counted = LossTable(
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
    return Scores(losses=table, mistakes=counted, metric_table=metrics)


def flat(num_seeds: int, level: float = 1.0) -> NDArray[np.float64]:
    """Losses that are equal but for a little that grows with the row, so that none tie."""
    return np.tile(level + np.arange(80) * 1e-3, (num_seeds, 1))


def arms(
    candidate: NDArray[np.float64],
    reference: NDArray[np.float64],
    baseline: NDArray[np.float64],
) -> SuiteScores:
    return SuiteScores(
        candidate=scores(losses(candidate, "candidate")),
        reference=scores(losses(reference, "reference")),
        baseline=scores(losses(baseline, "baseline", seeds=())),
    )


def filed(suite: Suite, version: int = 1) -> SuiteVersion:
    return SuiteVersion(suite=suite, version=version, added_at=NOW)


def named(*places: int, name: str = "chosen") -> Suite:
    """A suite of the rows at these positions of the frame."""
    reasons = {str(LABELS[at]): f"row {at}" for at in places}
    return make_suite(name, reasons, Query(expression="x"))


WORKLOAD = Counting()
