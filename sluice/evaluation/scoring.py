"""Computes per-example test losses and metrics of models and baseline rules.

Shape legend: S = seeds, F = folds, N = test rows over all folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sluice.base.digests import digest_frame, digest_json
from sluice.data.folds import Fold
from sluice.data.rows.protocol import read_all_as_tensor
from sluice.evaluation.fold_scores import FoldScores, score_chunks, score_output
from sluice.evaluation.losses import LossTable
from sluice.evaluation.metric_table import MetricTable
from sluice.evaluation.outputs import (
    FoldOutput,
    LoadMember,
    SelectMember,
    examples_of,
    mean_output,
    outputs_of,
    own_member_selector,
    require_complete_seeds,
    require_output_shape,
    select_members,
)
from sluice.evaluation.simple_rules import Baseline
from sluice.evaluation.unseen_members import row_labels, select_unseen_member
from sluice.training.members import Member
from sluice.training.prediction import PredictedRows
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Losses and metrics of one model or rule on the test rows."""

    losses: LossTable

    mistakes: LossTable | None
    """Mistakes of a classifier on the same rows, 1 for a wrong class; None for other workloads."""

    metric_table: MetricTable
    """Metrics of the workload for each seed and fold."""

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each metric over seeds and test rows; NaN if a metric is NaN for any seed."""
        return self.metric_table.means


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelScores:
    """Scores of a model with several seeds: by seed, and as an ensemble."""

    by_seed: Scores
    """Scores of each seed."""

    deployed: Scores
    """Scores of the deployed ensemble, whose output is the mean output of all seeds. Its loss table
    has no seeds."""

    note: str = ""
    """Note on the code that computed the scores; "" if the code is that of the training."""


def score_candidate(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    *,
    subject: str,
) -> ModelScores:
    """Score a candidate: each member on the test rows of its fold, and the ensemble of all seeds.

    Args:
        workload: Workload with examples, losses and metrics.
        frame: Feature frame.
        folds: Folds on which the members were trained.
        members: One member for each seed and fold.
        load: Returns the trained network of a member.
        subject: Digest of the candidate.

    Raises:
        ContractError: A seed lacks a fold, has a fold twice, or has an unexpected fold; or a member
            was trained on test rows.
    """
    seeds = require_complete_seeds(folds, members)
    select_member = own_member_selector(workload, frame, members)
    if not workload.keep_outputs:
        context = _ScoringContext(workload, frame, folds, subject)
        return _chunked_scores(workload, frame, folds, seeds, select_member, load, context)
    outputs_by_seed = outputs_of(workload, frame, folds, seeds, select_member, load)
    return _seed_and_ensemble_scores(workload, frame, folds, seeds, outputs_by_seed, subject)


def score_members(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    *,
    subject: str,
    scored_with: tuple[Workload, pd.DataFrame, Sequence[Fold]] | None = None,
) -> ModelScores:
    """Score a registered version on the test rows of the current folds.

    The version was trained on other folds, possibly of older data. For each seed and current fold,
    one of its members is used: among the members that have not seen the test rows, the member with
    the most training data. This is the member with the latest ``trained_through`` that precedes the
    first test row by more than the forecast horizon.

    Args:
        workload: Workload of the version, with its inputs and horizon.
        frame: Feature frame of the version.
        folds: Current folds in that frame.
        members: Members of the version.
        load: Returns the trained network of a member.
        subject: Digest of the version.
        scored_with: Workload, frame and folds of the candidate, with the same rows and targets. The
            losses and metrics of this workload are applied to the outputs, so that both arms are
            scored in the same way. None to use ``workload``, ``frame`` and ``folds``.

    Raises:
        ContractError: All members of a seed have seen the test rows of a fold.
    """
    seeds = sorted({member.seed for member in members})

    def select_member(seed: int, fold: Fold) -> Member:
        seed_members = [member for member in members if member.seed == seed]
        return select_unseen_member(
            seed_members, frame.index, fold, horizon_rows=workload.horizon_rows
        )

    context = _ScoringContext(*(scored_with or (workload, frame, folds)), subject)
    if not context.workload.keep_outputs:
        return _chunked_scores(workload, frame, folds, tuple(seeds), select_member, load, context)
    outputs_by_seed = outputs_of(workload, frame, folds, seeds, select_member, load)
    if scored_with is not None:
        workload, frame, folds = scored_with
        scored_by_fold = {
            fold.fold_id: (fold, examples) for fold, examples in examples_of(workload, frame, folds)
        }

        def with_scored_examples(output: FoldOutput) -> FoldOutput:
            fold, examples = scored_by_fold[output.fold.fold_id]
            return replace(output, fold=fold, examples=examples)

        outputs_by_seed = [
            [with_scored_examples(output) for output in outputs] for outputs in outputs_by_seed
        ]
    return _seed_and_ensemble_scores(workload, frame, folds, tuple(seeds), outputs_by_seed, subject)


def score_baseline(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    baseline: Baseline,
    *,
    subject: str,
) -> Scores:
    """Score a baseline without seeds, from the workload, the simple rules or an import."""
    fold_scores = []
    for fold, examples in examples_of(workload, frame, folds):
        output, name = baseline.outputs[fold.fold_id], f"baseline of fold {fold.fold_id}"
        if workload.keep_outputs:
            output = read_all_as_tensor(output, what="baseline predictions")
            require_output_shape(workload, output, examples.targets, name)
            fold_output = FoldOutput(fold=fold, examples=examples, output=output)
            fold_scores.append(score_output(workload, frame, fold_output))
        else:
            fold_scores += score_chunks(
                workload, frame, fold, examples, {name: output}, with_ensemble=False
            )
    return _collect_scores(workload, frame, folds, (), [fold_scores], subject)


def window_digest(frame: pd.DataFrame, folds: Sequence[Fold]) -> str:
    """Return the digest of the data and the test rows, which both arms must share."""
    test_ranges = [[fold.fold_id, fold.test.start, fold.test.stop] for fold in folds]
    return digest_json({"data": digest_frame(frame), "test": test_ranges})


@dataclass(frozen=True, slots=True)
class _ScoringContext:
    """Workload, frame and folds whose losses and metrics are applied to the outputs of a model."""

    workload: Workload
    frame: pd.DataFrame
    folds: Sequence[Fold]
    subject: str


def _chunked_scores(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: tuple[int, ...],
    select_member: SelectMember,
    load: LoadMember,
    context: _ScoringContext,
) -> ModelScores:
    """Return the scores without keeping whole outputs.

    The networks of all seeds of a fold are loaded together.
    """
    members = select_members(folds, seeds, select_member)
    scored_by_fold = {
        fold.fold_id: (fold, examples)
        for fold, examples in examples_of(context.workload, context.frame, context.folds)
    }
    scores_SF: list[list[FoldScores]] = [[] for _ in seeds]
    ensemble_scores = []
    for fold, examples in examples_of(workload, frame, folds):
        scored_fold, scored_examples = scored_by_fold[fold.fold_id]
        sources = {
            f"seed {seed}, fold {fold.fold_id}": PredictedRows(
                load(members[seed, fold.fold_id]), examples.x
            )
            for seed in seeds
        }
        *seed_scores, ensemble_fold_scores = score_chunks(
            context.workload,
            context.frame,
            scored_fold,
            scored_examples,
            sources,
            with_ensemble=True,
        )
        ensemble_scores.append(ensemble_fold_scores)
        for fold_scores, scores in zip(scores_SF, seed_scores, strict=True):
            fold_scores.append(scores)
    scored_with = context.workload, context.frame, context.folds
    return ModelScores(
        by_seed=_collect_scores(*scored_with, seeds, scores_SF, context.subject),
        deployed=_collect_scores(*scored_with, (), [ensemble_scores], context.subject),
    )


def _seed_and_ensemble_scores(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: tuple[int, ...],
    outputs_SF: Sequence[Sequence[FoldOutput]],
    subject: str,
) -> ModelScores:
    """Return the scores of each seed, and of the mean output of all seeds."""
    ensemble_outputs = [
        replace(outputs_S[0], output=mean_output([seed_output.output for seed_output in outputs_S]))
        for outputs_S in zip(*outputs_SF, strict=True)
    ]
    scores_SF = [
        [score_output(workload, frame, output) for output in fold_outputs]
        for fold_outputs in outputs_SF
    ]
    ensemble_scores = [score_output(workload, frame, output) for output in ensemble_outputs]
    return ModelScores(
        by_seed=_collect_scores(workload, frame, folds, seeds, scores_SF, subject),
        deployed=_collect_scores(workload, frame, folds, (), [ensemble_scores], subject),
    )


def _collect_scores(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: tuple[int, ...],
    scores_SF: Sequence[Sequence[FoldScores]],
    subject: str,
) -> Scores:
    """Return the scores of a model from the scores of its seeds on each fold."""
    labels = row_labels(frame.index)
    first_seed_scores = scores_SF[0]
    losses = LossTable(
        subject=subject,
        window=window_digest(frame, folds),
        seeds=seeds,
        fold_N=np.concatenate(
            [
                np.full(len(scores.examples), scores.fold.fold_id, np.int64)
                for scores in first_seed_scores
            ]
        ),
        label_N=np.concatenate([labels[scores.examples.rows] for scores in first_seed_scores]),
        loss_SN=np.stack(
            [np.concatenate([scores.loss_B for scores in fold_scores]) for fold_scores in scores_SF]
        ),
        cluster_N=None
        if (column := workload.cluster_column) is None
        else np.concatenate(
            [
                frame[column].iloc[scores.examples.rows].astype(str).to_numpy(np.str_)
                for scores in first_seed_scores
            ]
        ),
    )
    mistakes = [
        [scores.mistake_B for scores in fold_scores if scores.mistake_B is not None]
        for fold_scores in scores_SF
    ]
    return Scores(
        losses=losses,
        mistakes=replace(
            losses, loss_SN=np.stack([np.concatenate(fold_mistakes) for fold_mistakes in mistakes])
        )
        if first_seed_scores[0].mistake_B is not None
        else None,
        metric_table=_metric_table(scores_SF, losses),
    )


def _metric_table(scores_SF: Sequence[Sequence[FoldScores]], losses: LossTable) -> MetricTable:
    return MetricTable(
        subject=losses.subject,
        window=losses.window,
        seeds=losses.seeds,
        fold_rows=tuple(len(scores.examples) for scores in scores_SF[0]),
        values={
            name: tuple(
                tuple(float(scores.metrics[name]) for scores in fold_scores)
                for fold_scores in scores_SF
            )
            for name in scores_SF[0][0].metrics
        },
    )
