"""Verdict on a whole window, with its reason and the recommended action."""

from collections.abc import Sequence

from sluice.drift.report import DATA_FAULTS, ColumnResult, DriftVerdict, JointResult

_MAX_NAMES = 5
"""Maximum number of columns that a reason names."""


def summarize(
    columns: Sequence[ColumnResult], joint: JointResult | None, *, num_rows: int
) -> tuple[DriftVerdict, str, str]:
    """Return verdict, reason and remedy.

    If a column or the joint distribution drifted, the verdict is DRIFT. Otherwise, if a column or
    the joint distribution was not tested and may have drifted, the verdict is INCONCLUSIVE.
    """
    drifted_columns = [column for column in columns if column.verdict == "DRIFT"]
    if drifted_columns:
        return "DRIFT", _drift_reason(drifted_columns, len(columns)), _drift_remedy(drifted_columns)
    if joint is not None and joint.verdict == "DRIFT":
        return (
            "DRIFT",
            f"Drift in the joint distribution, but in no single column: {joint.reason}",
            "The dependence between columns has changed: compare their correlations with the "
            "correlations in the reference, then retrain on newer rows.",
        )
    untested_columns = [column for column in columns if column.verdict == "INCONCLUSIVE"]
    if untested_columns or (joint is not None and joint.verdict == "INCONCLUSIVE"):
        return "INCONCLUSIVE", *_untested_reason(untested_columns, joint, len(columns))
    return (
        "STABLE",
        f"No drift in {len(columns)} {'column' if len(columns) == 1 else 'columns'} of "
        f"{num_rows:,} rows.",
        "Nothing to do.",
    )


def _drift_reason(drifted_columns: Sequence[ColumnResult], num_columns: int) -> str:
    first_column = min(
        drifted_columns, key=lambda column: column.p_value if column.p_value >= 0 else -1.0
    )
    return (
        f"{len(drifted_columns)} of {num_columns} columns drifted "
        f"({_join_names(drifted_columns)}). '{first_column.column}': {first_column.reason}"
    )


def _drift_remedy(drifted_columns: Sequence[ColumnResult]) -> str:
    findings = {column.finding for column in drifted_columns}
    if findings & DATA_FAULTS:
        return (
            "Repair the source of these columns first: missing or invalid values are a fault, and "
            "a model must not be trained on them."
        )
    if "new_categories" in findings:
        return "Find out what the new categories are, and retrain on rows that contain them."
    return "Inspect the drifted columns. If the data have really changed, retrain on newer rows."


def _untested_reason(
    untested_columns: Sequence[ColumnResult], joint: JointResult | None, num_columns: int
) -> tuple[str, str]:
    """Return the reason and the remedy of an inconclusive window."""
    untestable_columns = [
        column for column in untested_columns if column.finding == "reference_too_short"
    ]
    if untestable_columns:
        return (
            f"{len(untestable_columns)} of {num_columns} columns cannot be tested "
            f"({_join_names(untestable_columns)}). "
            f"'{untestable_columns[0].column}': {untestable_columns[0].reason}",
            "Build the reference from more rows. For a non-stationary column, monitor its "
            "differences from row to row instead of its level.",
        )
    if untested_columns:
        worst_column = max(untested_columns, key=lambda column: column.needed_rows)
        required_rows = worst_column.needed_rows
        return (
            f"{len(untested_columns)} of {num_columns} columns cannot be tested "
            f"({_join_names(untested_columns)}). "
            f"'{worst_column.column}': {worst_column.reason}",
            f"Collect windows of at least {required_rows:,} rows.",
        )
    assert joint is not None
    return (
        f"The joint test is not possible: {joint.reason}",
        f"Collect windows of at least {joint.needed_rows:,} rows, or use more reference rows.",
    )


def _join_names(columns: Sequence[ColumnResult]) -> str:
    names = [column.column for column in columns[:_MAX_NAMES]]
    num_more = len(columns) - len(names)
    return ", ".join(names) + (f" and {num_more} more" if num_more else "")
