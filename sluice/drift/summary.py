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
    the joint distribution could not be tested, it is INCONCLUSIVE, because it may have drifted.
    """
    drifted = [column for column in columns if column.verdict == "DRIFT"]
    if drifted:
        return "DRIFT", _drift_reason(drifted, len(columns)), _drift_remedy(drifted)
    if joint is not None and joint.verdict == "DRIFT":
        return (
            "DRIFT",
            f"Drift in the joint distribution, but in no single column: {joint.reason}",
            "The dependence between columns has changed: compare their correlations with those of "
            "the reference, then retrain on newer rows.",
        )
    untested = [column for column in columns if column.verdict == "INCONCLUSIVE"]
    if untested or (joint is not None and joint.verdict == "INCONCLUSIVE"):
        return "INCONCLUSIVE", *_untested_reason(untested, joint, len(columns))
    return (
        "STABLE",
        f"No drift in {len(columns)} {'column' if len(columns) == 1 else 'columns'} of "
        f"{num_rows:,} rows.",
        "Nothing to do.",
    )


def _drift_reason(drifted: Sequence[ColumnResult], num_columns: int) -> str:
    first = min(drifted, key=lambda column: column.p_value if column.p_value >= 0 else -1.0)
    return (
        f"{len(drifted)} of {num_columns} columns drifted ({_names(drifted)}). "
        f"'{first.column}': {first.reason}"
    )


def _drift_remedy(drifted: Sequence[ColumnResult]) -> str:
    findings = {column.finding for column in drifted}
    if findings & DATA_FAULTS:
        return (
            "Repair the source of these columns first: missing or invalid values are a fault, and "
            "a model must not be trained on them."
        )
    if "new_categories" in findings:
        return "Find out what the new categories are, and retrain on rows that contain them."
    return "Inspect the drifted columns. If the data have really changed, retrain on newer rows."


def _untested_reason(
    untested: Sequence[ColumnResult], joint: JointResult | None, num_columns: int
) -> tuple[str, str]:
    """Return the reason and the remedy of an inconclusive window."""
    too_short = [column for column in untested if column.finding == "reference_too_short"]
    if too_short:
        return (
            f"{len(too_short)} of {num_columns} columns cannot be tested ({_names(too_short)}). "
            f"'{too_short[0].column}': {too_short[0].reason}",
            "Build the reference from more rows. For a non-stationary column, monitor its "
            "differences from row to row instead of its level.",
        )
    if untested:
        worst = max(untested, key=lambda column: column.needed_rows)
        required_rows = worst.needed_rows
        return (
            f"{len(untested)} of {num_columns} columns cannot be tested ({_names(untested)}). "
            f"'{worst.column}': {worst.reason}",
            f"Collect windows of at least {required_rows:,} rows.",
        )
    assert joint is not None
    return (
        f"The joint test is not possible: {joint.reason}",
        f"Collect windows of at least {joint.needed_rows:,} rows, or use more reference rows.",
    )


def _names(columns: Sequence[ColumnResult]) -> str:
    names = [column.column for column in columns[:_MAX_NAMES]]
    num_more = len(columns) - len(names)
    return ", ".join(names) + (f" and {num_more} more" if num_more else "")
