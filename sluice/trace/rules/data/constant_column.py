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
        description="Minimum number of training rows for a finding. An evaluation is compared if "
        "it has at least a quarter of this number.",
    )
    min_table_rows: int = Field(
        1000,
        ge=1,
        description="Minimum number of training rows for a finding about a missing part of a "
        "table, or about isolated constant columns.",
    )
    min_constant_columns: int = Field(
        3,
        ge=1,
        description="Minimum number of constant columns for a part of a table to count as missing.",
    )
    min_constant_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Minimum share of constant columns among all columns for a part of a table to "
        "count as missing.",
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
        description="Maximum number of adjacent constant columns that count as isolated. Two may "
        "be the sine and cosine of one time.",
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
    min_correlation: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Minimum correlation between the standard deviations of neighboring "
        "positions, for the deviations to count as changing gradually.",
    )
    min_neighbor_pairs: int = Field(
        16,
        ge=2,
        description="Minimum number of pairs of neighboring positions to compute the correlation "
        "of their standard deviations.",
    )
    min_image_side: int = Field(
        6,
        ge=2,
        description="Minimum length of the shorter side of an image [pixels]. Smaller inputs are "
        "patches.",
    )
    min_neighbor_std: float = Field(
        0.4,
        gt=0,
        description="Minimum ratio of a neighbor's standard deviation to the median over all "
        "positions, for the neighbor to count as varying.",
    )


_MAX_LISTED = 8
"""Maximum number of columns that the message lists."""


