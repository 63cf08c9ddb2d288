"""Detects input columns that are constant in every training row."""

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import correlation, median

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import ColumnRecord, InputRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.evaluation_inputs import latest_input_records
from sluice.trace.rules._helpers.loss_calls import list_numbers, network_name


class ConstantColumnSettings(Settings):
    """Thresholds of the rule ``CONSTANT_COLUMN``."""

    min_rows: int = Field(
        200,
        ge=1,
        description="Minimum number of sampled training rows for a finding. An evaluation needs "
        "a quarter of this number to be compared.",
    )
    min_table_rows: int = Field(
        1000,
        ge=1,
        description="Minimum number of sampled training rows, for a finding that a large part of "
        "a table's columns is constant, or that a few isolated columns are.",
    )
    min_constant_columns: int = Field(
        3,
        ge=1,
        description="Minimum number of constant columns that count as a large part of a table.",
    )
    min_constant_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Minimum share of constant columns among all columns, for them to count as a "
        "large part of a table.",
    )
    max_mean_difference: float = Field(
        0.5,
        gt=0,
        description="Maximum difference between the means of a column in training and in an "
        "evaluation, for the column to count as equally distributed [std of the training rows].",
    )
    max_std_ratio: float = Field(
        1.5,
        gt=1,
        description="Maximum ratio of the standard deviations of a column in training and in an "
        "evaluation, in either direction, for the column to count as equally distributed.",
    )
    min_relative_std: float = Field(
        0.15,
        gt=0,
        description="Minimum ratio of a column's standard deviation to its range in an "
        "evaluation, for the column to count as varying. Below it, only a few rows differ from "
        "the rest.",
    )
    max_isolated_columns: int = Field(
        2,
        ge=1,
        description="Maximum number of adjacent constant columns that count as isolated. Two "
        "such columns may be the sine and cosine of one time of day.",
    )
    max_narrow_columns: int = Field(
        32,
        ge=1,
        description="Maximum number of columns of a narrow table. In a wider table, isolated "
        "constant columns are not reported, and several constant columns among standardized ones "
        "need confirmation.",
    )
    max_standardized_mean: float = Field(
        0.3, gt=0, description="Maximum absolute mean of a standardized column."
    )
    standardized_std_range: tuple[float, float] = Field(
        (0.6, 1.6),
        description="Lower and upper limit of the standard deviation of a standardized column.",
    )
    min_columns: int = Field(5, ge=2, description="Minimum number of columns for a finding.")
    min_neighbor_correlation: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Minimum correlation between the standard deviations of neighboring "
        "positions, for an input to count as an image or a curve. In an image or a curve, the "
        "standard deviation changes gradually from position to position.",
    )
    min_neighbor_pairs: int = Field(
        16,
        ge=2,
        description="Minimum number of pairs of neighboring positions, for the correlation of "
        "their standard deviations to be computed. With fewer, no input counts as an image or a "
        "curve.",
    )
    min_image_side: int = Field(
        6,
        ge=2,
        description="Minimum length of each of the last two dimensions, for the neighboring "
        "positions of an input to be compared. Smaller inputs may be patches or short vectors. "
        "Only for inputs with more than two dimensions.",
    )
    min_neighbor_std_ratio: float = Field(
        0.4,
        gt=0,
        description="For a position next to a constant one: minimum ratio of its standard "
        "deviation to the median standard deviation of all varying positions, for it to count as "
        "a varying neighbor.",
    )


_MAX_LISTED = 8
"""Maximum number of columns whose positions the message lists."""


