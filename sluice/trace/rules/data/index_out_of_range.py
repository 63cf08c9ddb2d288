"""Detects indices outside their table, and classes that are numbered incorrectly."""

import math

from pydantic import Field

from sluice.base.format_range import format_range
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.losses import LossRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import (
    CLASS_LOSSES,
    group_by_function,
    network_name,
    training_loss_calls,
)


class IndexOutOfRangeSettings(Settings):
    """Thresholds of the rule ``INDEX_OUT_OF_RANGE``."""

    min_rows_per_class: int = Field(
        20,
        ge=1,
        description="A finding about classes that are numbered from -1 or from 1 requires at "
        "least this number of rows per class, on average.",
    )
    min_rows: int = Field(
        200,
        ge=1,
        description="A finding about classes that are numbered from 1 requires at least this "
        "number of rows. A finding about clamped indices requires at least this number of "
        "indices.",
    )
    max_classes: int = Field(
        1000,
        ge=2,
        description="A finding about classes that are numbered from 1 requires at most this "
        "number of outputs. More outputs usually are a vocabulary of tokens.",
    )
    min_rows_of_other_classes: int = Field(
        10,
        ge=1,
        description="A finding about a column of one-hot targets that is never 1 requires that "
        "every other column is 1 in at least this number of rows.",
    )
    min_clamped_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="A finding about clamped indices requires that the network clamps at least "
        "this share of the indices to the last row of the table. A smaller share may be rare "
        "indices that share this row intentionally.",
    )
    max_buckets: int = Field(
        128,
        ge=1,
        description="For a table of at most this number of rows, a finding about clamped indices "
        "needs confirmation: each row may be a bucket of a quantity, and large values share the "
        "last bucket intentionally. For a larger table, the finding has severity 'error'.",
    )


_BINARY_LOSSES = ("binary_cross_entropy_with_logits", "binary_cross_entropy")


def _detect_rejected_ids(rule: Rule[IndexOutOfRangeSettings], trace: Trace) -> list[TraceFinding]:
    """Detect ids that an embedding or a class loss rejects; one finding for each function."""
    findings_by_kind: dict[str, TraceFinding] = {}
    for record in trace.out_of_range_indices:
        if record.kind in findings_by_kind or record.kind in ("index", "class index", "clamped"):
            continue
        is_embedding = record.kind == "embedding"
        if record.smallest >= 0:
            min_size = record.largest + 1
            size_text = f"a table of {min_size} rows" if is_embedding else f"{min_size} outputs"
            fix = f"Use {size_text}, or number the ids from 0."
        elif is_embedding:
            fix = "Number the ids from 0, and reserve one id for padding instead of -1."
        else:
            fix = "Number the ids from 0, and mark ignored targets with ignore_index, not with -1."
        findings_by_kind[record.kind] = rule.finding(
            severity="error",
            step=record.step + 1,
            what=f"{record.kind}: {record.num_outside} of {record.num_ids} "
            f"{'' if is_embedding else 'class '}ids are outside 0 to {record.num_allowed - 1}; "
            f"the range of all ids is {format_range(record.smallest, record.largest)}.",
            cause="On a CPU, the call raises IndexError. On a GPU, a device-side assertion fails, "
            "and the error is often reported by a later call.",
            fix=fix,
            num_outside=record.num_outside,
            smallest=record.smallest,
            largest=record.largest,
            num_allowed=record.num_allowed,
        )
    return list(findings_by_kind.values())


