"""Runs all regression suites on a candidate: finds fixed and broken rows, and checks the guards.

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
from sluice.evaluation.suites.suite_arm import SELECTION_MESSAGE, SuiteArm, make_suite_arm
from sluice.evaluation.unseen_members import row_labels
from sluice.findings.hard_examples import find_unusual_features
from sluice.findings.row_descriptions import describe_rows
from sluice.training.members import Member
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuiteScores:
    """Scores of candidate, reference and baseline on the same rows.

    The reference may be the baseline.
    """

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

    An arm is wrong on a row if its mean loss over seeds is above the quantile
    ``settings.wrong_quantile`` of the reference's losses on the whole window, or non-finite. A
    classifier is wrong on a row if at least half of its seeds misclassify the row; a seed with a
    non-finite loss counts as wrong.

    The losses of some seeds of a model may have been used to select the rows of a suite. Only the
    other seeds of this model are evaluated on these rows.

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
    candidate_losses = arms.candidate.losses
    all_scores = (arms.candidate, arms.reference, arms.baseline)
    threshold = None
    if any(scores.mistakes is None for scores in all_scores):
        aligned_losses = ArmLosses.of(arms.reference.losses.aligned_to(candidate_losses))
        threshold = float(np.quantile(aligned_losses.loss_SN.mean(axis=0), settings.wrong_quantile))
    roles = ("candidate", "reference", "baseline")
    candidate, reference, baseline = (
        make_suite_arm(scores, candidate_losses, threshold, role)
        for scores, role in zip(all_scores, roles, strict=True)
    )
    results = tuple(
        _run_suite(
            version,
            classify_rows(
                version.suite.labels,
                candidate_losses,
                frame.index,
                members,
                horizon_rows=workload.horizon_rows,
            ),
            (candidate, reference, baseline),
            candidate_losses,
            frame,
            workload,
            settings,
        )
        for version in suites
    )
    result_by_name = {result.name: result for result in results}
    return SuiteReport(
        candidate=arms.candidate.losses.subject,
        reference=arms.reference.losses.subject,
        window=arms.candidate.losses.window,
        unit=workload.loss_unit,
        threshold=threshold,
        results=results,
        guards=tuple(
            evaluate_guard(
                guard, result_by_name.get(guard.suite), settings, unit=workload.loss_unit
            )
            for guard in settings.guards
        ),
    )


def _run_suite(
    version: SuiteVersion,
    status: RowStatus,
    arms: tuple[SuiteArm, SuiteArm, SuiteArm],
    candidate_losses: LossTable,
    frame: pd.DataFrame,
    workload: Workload,
    settings: SuiteSettings,
) -> SuiteResult:
    """Return the result of the candidate on one suite."""
    suite, position_M = version.suite, status.scored_M
    candidate, candidate_problem = arms[0].select_suite_rows(position_M, suite)
    reference, reference_problem = arms[1].select_suite_rows(position_M, suite)
    problems = tuple(problem for problem in (candidate_problem, reference_problem) if problem)
    if arms[1].threshold is not None and not np.isfinite(arms[1].threshold):
        problems += ("the reference has non-finite losses on the window",)
    return SuiteResult(
        name=suite.name,
        version=version.version,
        digest=suite.digest,
        origin=suite.origin,
        num_rows=len(suite.rows),
        rows=_row_results(
            suite, position_M, arms, (candidate, reference), candidate_losses, frame, workload
        ),
        gone=status.missing_labels,
        seen=status.trained_labels,
        unscored=status.unscored_labels,
        gain=measure_gain(
            candidate.losses,
            reference.losses,
            settings,
            horizon_rows=workload.horizon_rows,
            no_bounds_reason="; ".join((*problems, *_describe_biased_arms(suite, arms))),
        ),
        lacking=problems,
    )


def _describe_biased_arms(suite: Suite, arms: tuple[SuiteArm, ...]) -> tuple[str, ...]:
    """Return a message for each rule, that is, arm without seeds, whose losses selected the rows.

    For an arm with seeds, ``SuiteArm.select_suite_rows`` excludes the seeds that selected the rows.
    The rows were selected because the arm has its highest losses on them. Almost any other model
    has lower losses on these rows, so a comparison on them is biased against the arm.
    """
    origin = suite.origin
    if not isinstance(origin, HighestLoss):
        return ()
    return tuple(
        f"the losses of the {arm.name} {SELECTION_MESSAGE}"
        for arm in arms[:2]
        if arm.subject == origin.subject and not arm.seeds
    )


def _row_results(
    suite: Suite,
    position_M: NDArray[np.int64],
    arms: tuple[SuiteArm, SuiteArm, SuiteArm],
    unbiased_arms: tuple[SuiteArm, SuiteArm],
    candidate_losses: LossTable,
    frame: pd.DataFrame,
    workload: Workload,
) -> tuple[RowResult, ...]:
    """Return the results of the scored rows of a suite.

    Args:
        suite: The suite.
        position_M: Positions of the scored rows in the loss table.
        arms: Candidate, reference and baseline, with all rows and all seeds.
        unbiased_arms: Candidate and reference on the scored rows, without the seeds whose losses
            selected the rows.
        candidate_losses: Losses of the candidate, which determine the row order.
        frame: Feature frame.
        workload: Workload with the feature columns.
    """
    # The data are suspected if all seeds of all three arms are wrong, including the seeds whose
    # losses selected the rows.
    is_always_wrong_N = np.logical_and.reduce([arm.is_wrong_SN.all(axis=0) for arm in arms])
    frame_position_N = pd.Index(row_labels(frame.index)).get_indexer(
        pd.Index(candidate_losses.label_N)
    )
    features_by_row = find_unusual_features(
        position_M, frame_position_N.astype(np.int64), frame, workload.feature_columns
    )
    descriptions = describe_rows(frame, frame_position_N[position_M], workload.display_column)
    reasons = {row.label: row.reason for row in suite.rows}
    candidate_loss_M, reference_loss_M = (arm.losses.loss_SN.mean(axis=0) for arm in unbiased_arms)
    baseline_loss_N = arms[2].losses.loss_SN.mean(axis=0)
    is_candidate_wrong_M, is_reference_wrong_M = (arm.is_wrong_N for arm in unbiased_arms)
    results = []
    for m, row in enumerate(position_M):
        is_candidate_wrong, is_reference_wrong = (
            bool(is_candidate_wrong_M[m]),
            bool(is_reference_wrong_M[m]),
        )
        label = str(candidate_losses.label_N[row])
        results.append(
            RowResult(
                label=label,
                description=descriptions[m],
                fold_id=int(candidate_losses.fold_N[row]),
                change=_find_change(
                    is_candidate_wrong=is_candidate_wrong, is_reference_wrong=is_reference_wrong
                ),
                suspect=("data" if is_always_wrong_N[row] else "model")
                if is_candidate_wrong
                else "none",
                candidate_loss=float(candidate_loss_M[m]),
                reference_loss=float(reference_loss_M[m]),
                baseline_loss=float(baseline_loss_N[row]),
                standouts=features_by_row[m],
                reason=reasons[label],
            )
        )
    return tuple(results)


def _find_change(*, is_candidate_wrong: bool, is_reference_wrong: bool) -> Change:
    if is_candidate_wrong:
        return "still wrong" if is_reference_wrong else "broken"
    return "fixed" if is_reference_wrong else "still right"
