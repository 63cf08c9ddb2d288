"""Detects evaluation rows that are also training rows."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import RowsRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import network_name
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers


class TrainValLeakageSettings(Settings):
    """Thresholds of the rule ``TRAIN_VAL_LEAKAGE``."""

    min_shared_rows: int = Field(
        3,
        ge=1,
        description="A finding requires that at least this number of evaluation rows are training "
        "rows.",
    )
    min_shared_share: float = Field(
        0.005,
        gt=0,
        le=1,
        description="A finding requires that at least this share of the evaluation rows are "
        "training rows. The share is estimated if not all training rows were recorded.",
    )
    min_full_share: float = Field(
        0.85,
        gt=0,
        le=1,
        description="Limit for two shares. (1) Estimated share of the evaluation rows that are "
        "training rows: from this limit on, the evaluation counts as an evaluation on training "
        "rows only. (2) Share of the recorded training rows that are evaluated: above this limit, "
        "the evaluation counts as an evaluation on the whole data set and is not reported.",
    )
    min_chance_ratio: float = Field(
        3.0,
        gt=1,
        description="A finding requires that the number of shared rows is more than this multiple "
        "of the number of shared rows expected by chance.",
    )
    min_majority_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="An evaluation pass counts as a pass on the training set if at least this "
        "share of its rows are training rows. Such passes are left out if together they contain "
        "at least this share of the training rows, and other passes remain.",
    )
    max_failed_split_share: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Applies to an evaluation on training rows only (see min_full_share). If it "
        "contains less than this share of the recorded training rows, it counts as a failed "
        "split, and the severity is 'error'. Otherwise it may be an intentional training score, "
        "and the finding needs confirmation.",
    )
    max_held_out_ratio: int = Field(
        2,
        gt=1,
        description="Maximum ratio of the number of rows of an evaluation pass to the number of "
        "recorded training rows. If the ratio is higher and the pass contains most training rows, "
        "it counts as an evaluation on the whole data set and is not reported.",
    )
    min_loop_steps: int = Field(
        8,
        ge=1,
        description="Evaluation passes count as part of the training loop if their rows differ "
        "from the rows of the passes at a neighboring step. At least this number of steps must "
        "have such passes.",
    )
    min_action_steps: int = Field(
        8,
        ge=1,
        description="Forward passes on a single row count as the selection of actions in "
        "reinforcement learning only if at least this number of steps have such a pass.",
    )
    max_actions_per_step: int = Field(
        8,
        ge=1,
        description="Forward passes on a single row count as the selection of actions in "
        "reinforcement learning only if steps with such passes have on average at most this "
        "number of them.",
    )


@dataclass(frozen=True, slots=True)
class _Overlap:
    """The rows of one evaluation loader, compared with the training rows."""

    loader: int
    """Index of the evaluation loader; -1 if the rows do not come from a loader."""
    num_shared: int
    """Number of distinct evaluation rows that were used for training before the evaluation."""
    num_evaluated: int
    """Number of distinct evaluation rows."""
    num_rows_in_largest_pass: int
    """Number of rows of the largest evaluation pass."""
    share: float
    """Estimated share of the evaluation rows that are training rows, recorded or not."""
    first_training_step: int
    """Number of optimizer steps before the first training pass on a shared row."""
    expected_by_chance: float
    """Number of shared rows that is expected if rows are equal only by chance."""


def _judge(rule: Rule[TrainValLeakageSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in sorted({r.network for r in trace.rows}):
        training_passes = [r for r in trace.rows if r.network == network and r.is_learning]
        if not training_passes:
            continue
        evaluation_passes = [r for r in trace.rows if r.network == network and not r.is_learning]
        evaluation_passes = _drop_single_row_passes(rule.settings, evaluation_passes)
        evaluation_passes = _drop_training_loop_passes(
            rule.settings, evaluation_passes, num_optimizers=max(len(stepping_optimizers(trace)), 1)
        )
        training_loaders = {r.loader for r in training_passes if r.loader != -1}
        overlaps = []
        for loader in sorted({r.loader for r in evaluation_passes} - training_loaders):
            passes = [r for r in evaluation_passes if r.loader == loader]
            passes = _drop_training_set_passes(rule.settings, passes, training_passes)
            overlaps.append(_find_overlap(trace, training_passes, passes))
        for overlap in overlaps:
            # Another evaluation without any training row uses the validation set.
            has_validation = any(o is not overlap and not o.num_shared for o in overlaps)
            finding = _judge_overlap(
                rule, trace, network, training_passes, overlap, has_validation=has_validation
            )
            if finding is not None:
                findings.append(finding)
    return tuple(findings)


def _drop_single_row_passes(
    settings: TrainValLeakageSettings, evaluation_passes: list[RowsRecord]
) -> list[RowsRecord]:
    """Drop passes on single rows if many steps have a few of them.

    Such passes select actions in reinforcement learning. In contrast, an evaluation row by row
    makes many passes at few steps.
    """
    single_row_steps = [record.step for record in evaluation_passes if record.num_rows == 1]
    num_steps = len(set(single_row_steps))
    if (
        num_steps < settings.min_action_steps
        or len(single_row_steps) > settings.max_actions_per_step * num_steps
    ):
        return evaluation_passes
    return [record for record in evaluation_passes if record.num_rows > 1]


def _drop_training_loop_passes(
    settings: TrainValLeakageSettings, evaluation_passes: list[RowsRecord], *, num_optimizers: int
) -> list[RowsRecord]:
    """Drop passes on different rows at consecutive steps, which belong to the training loop.

    Examples are the next states in reinforcement learning, and the tokens that a decoder generates.
    If several optimizers alternate, steps up to ``num_optimizers`` apart count as consecutive.
    """
    rows_by_step: dict[int, set[int]] = {}
    for record in evaluation_passes:
        rows_by_step.setdefault(record.step, set()).update(record.rows)
    loop_steps = {
        step
        for step, rows in rows_by_step.items()
        for neighbor in range(step - num_optimizers, step + num_optimizers + 1)
        if rows_by_step.get(neighbor, rows) != rows
    }
    if len(loop_steps) < settings.min_loop_steps:
        return evaluation_passes
    return [record for record in evaluation_passes if record.step not in loop_steps]


def _drop_training_set_passes(
    settings: TrainValLeakageSettings,
    evaluation_passes: list[RowsRecord],
    training_passes: list[RowsRecord],
) -> list[RowsRecord]:
    """Drop passes that compute the training score, if there are passes on other rows.

    Each pass for the training score contains mainly training rows, and all these passes together
    cover most training rows. In a leakage, the evaluation contains only a few of the training rows.
    """
    training_rows = {row for r in training_passes for row in r.rows}
    remaining_passes: list[RowsRecord] = []
    covered_rows: set[int] = set()
    for record in evaluation_passes:
        shared_rows = training_rows.intersection(record.rows)
        if len(shared_rows) < settings.min_majority_share * len(set(record.rows)):
            remaining_passes.append(record)
        else:
            covered_rows |= shared_rows
    return (
        remaining_passes
        if remaining_passes
        and len(covered_rows) >= settings.min_majority_share * len(training_rows)
        else evaluation_passes
    )


def _find_overlap(
    trace: Trace, training_passes: list[RowsRecord], evaluation_passes: list[RowsRecord]
) -> _Overlap:
    """Compare the rows of an evaluation with the rows that were used for training before it."""
    first_training_steps: dict[int, int] = {}
    for record in training_passes:
        for row in record.rows:
            first_training_steps.setdefault(row, record.step)
    evaluation_rows = {row for r in evaluation_passes for row in r.rows}
    # Leave out rows that were evaluated before they were used for training: the evaluation may have
    # selected them, as in pseudo-labeling. An evaluation before the first step selects nothing.
    selected_rows = {
        row
        for r in evaluation_passes
        for row in r.rows
        if 0 < r.step <= first_training_steps.get(row, -1)
    }
    shared_rows = {
        row
        for r in evaluation_passes
        for row in r.rows
        if first_training_steps.get(row, math.inf) < r.step and row not in selected_rows
    }
    recorded_share = _recorded_share(trace, training_passes, len(first_training_steps))
    num_pairs_in_batches, num_duplicates = _count_duplicates([*training_passes, *evaluation_passes])
    # Rows of integers may be equal by chance even if no sampled pair is equal. Rule of three: if n
    # pairs contain no duplicate, the rate of duplicates is below 3 / n (95% confidence).
    max_unseen_duplicates = 3.0 if any(r.is_integer for r in training_passes) else 0.0
    num_row_pairs = len(evaluation_rows) * len(first_training_steps)
    expected_by_chance = (
        num_row_pairs * (num_duplicates + max_unseen_duplicates) / max(num_pairs_in_batches, 1)
    )
    return _Overlap(
        loader=evaluation_passes[0].loader,
        num_shared=len(shared_rows),
        num_evaluated=len(evaluation_rows),
        num_rows_in_largest_pass=max(r.num_rows for r in evaluation_passes),
        share=len(shared_rows) / max(len(evaluation_rows), 1) / recorded_share,
        first_training_step=min((first_training_steps[row] for row in shared_rows), default=0),
        expected_by_chance=0.0
        if all(r.is_continuous for r in training_passes)
        else expected_by_chance,
    )


def _recorded_share(trace: Trace, training_passes: list[RowsRecord], num_recorded: int) -> float:
    """Return the share of the training rows that was recorded; 1 if their number is unknown."""
    loaders = {r.loader for r in training_passes}
    dataset_sizes = [x.num_rows for x in trace.loaders if x.index in loaders and x.num_rows > 0]
    if len(dataset_sizes) == len(loaders):
        return min(num_recorded / sum(dataset_sizes), 1.0)
    return 1.0


def _count_duplicates(records: Sequence[RowsRecord]) -> tuple[int, int]:
    """Return the number of pairs of rows within batches, and how many of these pairs are equal."""
    num_pairs = sum(math.comb(len(r.rows), 2) for r in records)
    num_duplicates = sum(math.comb(n, 2) for r in records for n in Counter(r.rows).values())
    return num_pairs, num_duplicates


def _judge_overlap(
    rule: Rule[TrainValLeakageSettings],
    trace: Trace,
    network: int,
    training_passes: list[RowsRecord],
    overlap: _Overlap,
    *,
    has_validation: bool,
) -> TraceFinding | None:
    """Return a finding; None if too few rows are shared, or if the sharing is intentional."""
    num_shared = overlap.num_shared
    if (
        num_shared < rule.settings.min_shared_rows
        or overlap.share < rule.settings.min_shared_share
        or num_shared <= rule.settings.min_chance_ratio * overlap.expected_by_chance
    ):
        return None
    num_training_rows = len({row for r in training_passes for row in r.rows})
    if num_shared > rule.settings.min_full_share * num_training_rows:
        return None  # an evaluation on the whole data set
    is_large_pass = (
        overlap.num_rows_in_largest_pass > rule.settings.max_held_out_ratio * num_training_rows
    )
    num_shared_in_pass = num_shared / overlap.num_evaluated * overlap.num_rows_in_largest_pass
    if is_large_pass and num_shared_in_pass > rule.settings.min_majority_share * num_training_rows:
        return None  # an evaluation on the whole data set, of which only a part was recorded
    is_fully_shared = overlap.share >= rule.settings.min_full_share
    if is_fully_shared and has_validation:
        return None  # the training score; another evaluation has the validation rows
    # An evaluation on only a part of the training rows was probably meant to use held-out rows.
    is_failed_split = (
        is_fully_shared and num_shared < rule.settings.max_failed_split_share * num_training_rows
    )
    loader_text = f" of loader {overlap.loader}" if overlap.loader >= 0 else ""
    return rule.finding(
        severity="confirm" if is_fully_shared and not is_failed_split else "error",
        step=overlap.first_training_step + 1,
        what=f"{network_name(trace, network)}: {num_shared} of {overlap.num_evaluated} evaluation "
        f"rows{loader_text} are among the {num_training_rows} recorded training rows. The first of "
        f"these shared rows was used for training at step {overlap.first_training_step + 1}.",
        cause="Scores on training rows do not measure the performance on new rows."
        if not is_fully_shared
        else "Nearly all evaluation rows are training rows, so the score is a training score.",
        fix="Split before rows are copied or resampled, and remove duplicates across the splits.",
        num_shared=num_shared,
        num_evaluated=overlap.num_evaluated,
        num_training_rows=num_training_rows,
        expected_by_chance=overlap.expected_by_chance,
    )


TRAIN_VAL_LEAKAGE = Rule(
    name="evaluation rows are not training rows",
    fault="train-validation leakage",
    priority=550,
    requires="Training rows, and evaluation rows of a later step.",
    contradicted_by="Rows with few distinct values, which are equal by chance.",
    abstains="Values repeat, so that the shared rows may be equal by chance; nearly all evaluation "
    "rows are training rows, and another evaluation has only new rows; the evaluation contains "
    "nearly all training rows; many steps have an evaluation pass on a single row; or the "
    "evaluation rows differ at consecutive steps.",
    settings=TrainValLeakageSettings(),
    judge=_judge,
)