def _detect_negative_indices(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect negative indices that select a row that non-negative indices select, too.

    A negative index selects a row from the end of the table.
    """
    first_record = next(
        (r for r in trace.out_of_range_indices if r.kind == "index" and r.num_shared), None
    )
    if first_record is None:
        return []
    return [
        rule.finding(
            severity="error",
            step=first_record.step + 1,
            what=f"{first_record.num_outside} of {first_record.num_ids} ids that index a table of "
            f"{first_record.num_allowed} rows are negative, down to {first_record.smallest}. They "
            f"select rows from the end of the table; {first_record.num_shared:,} of these rows "
            f"{'is' if first_record.num_shared == 1 else 'are'} also selected by non-negative ids.",
            cause="An id that means 'none' or 'unknown' shares a row with another id, so the "
            "network cannot distinguish the two.",
            fix="Use a separate row for unknown ids: add 1 to all ids and a row to the table.",
            num_outside=first_record.num_outside,
            num_shared=first_record.num_shared,
            num_allowed=first_record.num_allowed,
        )
    ]


def _detect_clamped_indices(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect networks that clamp a large share of the indices to the last row of a table."""
    findings = []
    records = [r for r in trace.out_of_range_indices if r.kind == "clamped"]
    for network, num_allowed in sorted({(r.network, r.num_allowed) for r in records}):
        table_records = [r for r in records if (r.network, r.num_allowed) == (network, num_allowed)]
        num_outside = sum(r.num_outside for r in table_records)
        num_ids = sum(r.num_ids for r in table_records)
        if (
            num_outside < rule.settings.min_clamped_share * num_ids
            or num_ids < rule.settings.min_rows
        ):
            continue
        largest = max(r.largest for r in table_records)
        findings.append(
            rule.finding(
                severity="error" if num_allowed > rule.settings.max_buckets else "confirm",
                step=table_records[0].step + 1,
                what=f"{network_name(trace, network)} received ids up to {largest} for a table of "
                f"{num_allowed} rows. It mapped all ids from {num_allowed} on, {num_outside} of "
                f"{num_ids}, to row {num_allowed - 1}.",
                cause="These ids share one row and cannot be distinguished.",
                fix=f"Use a table of {largest + 1} rows, or number the ids without gaps.",
                num_outside=num_outside,
                num_ids=num_ids,
                num_allowed=num_allowed,
                largest=largest,
            )
        )
    return findings


def _detect_classes_from_minus_one(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect classes that are numbered from -1 to C - 2 instead of 0 to C - 1, for C outputs.

    If -1 meant 'none', the last class, C - 1, would occur as well.
    """
    records = [r for r in trace.out_of_range_indices if r.kind == "class index"]
    if not records or any(r.num_shared or r.smallest != -1 for r in records):
        return []
    first_record, largest = records[0], max(r.largest for r in records)
    num_ids = sum(r.num_ids for r in records)
    # With few rows, the last class may be missing by chance.
    if (
        largest != first_record.num_allowed - 2
        or num_ids < rule.settings.min_rows_per_class * first_record.num_allowed
    ):
        return []
    return [
        rule.finding(
            severity="error",
            step=first_record.step + 1,
            what=f"A custom loss indexed {first_record.num_allowed} outputs with -1, which selects "
            f"the last output, for {first_record.num_outside} of {first_record.num_ids} targets; "
            f"target {largest + 1} is not among the {num_ids} recorded targets.",
            cause="The class numbers are one too low, so the first class is learned as the last.",
            fix="Number the classes from 0.",
            num_outside=first_record.num_outside,
            num_allowed=first_record.num_allowed,
        )
    ]


def _detect_targets_outside_unit_interval(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect targets of a binary loss outside [0, 1], such as 1 and 2 for two classes."""
    findings = []
    for (kind, _), records in group_by_function(
        training_loss_calls(trace, *_BINARY_LOSSES)
    ).items():
        outside_records = [r for r in records if r.target_smallest < 0 or r.target_largest > 1]
        if not outside_records:
            continue
        low = min(r.target_smallest for r in outside_records)
        high = max(r.target_largest for r in outside_records)
        findings.append(
            rule.finding(
                severity="error",
                step=outside_records[0].step + 1,
                what=f"{kind} received targets outside [0, 1]: the targets range from {low:.4g} to "
                f"{high:.4g} in {len(outside_records)} of {len(records)} sampled calls.",
                cause="The loss has no lower bound for such targets: outputs grow without limit."
                if kind == "binary_cross_entropy_with_logits"
                else "The loss is defined only for targets in [0, 1]; recent versions of torch "
                "raise an error for other targets.",
                fix="Use the targets 0 and 1 for the two classes.",
                smallest=low,
                largest=high,
            )
        )
    return findings


def _detect_classes_from_one(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect classes from 1 to C - 1, for C outputs, so that class 0 never occurs."""
    findings = []
    for (kind, _), records in group_by_function(training_loss_calls(trace, *CLASS_LOSSES)).items():
        if not all(_has_class_targets(rule.settings, r) for r in records):
            continue
        num_classes = records[0].input_shape[1]
        num_rows = sum(r.num_supervised for r in records)
        low, high = min(r.target_smallest for r in records), max(r.target_largest for r in records)
        if (
            low != 1
            or high != num_classes - 1
            or num_rows
            < max(rule.settings.min_rows_per_class * num_classes, rule.settings.min_rows)
        ):
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=records[0].step + 1,
                what=f"{kind}: {num_rows} targets range from 1 to {high:.0f} and are never 0, for "
                f"{num_classes} outputs.",
                cause="Output 0 belongs to no class. A list of class names that is indexed by the "
                "output is shifted by one.",
                fix="Number the classes from 0.",
                num_targets=num_rows,
                num_classes=num_classes,
            )
        )
    return findings


def _detect_missing_one_hot_column(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect one-hot targets without a column for one class, so that its rows contain no 1."""
    findings = []
    for (kind, network), records in group_by_function(
        training_loss_calls(trace, *CLASS_LOSSES)
    ).items():
        evaluation_records = [
            r for r in trace.losses if r.kind == kind and r.network == network and not r.is_learning
        ]
        # Evaluation rows are preferred. Training rows may contain no 1 on purpose, because they are
        # unlabeled or mixed by augmentation.
        counted_records = evaluation_records or records
        num_empty_rows = sum(r.num_rows_without_class for r in counted_records)
        num_rows = sum(r.target_shape[0] for r in counted_records if r.target_shape)
        if not 0 < num_empty_rows < num_rows:
            continue
        num_columns = next(r.target_shape[1] for r in counted_records if r.num_rows_without_class)
        usage_text = "in the evaluation" if evaluation_records else "in training"
        findings.append(
            rule.finding(
                severity="error" if evaluation_records else "confirm",
                step=records[0].step + 1,
                what=f"{kind}: {num_empty_rows} of {num_rows} rows of one-hot targets {usage_text} "
                f"have no 1 in any of the {num_columns} columns.",
                cause="One class has no column, as with drop_first=True of pandas.get_dummies: "
                "the network can neither learn from the rows of this class nor predict it.",
                fix="Use one column per class, or pass class indices to the loss.",
                num_rows=num_empty_rows,
                num_columns=num_columns,
            )
        )
    return findings


def _detect_shifted_one_hot_columns(
    rule: Rule[IndexOutOfRangeSettings], trace: Trace
) -> list[TraceFinding]:
    """Detect one-hot targets that are shifted by one column.

    The first or last column is never 1, and the number of rows without a 1 is similar to the number
    of rows of a class.
    """
    findings = []
    for (kind, network), records in group_by_function(
        training_loss_calls(trace, *_BINARY_LOSSES)
    ).items():
        one_hot_records = [r for r in records if r.column_counts]
        distinct_num_columns = {len(r.column_counts) for r in one_hot_records}
        if len(one_hot_records) < len(records) or len(distinct_num_columns) != 1:
            continue
        counts = [*map(sum, zip(*(r.column_counts for r in one_hot_records), strict=True))]
        num_rows = sum(r.target_shape[0] for r in one_hot_records)
        num_empty_rows = sum(r.num_rows_without_class for r in one_hot_records)
        smaller_end_count, larger_end_count = sorted((counts[0], counts[-1]))
        other_counts = [*counts[1:-1], larger_end_count]
        if (
            smaller_end_count > 0
            or min(other_counts) < rule.settings.min_rows_of_other_classes
            or not min(other_counts) / 2 <= num_empty_rows <= 2 * max(other_counts)
        ):
            continue
        empty_column, class_without_column = (
            (0, len(counts)) if not counts[0] else (len(counts) - 1, -1)
        )
        findings.append(
            rule.finding(
                severity="error",
                step=one_hot_records[0].step + 1,
                what=f"{network_name(trace, network)}, {kind}: column {empty_column} of one-hot "
                f"targets is never 1 in {num_rows} rows. Each of the {len(other_counts)} other "
                f"columns is 1 in some rows, and {num_empty_rows} rows have no 1 in any column.",
                cause="The class numbers are shifted by one: rows of class "
                f"{class_without_column} match no column, and the target of output {empty_column} "
                "is always 0.",
                fix="Number the classes from 0.",
                num_rows=num_empty_rows,
                num_columns=len(counts),
            )
        )
    return findings


def _has_class_targets(settings: IndexOutOfRangeSettings, record: LossRecord) -> bool:
    """Whether the targets are one class index per row, of 3 to ``max_classes`` classes.

    Targets that are tokens do not count, nor do calls with ignored targets.
    """
    return (
        record.target_is_integer
        and len(record.input_shape) == 2
        and record.tokens is None
        and record.num_supervised == record.num_targets
        and 2 < record.input_shape[1] <= settings.max_classes
        and not math.isnan(record.target_smallest)
    )


def _judge(rule: Rule[IndexOutOfRangeSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    return (
        *_detect_rejected_ids(rule, trace),
        *_detect_negative_indices(rule, trace),
        *_detect_clamped_indices(rule, trace),
        *_detect_classes_from_minus_one(rule, trace),
        *_detect_targets_outside_unit_interval(rule, trace),
        *_detect_classes_from_one(rule, trace),
        *_detect_missing_one_hot_column(rule, trace),
        *_detect_shifted_one_hot_columns(rule, trace),
    )


INDEX_OUT_OF_RANGE = Rule(
    name="indices are inside their table",
    fault="index out of range",
    priority=480,
    requires="One of: a call of embedding, cross_entropy, nll_loss or a binary loss; an index into "
    "a parameter, such as table[ids]; class ids that a custom loss uses as indices; ids that a "
    "network receives and that select rows of a parameter.",
    contradicted_by="Class 0 is reserved for later use, or the last row of the table is for "
    "unknown ids.",
    abstains="The index outside the table is the ignore_index of the loss.",
    settings=IndexOutOfRangeSettings(),
    judge=_judge,
)
