"""Run every suite on a candidate: what it fixes, what it breaks, and who is to suspect (DATA-5).

Shape legend: S = seeds, N = test rows, M = scored rows of a suite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.evaluation.estimate import Arm
from sluice.evaluation.losses import LossTable
from sluice.evaluation.production import row_labels
from sluice.evaluation.scoring import Scores
from sluice.evaluation.suites.gain import measure_gain
from sluice.evaluation.suites.guard import judge_guard
from sluice.evaluation.suites.judged_arm import JudgedArm, judge_arm
from sluice.evaluation.suites.placement import Placement, place_rows
from sluice.evaluation.suites.result import Change, RowResult, SuiteReport, SuiteResult
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.evaluation.suites.suite import FiledSuite, HighestLoss, Suite
from sluice.findings.hard_examples import find_standouts
from sluice.training.members import Member
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arms:
    """The three that are looked at, on the same rows; the reference may be the baseline."""

    candidate: Scores
    reference: Scores
    baseline: Scores


def run_suites(
    suites: Sequence[FiledSuite],
    arms: Arms,
    workload: Workload,
    frame: pd.DataFrame,
    members: Sequence[Member],
    settings: SuiteSettings,
) -> SuiteReport:
    """Look at the candidate on every suite and judge the guards.

    A row is wrong for an arm when its mean loss over seeds is above ``settings.wrong_quantile`` of
    the reference's on the whole window; where the workload counts mistakes, when at least half of
    the seeds make one. A loss that is not finite is wrong.

    A model whose losses chose a suite's rows is measured there by its other seeds.

    Args:
        suites: All of the pipeline.
        arms: Scores on one window.
        workload: Says what the features are and how far a target looks.
        frame: Feature frame of the window.
        members: The candidate's.
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
        in_place = Arm.of(arms.reference.losses.aligned_to(rows))
        threshold = float(np.quantile(in_place.loss_SN.mean(axis=0), settings.wrong_quantile))
    names = ("candidate", "reference", "baseline")
    candidate, reference, baseline = (
        judge_arm(scores, rows, threshold, name) for scores, name in zip(three, names, strict=True)
    )
    results = tuple(
        _run_one(
            filed,
            place_rows(
                filed.suite.labels,
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
        for filed in suites
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
            judge_guard(guard, by_name.get(guard.suite), settings, unit=workload.loss_unit)
            for guard in settings.guards
        ),
    )


def _run_one(
    filed: FiledSuite,
    placement: Placement,
    arms: tuple[JudgedArm, JudgedArm, JudgedArm],
    rows: LossTable,
    frame: pd.DataFrame,
    workload: Workload,
    settings: SuiteSettings,
) -> SuiteResult:
    suite, at_M = filed.suite, placement.scored_M
    candidate, no_candidate = arms[0].on(at_M, suite)
    reference, no_reference = arms[1].on(at_M, suite)
    lacking = tuple(what for what in (no_candidate, no_reference) if what)
    if arms[1].threshold is not None and not np.isfinite(arms[1].threshold):
        lacking += ("the reference has losses that are not finite on the window",)
    return SuiteResult(
        name=suite.name,
        version=filed.version,
        digest=suite.digest,
        origin=suite.origin,
        num_rows=len(suite.rows),
        rows=_row_results(suite, at_M, arms, (candidate, reference), rows, frame, workload),
        gone=placement.gone,
        seen=placement.seen,
        unscored=placement.unscored,
        gain=measure_gain(
            candidate.arm,
            reference.arm,
            settings,
            horizon_rows=workload.horizon_rows,
            lacking="; ".join((*lacking, *_chosen_by(suite, arms))),
        ),
        lacking=lacking,
    )


def _chosen_by(suite: Suite, arms: tuple[JudgedArm, ...]) -> tuple[str, ...]:
    """Say which arm's losses chose the rows and has no other seeds to be measured by.

    It is at its worst there by choice: any other model looks better on them.
    """
    origin = suite.origin
    if not isinstance(origin, HighestLoss):
        return ()
    return tuple(
        f"the losses of the {arm.name} chose these rows"
        for arm in arms[:2]
        if arm.subject == origin.subject and not arm.seeds
    )


def _row_results(
    suite: Suite,
    at_M: NDArray[np.int64],
    arms: tuple[JudgedArm, JudgedArm, JudgedArm],
    fair: tuple[JudgedArm, JudgedArm],
    rows: LossTable,
    frame: pd.DataFrame,
    workload: Workload,
) -> tuple[RowResult, ...]:
    # Of the data is suspected what no seed at all gets right, those that chose the row included.
    hopeless_N = np.logical_and.reduce([arm.wrong_SN.all(axis=0) for arm in arms])
    position = pd.Index(row_labels(frame.index)).get_indexer(pd.Index(rows.label_N))
    unusual = find_standouts(at_M, position.astype(np.int64), frame, workload.feature_columns)
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
