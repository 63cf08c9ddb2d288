"""Detects evaluation inputs that are preprocessed differently from training inputs."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import ColumnRecord, InputRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.evaluation_inputs import (
    consistent_difference,
    training_and_evaluation_inputs,
)
from sluice.trace.rules._helpers.loss_calls import network_name


class PreprocessingSkewSettings(Settings):
    """Thresholds of the rule ``PREPROCESSING_SKEW``.

    For each column, the rule computes the difference of the means in training and evaluation, and
    the ratio of the standard deviations (evaluation / training). If all columns are compared
    together, the medians of the differences and of the logarithms of the ratios are used.
    """

    min_rows: int = Field(
        48,
        ge=2,
        description="A finding requires at least this number of training rows, and at least this "
        "number of evaluation rows.",
    )
    min_columns: int = Field(
        1, ge=1, description="Inputs are compared only if at least this number of columns vary."
    )
    min_log_scale: float = Field(
        math.log(2.2),
        gt=0,
        description="Columns count as scaled differently if the absolute value of the logarithm "
        "of the ratio of their standard deviations is above this number.",
    )
    min_shift: float = Field(
        1.0,
        gt=0,
        description="Columns count as shifted if the difference of their means is above this "
        "number [std of the training inputs].",
    )
    min_shift_of_stretched: float = Field(
        2.5,
        gt=0,
        description="A stretched column counts as shifted, too, if the difference of its means is "
        "above this number [std of the training inputs]. A column is stretched if the logarithm "
        "of the ratio of its standard deviations is above min_log_scale.",
    )
    max_unchanged_shift: float = Field(
        0.3,
        gt=0,
        description="A column counts as unchanged only if the difference of its means is below "
        "this number [std of the training inputs].",
    )
    max_unchanged_log_scale: float = Field(
        math.log(1.5),
        gt=0,
        description="A column counts as unchanged only if the absolute value of the logarithm of "
        "the ratio of its standard deviations is below this number.",
    )
    min_columns_for_partial_change: int = Field(
        4,
        ge=1,
        description="A finding that only some columns are shifted and stretched requires at least "
        "this number of columns. The unchanged columns show that the rows are from the same "
        "distribution.",
    )
    min_conclusive_shift: float = Field(
        6.0,
        gt=0,
        description="No drift explains a difference of the means above this number [std of the "
        "training inputs]. The number applies if the level drifts, and to columns whose ranges in "
        "training and evaluation are disjoint. With a linear trend, the difference is about 2 for "
        "rows just after training.",
    )
    max_relative_change: float = Field(
        1.2,
        gt=0,
        description="The level counts as drifting if the root mean square change from one row to "
        "the next is below this number [std of the evaluation inputs]. For independent rows, this "
        "change is 1.4.",
    )
    max_drift_log_scale: float = Field(
        math.log(8),
        description="A drifting level explains a logarithm of the ratio of the standard "
        "deviations that is below this number.",
    )
    min_drift_log_scale: float = Field(
        -math.log(50),
        description="A drifting level explains a logarithm of the ratio of the standard "
        "deviations that is above this number. The number is far below 0, because a short "
        "evaluation covers only a small part of a series.",
    )


class _ColumnDifference(NamedTuple):
    """Differences of some columns, or of some channels, between training and evaluation."""

    kind: str
    """'column' or 'channel'."""
    pairs: list[tuple[ColumnRecord, ColumnRecord]]
    """Statistics of each column in training and in evaluation."""

    @property
    def shift(self) -> float:
        """Median absolute difference of the means, in standard deviations of training."""
        return median(_shift(t, e) for t, e in self.pairs)

    @property
    def log_scale(self) -> float:
        """Median logarithm of the ratio of the standard deviations."""
        return median(_log_scale(t, e) for t, e in self.pairs)


def _judge(rule: Rule[PreprocessingSkewSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for training, evaluations in training_and_evaluation_inputs(
        trace, min_rows=rule.settings.min_rows
    ):
        match = consistent_difference(
            evaluations, partial(_find_difference, rule.settings, training)
        )
        if match is not None:
            evaluation, difference = match
            findings.append(_build_finding(rule, trace, training, evaluation, difference))
    return tuple(findings)


def _find_difference(
    settings: PreprocessingSkewSettings, training: InputRecord, evaluation: InputRecord
) -> _ColumnDifference | None:
    """Return the difference of the channels or, if they do not differ, of the columns.

    None without a difference, or if the shapes of the inputs cannot be compared.
    """
    if training.shape[1:] != evaluation.shape[1:] and (
        training.by_position or training.shape[-1:] != evaluation.shape[-1:]
    ):
        return None
    return _compare_columns(
        settings, "channel", training.channels, evaluation.channels
    ) or _compare_columns(settings, "column", training.columns, evaluation.columns)


def _compare_columns(
    settings: PreprocessingSkewSettings,
    kind: str,
    training: Sequence[ColumnRecord],
    evaluation: Sequence[ColumnRecord],
) -> _ColumnDifference | None:
    """Return the difference of all columns if they differ as a whole.

    Otherwise, return the difference of the changed columns. None if no column changed, or if there
    are too few columns.
    """
    by_index = {column.column: column for column in evaluation}
    pairs = [
        (t, by_index[t.column])
        for t in training
        if t.column in by_index and t.std > 0 and by_index[t.column].std > 0
    ]
    # Leave out columns with little variation, such as the border of an image.
    typical_std = median(t.std for t, _ in pairs) if pairs else 0.0
    pairs = [(t, e) for t, e in pairs if t.std >= typical_std / 4]
    if len(pairs) < settings.min_columns:
        return None
    difference = _ColumnDifference(kind, pairs)
    if _is_beyond_drift(settings, difference):
        return difference
    changed_pairs = [
        (t, e) for t, e in pairs if _is_outside_any_trend(settings, t, e)
    ] or _find_rescaled_columns(settings, pairs)
    return _ColumnDifference(kind, changed_pairs) if changed_pairs else None


def _shift(training: ColumnRecord, evaluation: ColumnRecord) -> float:
    """Return the absolute difference of the means, in standard deviations of training."""
    return abs(evaluation.mean - training.mean) / training.std


def _log_scale(training: ColumnRecord, evaluation: ColumnRecord) -> float:
    """Return the logarithm of the ratio of the standard deviations."""
    return math.log(evaluation.std / training.std)


def _is_beyond_drift(settings: PreprocessingSkewSettings, difference: _ColumnDifference) -> bool:
    """Whether columns are shifted or scaled differently, and no drift explains the difference.

    If consecutive rows are similar, as for prices, the level drifts. A different level after the
    training rows is then no evidence of different preprocessing, unless the difference is too large
    for a drift.
    """
    shift, log_scale = difference.shift, difference.log_scale
    # ``ColumnRecord.step`` is the RMS change from one row to the next.
    relative_changes = [e.step / e.std for _, e in difference.pairs if not math.isnan(e.step)]
    if relative_changes and median(relative_changes) < settings.max_relative_change:
        return (
            shift > settings.min_conclusive_shift
            or not settings.min_drift_log_scale < log_scale < settings.max_drift_log_scale
        )
    return shift > settings.min_shift or abs(log_scale) > settings.min_log_scale


def _is_outside_any_trend(
    settings: PreprocessingSkewSettings, training: ColumnRecord, evaluation: ColumnRecord
) -> bool:
    """Whether the two ranges are disjoint, and no trend explains the difference of the means."""
    is_disjoint = evaluation.smallest > training.largest or evaluation.largest < training.smallest
    distance = abs(evaluation.mean - training.mean)
    return is_disjoint and distance > settings.min_conclusive_shift * training.std


def _find_rescaled_columns(
    settings: PreprocessingSkewSettings,
    pairs: list[tuple[ColumnRecord, ColumnRecord]],
) -> list[tuple[ColumnRecord, ColumnRecord]]:
    """Return columns that are both shifted and stretched, if most columns are unchanged.

    A stretched column has a larger standard deviation in the evaluation than in training. Both
    changes occur together if, for example, a logarithm is applied in training only. A trend shifts
    a column, but reduces its standard deviation in the rows after training. A rise in volatility
    only stretches a column. So both changes in few columns indicate different preprocessing.
    """
    if len(pairs) < settings.min_columns_for_partial_change:
        return []
    differences = [(_shift(t, e), _log_scale(t, e)) for t, e in pairs]
    num_unchanged = sum(
        shift < settings.max_unchanged_shift and abs(log_scale) < settings.max_unchanged_log_scale
        for shift, log_scale in differences
    )
    changed_pairs = [
        pair
        for pair, (shift, log_scale) in zip(pairs, differences, strict=True)
        if shift > settings.min_shift_of_stretched and log_scale > settings.min_log_scale
    ]
    return changed_pairs if 2 * num_unchanged > len(pairs) else []


def _position_text(kind: str, column: ColumnRecord, record: InputRecord) -> str:
    """Return the position of a column; in a row of several dimensions, one index per dimension."""
    shape = record.shape[1:]
    if kind != "column" or not record.by_position or len(shape) < 2:
        return str(column.column)
    positions, remaining = list[int](), column.column
    for size in reversed(shape):
        remaining, position = divmod(remaining, size)
        positions.append(position)
    return str(positions[::-1])


def _build_finding(
    rule: Rule[PreprocessingSkewSettings],
    trace: Trace,
    training: InputRecord,
    evaluation: InputRecord,
    difference: _ColumnDifference,
) -> TraceFinding:
    kind, pairs = difference
    shift, scale = difference.shift, math.exp(difference.log_scale)
    training_column, evaluation_column = max(pairs, key=lambda pair: _shift(*pair))
    return rule.finding(
        severity="error",
        step=max(evaluation.first_step, 1),  # first_step is 0 before the first optimizer step
        what=f"{network_name(trace, training.network)}: inputs are preprocessed differently in "
        f"the evaluation. {kind.capitalize()} {_position_text(kind, training_column, training)} "
        f"has mean {training_column.mean:.4g} and standard deviation {training_column.std:.4g} in "
        f"training ({training.num_rows} rows), and mean {evaluation_column.mean:.4g} and "
        f"standard deviation {evaluation_column.std:.4g} in the evaluation ({evaluation.num_rows} "
        f"rows). Over {pluralize(len(pairs), kind)}, the median shift is {shift:.2g} standard "
        f"deviations, and the median ratio of the standard deviations is {scale:.3g}.",
        cause="The scores refer to inputs that differ from the training inputs.",
        fix="Fit one preprocessing on the training rows, and use it for training and evaluation.",
        confidence=0.97,
        shift=shift,
        scale=scale,
        num_columns=len(pairs),
    )


PREPROCESSING_SKEW = Rule(
    name="evaluation inputs are preprocessed like training inputs",
    fault="preprocessing skew",
    priority=570,
    requires="48 training rows of floats, and 48 evaluation rows.",
    contradicted_by="An evaluation that intentionally uses data of another kind.",
    abstains="Consecutive rows are similar, as in a time series, and a drift explains the "
    "difference from training; another evaluation of the network matches training; the network is "
    "trained on several loaders or on the output of another network; or the evaluation inputs "
    "were generated by a network or a sampler.",
    settings=PreprocessingSkewSettings(),
    judge=_judge,
)
