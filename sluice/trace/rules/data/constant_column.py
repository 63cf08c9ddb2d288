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
        description="A finding requires at least this number of sampled training rows. An "
        "evaluation is compared only if at least a quarter of this number of its rows were "
        "sampled.",
    )
    min_table_rows: int = Field(
        1000,
        ge=1,
        description="Two kinds of findings require at least this number of sampled training rows: "
        "that a large part of a table's columns is constant, and that only one or two adjacent "
        "columns of a narrow table are constant.",
    )
    min_constant_columns: int = Field(
        3,
        ge=1,
        description="Constant columns count as a large part of a table only if there are at least "
        "this number of them.",
    )
    min_constant_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Constant columns count as a large part of a table only if they are at least "
        "this share of all its columns.",
    )
    max_mean_difference: float = Field(
        0.5,
        gt=0,
        description="A column counts as similar in training and in an evaluation only if its two "
        "means differ by less than this number [std of the training rows].",
    )
    max_std_ratio: float = Field(
        1.5,
        gt=1,
        description="A column counts as similar in training and in an evaluation only if the "
        "ratio of its larger to its smaller standard deviation is below this number.",
    )
    min_std_to_range_ratio: float = Field(
        0.15,
        gt=0,
        description="A column counts as varying in an evaluation only if the ratio of its "
        "standard deviation to its range is above this number. With a lower ratio, only a few "
        "rows differ from the rest.",
    )
    max_isolated_columns: int = Field(
        2,
        ge=1,
        description="Constant columns count as isolated only if they are adjacent and at most "
        "this number. Two adjacent columns may be the sine and cosine of one time of day.",
    )
    max_narrow_columns: int = Field(
        32,
        ge=1,
        description="A table counts as narrow if it has at most this number of columns. In a "
        "wider table, isolated constant columns are not reported, and a finding about several "
        "constant columns among standardized columns needs confirmation.",
    )
    max_standardized_mean: float = Field(
        0.3,
        gt=0,
        description="A column counts as standardized only if the absolute value of its mean is "
        "below this number.",
    )
    standardized_std_range: tuple[float, float] = Field(
        (0.6, 1.6),
        description="A column counts as standardized only if its standard deviation is between "
        "these two limits.",
    )
    min_columns: int = Field(
        5, ge=2, description="A finding requires at least this number of input columns."
    )
    min_neighbor_correlation: float = Field(
        0.3,
        gt=0,
        le=1,
        description="An input counts as an image or a curve only if the standard deviations of "
        "neighboring positions have at least this correlation. In an image or a curve, the "
        "standard deviation changes gradually from position to position.",
    )
    min_neighbor_pairs: int = Field(
        16,
        ge=2,
        description="The correlation between neighboring positions is computed from at least this "
        "number of pairs of varying positions. With fewer pairs, an input does not count as an "
        "image or a curve.",
    )
    min_image_side: int = Field(
        6,
        ge=2,
        description="An input of more than two dimensions counts as an image or a curve only if "
        "each of its last two dimensions has at least this length. A smaller input may be a patch "
        "or a short vector.",
    )
    min_neighbor_std_ratio: float = Field(
        0.4,
        gt=0,
        description="The neighbors of a constant position count as varying only if their standard "
        "deviations exceed this multiple of the median standard deviation of all varying "
        "positions.",
    )


