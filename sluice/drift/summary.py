"""Verdict on a whole window, with its reason and the recommended action."""

from collections.abc import Sequence

from sluice.drift.report import DATA_FAULTS, ColumnResult, DriftVerdict, JointResult

_MAX_NAMES = 5


def summarize(
    columns: Sequence[ColumnResult], joint: JointResult | None, *, num_rows: int
) -> tuple[DriftVerdict, str, str]:
    """Return verdict, reason and remedy.

    Drift in any column makes the window DRIFT. Otherwise any column that could not be tested makes
    it INCONCLUSIVE, because an untested column may have drifted.
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
    unsure = [column for column in columns if column.verdict == "INCONCLUSIVE"]
    if unsure or (joint is not None and joint.verdict == "INCONCLUSIVE"):
        return "INCONCLUSIVE", *_lacking(unsure, joint, len(columns))
    return (
        "STABLE",
        f"No drift in {len(columns)} {'column' if len(columns) == 1 else 'columns'} of "
        f"{num_rows:,} rows.",
        "Nothing to do.",
    )


def _drift_reason(drifted: Sequence[ColumnResult], of: int) -> str:
    first = min(drifted, key=lambda column: column.p_value if column.p_value >= 0 else -1.0)
    return (
        f"{len(drifted)} of {of} columns drifted ({_names(drifted)}). "
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


def _lacking(unsure: Sequence[ColumnResult], joint: JointResult | None, of: int) -> tuple[str, str]:
    short = [column for column in unsure if column.finding == "reference_too_short"]
    if short:
        return (
            f"{len(short)} of {of} columns cannot be tested ({_names(short)}). "
            f"'{short[0].column}': {short[0].reason}",
            "Build the reference from more rows. For a non-stationary column, monitor its "
            "differences from row to row instead of its level.",
        )
    if unsure:
        worst = max(unsure, key=lambda column: column.needed_rows)
        needed = worst.needed_rows
        return (
            f"{len(unsure)} of {of} columns cannot be tested ({_names(unsure)}). "
            f"'{worst.column}': {worst.reason}",
            f"Collect windows of at least {needed:,} rows.",
        )
    assert joint is not None
    return (
        f"The joint test is not possible: {joint.reason}",
        f"Collect windows of at least {joint.needed_rows:,} rows, or use more reference rows.",
    )


def _names(columns: Sequence[ColumnResult]) -> str:
    names = [column.column for column in columns[:_MAX_NAMES]]
    more = len(columns) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