def _judge(rule: Rule[ConstantColumnSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in sorted({record.network for record in trace.inputs}):
        records = latest_input_records(trace, network).values()
        training = [record for record in records if record.is_learning]
        evaluations = [record for record in records if not record.is_learning]
        if (
            len(training) != 1
            or training[0].num_rows < rule.settings.min_rows
            or training[0].matches_model_output
        ):
            continue
        finding = _detect_constant_columns(rule, trace, training[0], evaluations)
        if finding is not None:
            findings.append(finding)
    return tuple(findings)


def _detect_constant_columns(
    rule: Rule[ConstantColumnSettings],
    trace: Trace,
    training: InputRecord,
    evaluations: list[InputRecord],
) -> TraceFinding | None:
    outermost = {0, max((c.column for c in training.columns), default=0)}
    constant = [
        c
        for c in training.columns
        # A column of ones at either end is an intercept.
        if c.smallest == c.largest and not (c.smallest == 1 and c.column in outermost)
    ]
    if (
        not constant
        or len(training.columns) < rule.settings.min_columns
        or len(constant) == len(training.columns)
    ):
        return None
    is_narrow = len(training.columns) <= rule.settings.max_narrow_columns
    for reason, columns in (
        (
            "they are a large part of the table, and their constants differ",
            constant if _is_missing_part(rule.settings, constant, training) else [],
        ),
        (
            "the evaluation contains other values there",
            _columns_varying_in_evaluation(rule.settings, constant, training, evaluations),
        ),
        (
            "all others are standardized",
            constant if _are_others_standardized(rule.settings, training) else [],
        ),
        (
            "the columns on both sides are standardized",
            [c for c in constant if _is_between_standardized(rule.settings, c, training)],
        ),
        (
            "no other column is constant",
            constant if _is_isolated(rule.settings, constant, training) else [],
        ),
        (
            "the neighboring columns vary",
            [c for c in constant if _do_neighbors_vary(rule.settings, c, training)],
        ),
    ):
        if columns:
            # A scaler also produces a constant 0 for pixels or words that never occur.
            may_be_intentional = "standardized" in reason and len(columns) > 1 and not is_narrow
            column = columns[0]
            listed = list_numbers([c.column for c in columns[:_MAX_LISTED]], len(columns))
            num_columns = (
                math.prod(training.shape[1:]) if training.by_position else training.shape[-1]
            )
            subject = (
                f"column {listed} of {num_columns} is {column.smallest:.4g}"
                if len(columns) == 1
                else f"columns {listed} of {num_columns} are constant, the first one "
                f"{column.smallest:.4g},"
            )
            return rule.finding(
                severity="confirm" if may_be_intentional else "error",
                step=training.first_step + 1,
                what=f"{network_name(trace, training.network)}: {subject} in all "
                f"{training.num_rows} sampled rows, from the first batch on, and {reason}.",
                cause="The network receives no information from a constant column.",
                fix="Check the preprocessing step that fills or drops values.",
                confidence=0.5 if may_be_intentional else 0.9,
                column=column.column,
                num_columns=len(columns),
                num_rows=training.num_rows,
            )
    return None


def _is_missing_part(
    settings: ConstantColumnSettings, constant: list[ColumnRecord], record: InputRecord
) -> bool:
    """Whether a large part of the columns of a table is constant, and their constants differ.

    A part with one constant may be intentional: ones, or zeros where nothing was counted.
    """
    return (
        len(record.shape) == 2
        and record.num_rows >= settings.min_table_rows
        and len(record.columns) == record.shape[-1]
        and len(constant)
        >= max(settings.min_constant_columns, settings.min_constant_share * len(record.columns))
        and len({c.smallest for c in constant}) > 1
    )


def _columns_varying_in_evaluation(
    settings: ConstantColumnSettings,
    constant: list[ColumnRecord],
    training: InputRecord,
    evaluations: list[InputRecord],
) -> list[ColumnRecord]:
    """Return the columns that vary in the first evaluation on similarly distributed rows."""
    for record in evaluations:
        columns = {c.column: c for c in record.columns}
        if record.num_rows < settings.min_rows // 4 or not _is_similarly_distributed(
            settings, training, columns
        ):
            continue
        return [c for c in constant if c.column in columns and _varies(settings, columns[c.column])]
    return []


def _varies(settings: ConstantColumnSettings, column: ColumnRecord) -> bool:
    value_range = column.largest - column.smallest
    return value_range > 0 and column.std / value_range > settings.min_relative_std


def _is_similarly_distributed(
    settings: ConstantColumnSettings, training: InputRecord, evaluation: Mapping[int, ColumnRecord]
) -> bool:
    """Whether most columns are distributed as in training: the rows are of the same task."""
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


def _are_others_standardized(settings: ConstantColumnSettings, record: InputRecord) -> bool:
    return all(_is_standardized(settings, c) for c in record.columns if c.largest > c.smallest)


def _is_between_standardized(
    settings: ConstantColumnSettings, column: ColumnRecord, record: InputRecord
) -> bool:
    """Whether a column of zeros is between two standardized columns.

    All other columns of the table must be standardized, 0/1 or constant. A category without any row
    is surrounded by other 0/1 columns.
    """
    if len(record.shape) != 2 or column.smallest:
        return False
    standardized = {
        c.column for c in record.columns if _is_standardized(settings, c) and c.smallest < 0
    }
    has_other_columns = any(
        c.column not in standardized
        and c.smallest != c.largest
        and (c.smallest, c.largest) != (0, 1)
        for c in record.columns
    )
    return not has_other_columns and {column.column - 1, column.column + 1} <= standardized


def _is_isolated(
    settings: ConstantColumnSettings, constant: list[ColumnRecord], record: InputRecord
) -> bool:
    """Whether one or two neighboring columns of a narrow table are constant, one of them at 0.

    The table must come from a loader. Two constant columns must have different values, such as the
    sine and cosine of an hour that is always midnight. Columns next to a 0/1 column do not count:
    they may be categories without any row.
    """
    positions, values = [c.column for c in constant], {c.smallest for c in constant}
    if (
        len(constant) > settings.max_isolated_columns
        or 0 not in values
        or len(record.shape) != 2
        or record.loader < 0
    ):
        return False
    if max(positions) - min(positions) != len(values) - 1:
        return False
    is_complete = len(record.columns) == record.shape[1] <= settings.max_narrow_columns
    neighbors = (min(positions) - 1, max(positions) + 1)
    is_next_to_binary = any(
        (c.smallest, c.largest) == (0, 1) for c in record.columns if c.column in neighbors
    )
    return is_complete and record.num_rows >= settings.min_table_rows and not is_next_to_binary


def _do_neighbors_vary(
    settings: ConstantColumnSettings, column: ColumnRecord, record: InputRecord
) -> bool:
    """Whether a position of an image or curve is constant while both neighbors vary.

    Only inputs whose standard deviations change gradually from position to position are checked. At
    the unused border of an image only one neighbor varies, so the border is not reported.
    """
    if len(record.shape) > 2 and min(record.shape[-2:]) < settings.min_image_side:
        return False  # patches or short vectors: adjacent positions are not neighbors
    stds = {c.column: c.std for c in record.columns}
    neighbor_stds = [stds[i] for i in (column.column - 1, column.column + 1) if i in stds]
    std_pairs = [(stds[i], stds[j]) for i, j in pairwise(sorted(stds)) if stds[i] and stds[j]]
    if len(neighbor_stds) < 2 or len(std_pairs) < settings.min_neighbor_pairs:
        return False
    left, right = zip(*std_pairs, strict=True)
    if (
        len(set(left)) < 2
        or len(set(right)) < 2
        or correlation(left, right) < settings.min_correlation
    ):
        return False
    return min(neighbor_stds) > settings.min_neighbor_std * median(s for s in stds.values() if s)


CONSTANT_COLUMN = Rule(
    name="every input column varies",
    fault="constant column",
    priority=460,
    requires="200 training rows of numbers in at least five columns.",
    contradicted_by="A column that is reserved for later use.",
    abstains="Another network returns rows of this shape, such as an encoder with an inactive "
    "feature; the other columns are not standardized, and nothing else shows that values are "
    "missing; the column belongs to the unused border of an image; or the network is trained on "
    "several loaders. Several constant columns of a standardized table with more than 32 columns "
    "need confirmation.",
    settings=ConstantColumnSettings(),
    judge=_judge,
)
