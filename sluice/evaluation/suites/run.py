"""Runs all regression suites on a candidate: rows that it fixes or breaks, and guard outcomes.

Shape legend: S = seeds, N = test rows, M = scored rows of a suite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.losses import LossTable
from sluice.evaluation.scoring import Scores
from sluice.evaluation.suites.gain import measure_gain
from sluice.evaluation.suites.guard import evaluate_guard
from sluice.evaluation.suites.result import Change, RowResult, SuiteReport, SuiteResult
from sluice.evaluation.suites.row_status import RowStatus, classify_rows
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.evaluation.suites.suite import HighestLoss, Suite, SuiteVersion
from sluice.evaluation.suites.suite_arm import SuiteArm, mark_mistakes
from sluice.evaluation.unseen_members import row_labels
from sluice.findings.hard_examples import find_unusual_features
from sluice.training.members import Member
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuiteScores:
    """Scores of the three arms on the same rows; the reference may be the baseline."""

    candidate: Scores
    reference: Scores
    baseline: Scores


def run_suites(
    suites: Sequence[SuiteVersion],
    arms: SuiteScores,
    workload: Workload,
    frame: pd.DataFrame,
    members: Sequence[Member],
    settings: SuiteSettings,
) -> SuiteReport:
    """Evaluate the candidate on all suites, and check the guards.

    A row is wrong for an arm if its mean loss over seeds is above the quantile
    ``settings.wrong_quantile`` of the reference's losses on the whole window; for classifiers, if
    at least half of the seeds misclassify it. A row with a non-finite loss is wrong.

    A model whose losses selected the rows of a suite is measured on them by its other seeds.

    Args:
        suites: All suites of the pipeline.
        arms: Scores of the three arms on one window.
        workload: Workload with the feature columns and the forecast horizon.
        frame: Feature frame of the window.
        members: Members of the candidate.
        settings: Thresholds and guards.

    Raises:
        ContractError: The arms were scored on different rows, or not on this frame.

    Cost:
        O(seeds x N) and, for each suite, O(rows x features).
    """
    rows = arms.candidate.losses
    three = (arms.candidate, arms.reference, arms.baseline)
    threshold = None
    if any(scores.mistakes is None for scores in three):
        aligned = ArmLosses.of(arms.reference.losses.aligned_to(rows))
        threshold = float(np.quantile(aligned.loss_SN.mean(axis=0), settings.wrong_quantile))
    names = ("candidate", "reference", "baseline")
    candidate, reference, baseline = (
        mark_mistakes(scores, rows, threshold, name)
        for scores, name in zip(three, names, strict=True)
    )
    results = tuple(
        _run_one(
            version,
            classify_rows(
                version.suite.labels,
                rows,
                frame.index,
                members,
                horizon_rows=workload.horizon_rows,
            ),
            (candidate, reference, baseline),
            rows,
            frame,
            workload,
            settings,
        )
        for version in suites
    )
    by_name = {result.name: result for result in results}
    return SuiteReport(
        candidate=arms.candidate.losses.subject,
        reference=arms.reference.losses.subject,
        window=arms.candidate.losses.window,
        unit=workload.loss_unit,
        threshold=threshold,
        results=results,
        guards=tuple(
            evaluate_guard(guard, by_name.get(guard.suite), settings, unit=workload.loss_unit)
            for guard in settings.guards
        ),
    )


def _run_one(
    version: SuiteVersion,
    status: RowStatus,
    arms: tuple[SuiteArm, SuiteArm, SuiteArm],
    rows: LossTable,
    frame: pd.DataFrame,
    workload: Workload,
    settings: SuiteSettings,
) -> SuiteResult:
    suite, at_M = version.suite, status.scored_M
    candidate, candidate_problem = arms[0].on_suite(at_M, suite)
    reference, reference_problem = arms[1].on_suite(at_M, suite)
    lacking = tuple(problem for problem in (candidate_problem, reference_problem) if problem)
    if arms[1].threshold is not None and not np.isfinite(arms[1].threshold):
        lacking += ("the reference has non-finite losses on the window",)
    return SuiteResult(
        name=suite.name,
        version=version.version,
        digest=suite.digest,
        origin=suite.origin,
        num_rows=len(suite.rows),
        rows=_row_results(suite, at_M, arms, (candidate, reference), rows, frame, workload),
        gone=status.gone,
        seen=status.seen,
        unscored=status.unscored,
        gain=measure_gain(
            candidate.arm,
            reference.arm,
            settings,
            horizon_rows=workload.horizon_rows,
            lacking="; ".join((*lacking, *_biased_arms(suite, arms))),
        ),
        lacking=lacking,
    )


def _biased_arms(suite: Suite, arms: tuple[SuiteArm, ...]) -> tuple[str, ...]:
    """Return a message for each arm whose losses selected the rows and that has no other seeds.

    The rows are those with its highest losses by selection, so any other model has lower losses.
    """
    origin = suite.origin
    if not isinstance(origin, HighestLoss):
        return ()
    return tuple(
        f"the losses of the {arm.name} were used to select these rows"
        for arm in arms[:2]
        if arm.subject == origin.subject and not arm.seeds
    )


def _row_results(
    suite: Suite,
    at_M: NDArray[np.int64],
    arms: tuple[SuiteArm, SuiteArm, SuiteArm],
    fair: tuple[SuiteArm, SuiteArm],
    rows: LossTable,
    frame: pd.DataFrame,
    workload: Workload,
) -> tuple[RowResult, ...]:
    # The data are suspected if no seed is right, including the seeds that selected the rows.
    hopeless_N = np.logical_and.reduce([arm.wrong_SN.all(axis=0) for arm in arms])
    position = pd.Index(row_labels(frame.index)).get_indexer(pd.Index(rows.label_N))
    unusual = find_unusual_features(
        at_M, position.astype(np.int64), frame, workload.feature_columns
    )
    reasons = {row.label: row.reason for row in suite.rows}
    losses = [arm.arm.loss_SN.mean(axis=0) for arm in fair]
    baseline_N = arms[2].arm.loss_SN.mean(axis=0)
    wrong = [arm.wrong_N for arm in fair]
    found = []
    for m, at in enumerate(at_M):
        is_wrong, was_wrong = bool(wrong[0][m]), bool(wrong[1][m])
        label = str(rows.label_N[at])
        found.append(
            RowResult(
                label=label,
                fold_id=int(rows.fold_N[at]),
                change=_change(is_wrong=is_wrong, was_wrong=was_wrong),
                suspect=("data" if hopeless_N[at] else "model") if is_wrong else "none",
                candidate_loss=float(losses[0][m]),
                reference_loss=float(losses[1][m]),
                baseline_loss=float(baseline_N[at]),
                standouts=unusual[m],
                reason=reasons[label],
            )
        )
    return tuple(found)


def _change(*, is_wrong: bool, was_wrong: bool) -> Change:
    if is_wrong:
        return "still wrong" if was_wrong else "broken"
    return "fixed" if was_wrong else "still right"