def _judge(rule: Rule[ConstantColumnSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in sorted({record.network for record in trace.inputs}):
        records = latest_input_records(trace, network).values()
        training_records = [record for record in records if record.is_learning]
        evaluations = [record for record in records if not record.is_learning]
        if len(training_records) != 1:
            continue
        training = training_records[0]
        if training.num_rows < rule.settings.min_rows or training.matches_model_output:
            continue
        finding = _detect_constant_columns(rule, trace, training, evaluations)
        if finding is not None:
            findings.append(finding)
    return tuple(findings)


def _detect_constant_columns(
    rule: Rule[ConstantColumnSettings],
    trace: Trace,
    training: InputRecord,
    evaluations: list[InputRecord],
) -> TraceFinding | None:
    end_columns = {0, max((c.column for c in training.columns), default=0)}
    constant_columns = [
        c
        for c in training.columns
        # A column of ones at either end is an intercept.
        if c.smallest == c.largest and not (c.smallest == 1 and c.column in end_columns)
    ]
    if (
        not constant_columns
        or len(training.columns) < rule.settings.min_columns
        or len(constant_columns) == len(training.columns)
    ):
        return None
    settings = rule.settings
    columns_by_reason = {
        "they are a large part of the table and have different values": constant_columns
        if _are_large_part(settings, constant_columns, training)
        else [],
        "the evaluation contains other values there": _find_varying_in_evaluation(
            settings, constant_columns, training, evaluations
        ),
        "all others are standardized": constant_columns
        if _are_varying_columns_standardized(settings, training)
        else [],
        "the columns on both sides are standardized": [
            c for c in constant_columns if _is_between_standardized(settings, c, training)
        ],
        "no other column is constant": constant_columns
        if _are_isolated(settings, constant_columns, training)
        else [],
        "the neighboring columns vary": [
            c for c in constant_columns if _do_neighbors_vary(settings, c, training)
        ],
    }
    for reason, columns in columns_by_reason.items():
        if columns:
            return _build_finding(rule, trace, training, columns, reason)
    return None


def _build_finding(
    rule: Rule[ConstantColumnSettings],
    trace: Trace,
    training: InputRecord,
    columns: list[ColumnRecord],
    reason: str,
) -> TraceFinding:
    # A scaler also produces a constant 0 for pixels or words that never occur. So in a wide table,
    # several constant columns among standardized ones are not conclusive.
    is_wide = len(training.columns) > rule.settings.max_narrow_columns
    may_be_intentional = is_wide and "standardized" in reason and len(columns) > 1
    first = columns[0]
    positions = list_numbers([c.column for c in columns[:_MAX_LISTED]], len(columns))
    total = math.prod(training.shape[1:]) if training.by_position else training.shape[-1]
    observation = (
        f"column {positions} of {total} is {first.smallest:.4g}"
        if len(columns) == 1
        else f"columns {positions} of {total} are constant (the first is always "
        f"{first.smallest:.4g})"
    )
    return rule.finding(
        severity="confirm" if may_be_intentional else "error",
        step=training.first_step + 1,
        what=f"{network_name(trace, training.network)}: {observation} in all {training.num_rows} "
        f"sampled rows, from the first batch on, and {reason}.",
        cause="The network receives no information from a constant column.",
        fix="Check the preprocessing step that fills or drops values.",
        confidence=0.5 if may_be_intentional else 0.9,
        column=first.column,
        num_columns=len(columns),
        num_rows=training.num_rows,
    )


def _are_large_part(
    settings: ConstantColumnSettings, constant_columns: list[ColumnRecord], record: InputRecord
) -> bool:
    """Whether the constant columns are a large part of a table, and their values differ.

    Columns with one common value may be intentional: ones, or counts that are all zero.
    """
    return (
        len(record.shape) == 2
        and record.num_rows >= settings.min_table_rows
        and len(record.columns) == record.shape[-1]
        and len(constant_columns)
        >= max(settings.min_constant_columns, settings.min_constant_share * len(record.columns))
        and len({c.smallest for c in constant_columns}) > 1
    )


def _find_varying_in_evaluation(
    settings: ConstantColumnSettings,
    constant_columns: list[ColumnRecord],
    training: InputRecord,
    evaluations: list[InputRecord],
) -> list[ColumnRecord]:
    """Return the constant columns that vary in an evaluation.

    Only the first evaluation that is distributed like training is compared.
    """
    for record in evaluations:
        by_index = {c.column: c for c in record.columns}
        if record.num_rows >= settings.min_rows // 4 and _is_distributed_like_training(
            settings, training, by_index
        ):
            return [
                c
                for c in constant_columns
                if c.column in by_index and _varies(settings, by_index[c.column])
            ]
    return []


def _varies(settings: ConstantColumnSettings, column: ColumnRecord) -> bool:
    value_range = column.largest - column.smallest
    return value_range > 0 and column.std / value_range > settings.min_relative_std


def _is_distributed_like_training(
    settings: ConstantColumnSettings, training: InputRecord, evaluation: Mapping[int, ColumnRecord]
) -> bool:
    """Whether most columns of an evaluation have about the mean and std of training."""
    pairs = [
        (t, evaluation[t.column]) for t in training.columns if t.std and t.column in evaluation
    ]
    num_similar = sum(
        abs(e.mean - t.mean) < settings.max_mean_difference * t.std
        and 1 / settings.max_std_ratio < e.std / t.std < settings.max_std_ratio
        for t, e in pairs
    )
    return 2 * num_similar > len(pairs)


def _is_standardized(settings: ConstantColumnSettings, column: ColumnRecord) -> bool:
    low, high = settings.standardized_std_range
    return abs(column.mean) < settings.max_standardized_mean and low < column.std < high


def _are_varying_columns_standardized(
    settings: ConstantColumnSettings, record: InputRecord
) -> bool:
    """Whether all columns that vary are standardized."""
    return all(_is_standardized(settings, c) for c in record.columns if c.largest > c.smallest)


def _is_between_standardized(
    settings: ConstantColumnSettings, column: ColumnRecord, record: InputRecord
) -> bool:
    """Whether a column of zeros is between two standardized columns of a table.

    All other columns must be standardized, 0/1 or constant. Zeros between 0/1 columns do not count:
    they may be a category without any row.
    """
    if len(record.shape) != 2 or column.smallest:
        return False
    standardized = {
        c.column for c in record.columns if _is_standardized(settings, c) and c.smallest < 0
    }
    has_unscaled_column = any(
        c.column not in standardized
        and c.smallest != c.largest
        and (c.smallest, c.largest) != (0, 1)
        for c in record.columns
    )
    return not has_unscaled_column and {column.column - 1, column.column + 1} <= standardized


def _are_isolated(
    settings: ConstantColumnSettings, constant_columns: list[ColumnRecord], record: InputRecord
) -> bool:
    """Whether the constant columns of a narrow table are few and adjacent, and one is always 0.

    The table must come from a loader. Two constant columns must have different values, such as the
    sine and cosine of an hour that is always midnight. Columns next to a 0/1 column do not count:
    they may be categories without any row.
    """
    positions = [c.column for c in constant_columns]
    values = {c.smallest for c in constant_columns}
    first, last = min(positions), max(positions)
    if (
        record.loader < 0
        or len(record.shape) != 2
        or record.num_rows < settings.min_table_rows
        or not len(record.columns) == record.shape[1] <= settings.max_narrow_columns
        or len(constant_columns) > settings.max_isolated_columns
        or last - first != len(values) - 1  # not adjacent, or with equal values
        or 0 not in values
    ):
        return False
    return not any(
        (c.smallest, c.largest) == (0, 1)
        for c in record.columns
        if c.column in (first - 1, last + 1)
    )


def _do_neighbors_vary(
    settings: ConstantColumnSettings, column: ColumnRecord, record: InputRecord
) -> bool:
    """Whether both neighbors of a constant position of an image or curve vary.

    Only inputs whose standard deviations change gradually from position to position are checked. At
    the unused border of an image only one neighbor varies, so the border is not reported.
    """
    if len(record.shape) > 2 and min(record.shape[-2:]) < settings.min_image_side:
        return False
    stds = {c.column: c.std for c in record.columns}
    neighbor_stds = [stds[i] for i in (column.column - 1, column.column + 1) if i in stds]
    std_pairs = [(stds[i], stds[j]) for i, j in pairwise(sorted(stds)) if stds[i] and stds[j]]
    if len(neighbor_stds) < 2 or len(std_pairs) < settings.min_neighbor_pairs:
        return False
    left, right = zip(*std_pairs, strict=True)
    if len(set(left)) < 2 or len(set(right)) < 2:
        return False  # the correlation of a constant is undefined
    if correlation(left, right) < settings.min_neighbor_correlation:
        return False
    typical_std = median(std for std in stds.values() if std)
    return min(neighbor_stds) > settings.min_neighbor_std_ratio * typical_std


CONSTANT_COLUMN = Rule(
    name="every input column varies",
    fault="constant column",
    priority=460,
    requires="200 training rows of floats with at least five columns.",
    contradicted_by="A column that is reserved for later use.",
    abstains="Another network returns rows of this shape, such as an encoder with an inactive "
    "feature; there is no sign of missing values, such as standardized columns beside the constant "
    "one or other values in an evaluation; the column belongs to the unused border of an image; or "
    "the network is trained on several loaders. Several constant columns of a standardized table "
    "with more than 32 columns need confirmation.",
    settings=ConstantColumnSettings(),
    judge=_judge,
)