_MAX_LISTED_COLUMNS = 8
"""Maximum number of columns whose indices the message lists."""


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
    end_column_indices = {0, max((c.column for c in training.columns), default=0)}
    constant_columns = [
        c
        for c in training.columns
        # Leave out a column of ones at either end: it is an intercept.
        if c.smallest == c.largest and not (c.smallest == 1 and c.column in end_column_indices)
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
        if _are_large_part_of_table(settings, constant_columns, training)
        else [],
        "the values vary in an evaluation": _find_varying_in_evaluation(
            settings, constant_columns, training, evaluations
        ),
        "all columns that vary are standardized": constant_columns
        if _are_varying_columns_standardized(settings, training)
        else [],
        "the adjacent columns are standardized": [
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
    # In a wide table, several constant columns among standardized columns are not conclusive: a
    # scaler maps pixels or words that never occur to a constant 0.
    is_wide = len(training.columns) > rule.settings.max_narrow_columns
    may_be_intentional = is_wide and "standardized" in reason and len(columns) > 1
    first_column = columns[0]
    indices_text = list_numbers([c.column for c in columns[:_MAX_LISTED_COLUMNS]], len(columns))
    num_input_columns = (
        math.prod(training.shape[1:]) if training.by_position else training.shape[-1]
    )
    observation = (
        f"column {indices_text} of {num_input_columns} is {first_column.smallest:.4g}"
        if len(columns) == 1
        else f"columns {indices_text} of {num_input_columns} are constant (the first is "
        f"always {first_column.smallest:.4g})"
    )
    return rule.finding(
        severity="confirm" if may_be_intentional else "error",
        step=training.first_step + 1,
        what=f"{network_name(trace, training.network)}: {observation} in all {training.num_rows} "
        f"sampled rows, from the first batch on, and {reason}.",
        cause="The network receives no information from a constant column.",
        fix="Check the preprocessing step that fills or drops values.",
        confidence=0.5 if may_be_intentional else 0.9,
        column=first_column.column,
        num_columns=len(columns),
        num_rows=training.num_rows,
    )


def _are_large_part_of_table(
    settings: ConstantColumnSettings, constant_columns: list[ColumnRecord], record: InputRecord
) -> bool:
    """Whether the constant columns are a large part of a table, and their values differ.

    A value that all constant columns share may be intentional, such as 1, or 0 for a count.
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

    Only one evaluation is compared: the first one with enough rows and a similar distribution.
    """
    for record in evaluations:
        evaluation_columns = {c.column: c for c in record.columns}
        if record.num_rows >= settings.min_rows // 4 and _has_similar_distribution(
            settings, training, evaluation_columns
        ):
            return [
                c
                for c in constant_columns
                if c.column in evaluation_columns
                and _varies(settings, evaluation_columns[c.column])
            ]
    return []


def _varies(settings: ConstantColumnSettings, column: ColumnRecord) -> bool:
    value_range = column.largest - column.smallest
    return value_range > 0 and column.std / value_range > settings.min_std_to_range_ratio


def _has_similar_distribution(
    settings: ConstantColumnSettings, training: InputRecord, evaluation: Mapping[int, ColumnRecord]
) -> bool:
    """Whether most columns that vary in training have a similar mean and std in an evaluation."""
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

    All other columns must be standardized, 0/1 or constant. A column of zeros next to a 0/1 column
    does not count, because it may be the one-hot column of a category without rows.
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
    """Whether the constant columns of a narrow table are few and adjacent, and one of them is 0.

    The rows must come from a loader. Two constant columns must have different values, such as the
    sine and cosine of an hour that is always midnight. Constant columns next to a 0/1 column do not
    count, because they may be one-hot columns of categories without rows.
    """
    indices = [c.column for c in constant_columns]
    values = {c.smallest for c in constant_columns}
    first_index, last_index = min(indices), max(indices)
    if (
        record.loader < 0
        or len(record.shape) != 2
        or record.num_rows < settings.min_table_rows
        or not len(record.columns) == record.shape[1] <= settings.max_narrow_columns
        or len(constant_columns) > settings.max_isolated_columns
        or last_index - first_index != len(values) - 1  # not adjacent, or equal values
        or 0 not in values
    ):
        return False
    return not any(
        (c.smallest, c.largest) == (0, 1)
        for c in record.columns
        if c.column in (first_index - 1, last_index + 1)
    )


def _do_neighbors_vary(
    settings: ConstantColumnSettings, column: ColumnRecord, record: InputRecord
) -> bool:
    """Whether both neighbors of a constant position of an image or curve vary.

    The standard deviation must change gradually from position to position. At the unused border of
    an image only one neighbor varies, so the border is not reported.
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
    requires="200 training rows of at least five columns of floats.",
    contradicted_by="A column that is reserved for later use.",
    abstains="Another network returns rows of this shape, so the column may be an inactive "
    "feature of an encoder; nothing indicates that values are missing, for example because no "
    "evaluation has other values in the column; the column is at the unused border of an image; "
    "or the network is trained on several loaders. Several constant columns of a standardized "
    "table with more than 32 columns need confirmation.",
    settings=ConstantColumnSettings(),
    judge=_judge,
)
