"""Detects evaluation inputs whose columns are in another order than in training.

The rule compares the correlations of the columns. Standardized columns cannot be identified by mean
and standard deviation, because these are equal.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import InputRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.evaluation_inputs import (
    consistent_difference,
    training_and_evaluation_inputs,
)
from sluice.trace.rules._helpers.loss_calls import network_name


class FeatureOrderMismatchSettings(Settings):
    """Thresholds of the rule ``FEATURE_ORDER_MISMATCH``."""

    min_rows: int = Field(
        48,
        ge=2,
        description="A finding requires at least this number of training rows, and at least this "
        "number of evaluation rows.",
    )
    min_columns: int = Field(
        4,
        ge=2,
        description="A finding requires at least this number of columns. The correlations of "
        "fewer columns may match another order by chance.",
    )
    min_channels: int = Field(
        3, ge=2, description="A finding about images requires at least this number of channels."
    )
    min_initial_difference_ratio: float = Field(
        6.0,
        gt=1,
        description="The correlations in training and in an evaluation count as different only if "
        "the sum of their squared differences is at least this multiple of the sum expected by "
        "chance.",
    )
    max_remaining_difference_ratio: float = Field(
        3.0,
        gt=0,
        description="A new order counts as the explanation only if it reduces the sum of squared "
        "differences to less than this multiple of the sum expected by chance.",
    )
    max_remaining_share: float = Field(
        0.15,
        gt=0,
        le=1,
        description="A new order counts as the explanation only if it reduces the sum of squared "
        "differences to less than this share of its original value.",
    )


ColumnOrder = Sequence[int]
"""For each evaluation column, the position of the corresponding training column."""


def _judge(rule: Rule[FeatureOrderMismatchSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for training, evaluations in training_and_evaluation_inputs(
        trace, min_rows=rule.settings.min_rows
    ):
        match = consistent_difference(evaluations, partial(_find_order, rule.settings, training))
        if match is not None:
            evaluation, order = match
            findings.append(_build_finding(rule, trace, training, evaluation, order))
    return tuple(findings)


def _find_order(
    settings: FeatureOrderMismatchSettings, training: InputRecord, evaluation: InputRecord
) -> ColumnOrder | None:
    """Return the order of the training columns that explains the correlations of the evaluation.

    Each iteration of the search makes the swap of two columns that reduces the difference of the
    correlations most. The search ends when no swap reduces the difference.

    Returns:
        None if the correlations in training and evaluation are about equal, if no order explains
        their difference, or if the columns are too few or cannot be compared.
    """
    min_columns = settings.min_channels if training.channels else settings.min_columns
    training_correlations = _correlation_matrix(training.correlations)
    evaluation_correlations = _correlation_matrix(evaluation.correlations)
    if (
        len(training_correlations) != len(evaluation_correlations)
        or len(training_correlations) < min_columns
        or bool(training.channels) != bool(evaluation.channels)
    ):
        return None
    pairs = [*itertools.combinations(range(len(training_correlations)), 2)]
    # By chance, a squared difference is on average the sum of the variances in training and in
    # evaluation. The large-sample variance of a correlation r of n rows is (1 - r^2)^2 / n.
    variance_scale = 1 / training.num_rows + 1 / evaluation.num_rows
    expected_difference = sum(
        (1 - evaluation_correlations[i][j] ** 2) ** 2 * variance_scale for i, j in pairs
    )
    order = [*range(len(training_correlations))]
    initial_difference = difference = _squared_difference(
        training_correlations, evaluation_correlations, order
    )
    if initial_difference < settings.min_initial_difference_ratio * expected_difference:
        return None
    while True:
        best_difference, best_order = min(
            (_squared_difference(training_correlations, evaluation_correlations, swapped), swapped)
            for swapped in (_swap(order, i, j) for i, j in pairs)
        )
        if best_difference >= difference:
            break
        difference, order = best_difference, best_order
    is_explained = (
        difference < settings.max_remaining_difference_ratio * expected_difference
        and difference < settings.max_remaining_share * initial_difference
    )
    return order if is_explained else None


def _correlation_matrix(upper_triangle: Sequence[float]) -> list[list[float]]:
    """Return the full correlation matrix from the values above its diagonal."""
    num_columns = (1 + math.isqrt(1 + 8 * len(upper_triangle))) // 2 if upper_triangle else 0
    matrix = [[1.0] * num_columns for _ in range(num_columns)]
    pairs = itertools.combinations(range(num_columns), 2)
    for (i, j), value in zip(pairs, upper_triangle, strict=True):
        matrix[i][j] = matrix[j][i] = value
    return matrix


def _squared_difference(
    training_correlations: list[list[float]],
    evaluation_correlations: list[list[float]],
    order: ColumnOrder,
) -> float:
    """Return the sum of squared differences of the correlations, for one order of the columns."""
    return sum(
        (training_correlations[order[i]][order[j]] - evaluation_correlations[i][j]) ** 2
        for i, j in itertools.combinations(range(len(order)), 2)
    )


def _swap(order: list[int], i: int, j: int) -> list[int]:
    swapped = [*order]
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return swapped


def _build_finding(
    rule: Rule[FeatureOrderMismatchSettings],
    trace: Trace,
    training: InputRecord,
    evaluation: InputRecord,
    order: ColumnOrder,
) -> TraceFinding:
    kind = "channel" if training.channels else "column"
    columns = training.channels or training.columns
    moved_columns = [(columns[i].column, columns[j].column) for i, j in enumerate(order) if i != j]
    examples = ", ".join(
        f"{kind} {i} contains {kind} {j} of training" for i, j in moved_columns[:4]
    )
    return rule.finding(
        severity="error",
        step=max(evaluation.first_step, 1),  # first_step is 0 before the first optimizer step
        what=f"{network_name(trace, training.network)}: {len(moved_columns)} of {len(order)} "
        f"compared input {kind}s are in another order in the evaluation. According to the "
        f"correlations, {examples}{', and so on' if len(moved_columns) > 4 else ''} "
        f"({training.num_rows} training rows, "
        f"{evaluation.num_rows} evaluation rows).",
        cause=f"The network receives each of these {kind}s in place of another {kind}.",
        fix=f"Define the order of the {kind}s once, and use it wherever rows are prepared.",
        confidence=0.95,
        num_columns=len(moved_columns),
    )


FEATURE_ORDER_MISMATCH = Rule(
    name="evaluation columns have the order of the training columns",
    fault="preprocessing skew",
    priority=580,
    requires="48 training rows and 48 evaluation rows, either of at least four columns or of "
    "images with at least three channels. The columns or channels must be correlated.",
    contradicted_by="Columns whose correlations differ in the evaluation for another reason.",
    abstains="Another evaluation of the network has the order of training; the network is trained "
    "on several loaders or on the output of another network; or the evaluation inputs were "
    "generated by a network or a sampler.",
    settings=FeatureOrderMismatchSettings(),
    judge=_judge,
)
