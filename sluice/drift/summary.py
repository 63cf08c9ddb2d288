"""The verdict on a whole window, in words: what was found, and what to do."""

from collections.abc import Sequence

from sluice.drift.report import BROKEN, ColumnResult, JointResult, Verdict

_SHOWN = 5


def summarize(
    columns: Sequence[ColumnResult], joint: JointResult | None, *, num_rows: int
) -> tuple[Verdict, str, str]:
    """Return verdict, reason and remedy.

    Any drift is DRIFT. Without one, anything that could not be looked at makes the window
    INCONCLUSIVE: not having looked is not health.
    """
    drifted = [column for column in columns if column.verdict == "DRIFT"]
    together = joint is not None and joint.verdict == "DRIFT"
    if drifted:
        return "DRIFT", _drift_reason(drifted, len(columns)), _drift_remedy(drifted)
    if together:
        assert joint is not None
        return (
            "DRIFT",
            f"No column alone, but all together: {joint.reason}",
            "Columns move against each other as they did not before: compare their correlations "
            "with the reference's, then train on newer rows.",
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
    if findings & BROKEN:
        return (
            "Repair what delivers the columns first: values that do not arrive are a fault, and "
            "training on them would teach it."
        )
    if "new_categories" in findings:
        return "Find out what the new categories are; train again on rows that hold them."
    return "Look at the columns that moved; if the world changed, train again on newer rows."


def _lacking(unsure: Sequence[ColumnResult], joint: JointResult | None, of: int) -> tuple[str, str]:
    short = [column for column in unsure if column.finding == "reference_too_short"]
    if short:
        return (
            f"{len(short)} of {of} columns cannot be judged ({_names(short)}). "
            f"'{short[0].column}': {short[0].reason}",
            "Build the reference from more rows, or watch the change from row to row of a column "
            "that wanders instead of its level.",
        )
    if unsure:
        worst = max(unsure, key=lambda column: column.needed_rows)
        needed = worst.needed_rows
        return (
            f"{len(unsure)} of {of} columns cannot be judged ({_names(unsure)}). "
            f"'{worst.column}': {worst.reason}",
            f"Collect windows of at least {needed:,} rows.",
        )
    assert joint is not None
    return (
        f"The columns together cannot be judged: {joint.reason}",
        f"Collect windows of at least {joint.needed_rows:,} rows, or take more for the reference.",
    )


def _names(columns: Sequence[ColumnResult]) -> str:
    names = [column.column for column in columns[:_SHOWN]]
    more = len(columns) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
