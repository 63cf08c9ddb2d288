"""Detects evaluation inputs whose columns are in another order than in training.

Standardized columns have equal distributions; their correlations identify them.
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
from sluice.trace.rules._helpers.evaluation_inputs import consistent_difference, input_pairs
from sluice.trace.rules._helpers.loss_calls import network_name


class FeatureOrderMismatchSettings(Settings):
    """Thresholds of the rule ``FEATURE_ORDER_MISMATCH``."""

    min_rows: int = Field(
        48, ge=2, description="Rows of training inputs, and of evaluation inputs."
    )
    min_columns: int = Field(
        4,
        ge=2,
        description="Columns required for a finding: fewer correlations may match another order "
        "by chance.",
    )
    min_channels: int = Field(3, ge=2, description="Channels of an image required for a finding.")
    min_difference_ratio: float = Field(
        6.0,
        gt=1,
        description="Squared difference of all correlations, relative to the difference expected "
        "by chance, from which they have changed.",
    )
    max_difference_ratio: float = Field(
        3.0,
        gt=0,
        description="Squared difference in the reordered columns, relative to chance, up to which "
        "the order is found.",
    )
    max_remaining_share: float = Field(
        0.15,
        gt=0,
        le=1,
        description="Squared difference in the reordered columns, relative to the original order, "
        "up to which the order is found.",
    )


ColumnOrder = Sequence[int]
"""For each evaluation column, the training column that it corresponds to."""


def _judge(rule: Rule[FeatureOrderMismatchSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    for network, training, evaluated in input_pairs(trace, min_rows=rule.settings.min_rows):
        match = consistent_difference(evaluated, partial(_find_order, rule.settings, training))
        if match is not None:
            found.append(_build_finding(rule, trace, network, training, *match))
    return tuple(found)


def _find_order(
    settings: FeatureOrderMismatchSettings, training: InputRecord, evaluated: InputRecord
) -> ColumnOrder | None:
    """Return the order that explains the correlations; None when they have not changed."""
    min_columns = settings.min_channels if training.channels else settings.min_columns
    trained, evaluated_table = (
        _correlation_matrix(training.correlations),
        _correlation_matrix(evaluated.correlations),
    )
    if (
        len(trained) != len(evaluated_table)
        or len(trained) < min_columns
        or bool(training.channels) != bool(evaluated.channels)
    ):
        return None
    num, pairs = len(trained), [*itertools.combinations(range(len(trained)), 2)]
    rows = 1 / training.num_rows + 1 / evaluated.num_rows
    chance = sum((1 - evaluated_table[i][j] ** 2) ** 2 * rows for i, j in pairs)
    order = [*range(num)]
    before = misfit = _misfit(trained, evaluated_table, order)
    if before < settings.min_difference_ratio * chance:
        return None
    while True:
        candidates = [
            (_misfit(trained, evaluated_table, swapped := _swapped(order, *p)), swapped)
            for p in pairs
        ]
        best, swapped = min(candidates)
        if best >= misfit:
            break
        misfit, order = best, swapped
    is_explained = (
        misfit < settings.max_difference_ratio * chance
        and misfit < settings.max_remaining_share * before
    )
    return order if is_explained else None


def _correlation_matrix(upper_triangle: Sequence[float]) -> list[list[float]]:
    """Return the full correlation matrix from the values above its diagonal."""
    num = (1 + math.isqrt(1 + 8 * len(upper_triangle))) // 2 if upper_triangle else 0
    table = [[1.0] * num for _ in range(num)]
    for (i, j), value in zip(itertools.combinations(range(num), 2), upper_triangle, strict=True):
        table[i][j] = table[j][i] = value
    return table


def _misfit(
    trained: list[list[float]], evaluated_table: list[list[float]], order: ColumnOrder
) -> float:
    return sum(
        (trained[order[i]][order[j]] - evaluated_table[i][j]) ** 2
        for i, j in itertools.combinations(range(len(order)), 2)
    )


def _swapped(order: list[int], i: int, j: int) -> list[int]:
    found = [*order]
    found[i], found[j] = found[j], found[i]
    return found


def _build_finding(
    rule: Rule[FeatureOrderMismatchSettings],
    trace: Trace,
    network: int,
    training: InputRecord,
    evaluated: InputRecord,
    order: ColumnOrder,
) -> TraceFinding:
    kind = "channel" if training.channels else "column"
    facts = training.channels or training.columns
    moved = [(facts[i].column, facts[j].column) for i, j in enumerate(order) if i != j]
    listed = ", ".join(f"{was} as {now}" for now, was in moved[:4])
    return rule.finding(
        severity="error",
        step=evaluated.first_step,
        what=f"{network_name(trace, network)}: {len(moved)} of its {len(order)} input {kind}s "
        f"are in another order in the evaluation. According to the correlations, {kind} "
        f"{listed}{' and so on' if len(moved) > 4 else ''} ({training.num_rows} training rows, "
        f"{evaluated.num_rows} evaluation rows).",
        cause=f"The network receives each of these {kind}s in place of another one.",
        fix=f"Select the {kind}s by name, from one list, everywhere rows are prepared.",
        confidence=0.95,
        num_columns=len(moved),
    )


FEATURE_ORDER_MISMATCH = Rule(
    name="evaluation columns have the order of the training columns",
    fault="preprocessing skew",
    priority=580,
    requires="48 training rows and 48 evaluation rows of four columns, or images of three "
    "channels, whose columns are correlated.",
    contradicted_by="An evaluation whose columns have different correlations for another reason.",
    abstains="Another evaluation of the network matches training, or the network is trained on "
    "several loaders or on the output of another network.",
    settings=FeatureOrderMismatchSettings(),
    judge=_judge,
)
