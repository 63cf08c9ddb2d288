"""What a look at one window found, column by column (ROLL-3)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.drift.cells import Kind
from sluice.drift.columns import StatisticName

Verdict = Literal["DRIFT", "STABLE", "INCONCLUSIVE"]
Finding = Literal[
    "none",
    "distribution",
    "missing_values",
    "missing_column",
    "all_missing",
    "changed_kind",
    "new_categories",
    "too_few_rows",
    "too_few_values",
    "reference_too_short",
]

BROKEN: frozenset[Finding] = frozenset(
    {"missing_column", "all_missing", "changed_kind", "missing_values"}
)
"""Faults of delivery: training on such rows would teach them."""


class StatisticResult(Record):
    """One distance of a window from the reference."""

    name: StatisticName | Literal["mmd"]
    distance: float
    threshold: float = Field(
        description="What this distance alone exceeds at rate alpha without drift, in windows of "
        "this size."
    )
    p_value: float = Field(description="Of a distance at least as large without drift.")


_ORDER = ("missing", "wasserstein", "ks", "chi_square", "psi", "mmd")
"""Of equally sure ones the first is told: a fault of delivery, then what is easiest to read."""


def surest(statistics: Sequence[StatisticResult]) -> StatisticResult:
    """Return the most unlikely of a column's distances."""
    return min(statistics, key=lambda s: (s.p_value, _ORDER.index(s.name)))


class ColumnResult(Record):
    """What became of one column."""

    column: str
    kind: Kind
    verdict: Verdict
    finding: Finding
    reason: str
    statistics: tuple[StatisticResult, ...] = Field(description="Empty when nothing was compared.")
    p_value: float = Field(description="Of all its statistics together; NaN when not compared.")
    adjusted_p: float = Field(description="Benjamini-Hochberg's, over all tests of the window.")
    effect: float = Field(
        description="Numbers: mean distance moved [standard deviations of the reference]; "
        "categories: Cohen's w. NaN when not compared or the reference is constant."
    )
    missing_rate: float = Field(description="In the window [rate]; NaN without the column.")
    reference_missing_rate: float = Field(description="In the reference [rate].")
    new_categories: dict[str, int] = Field(
        description="Those the reference does not hold, with their rows; the most frequent ones."
    )
    block_length: int = Field(description="Rows that depend on each other [rows].")
    needed_rows: int = Field(description="Rows a window needs to decide about it [rows].")
    share: tuple[float, ...] = Field(description="Of each cell among the values that are there.")


class JointResult(Record):
    """What became of all columns together."""

    verdict: Verdict
    reason: str
    statistic: StatisticResult | None = Field(description="None when nothing was compared.")
    adjusted_p: float
    block_length: int
    needed_rows: int


class DriftReport(Record):
    """A window judged against a reference, and enough evidence to argue with it."""

    verdict: Verdict
    reason: str
    remedy: str
    window: str = Field(description="What the caller calls the window, such as its digest.")
    num_rows: int = Field(description="Of the window [rows].")
    reference_rows: int
    alpha: float
    columns: tuple[ColumnResult, ...]
    joint: JointResult | None = Field(description="None when the reference has one column.")
    extra_columns: tuple[str, ...] = Field(
        description="Columns that the reference does not have; they were not looked at."
    )

    left_out: str = Field(
        "",
        description="What drift.max_columns excludes from the comparison; empty when nothing.",
    )

    @property
    def passed(self) -> bool:
        """True only when no drift was found and everything could be looked at."""
        return self.verdict == "STABLE"

    @property
    def moved(self) -> tuple[ColumnResult, ...]:
        """The columns that drifted, the surest first."""
        drifted = [column for column in self.columns if column.verdict == "DRIFT"]
        # What needs no statistics (a missing column) is surest of all.
        return tuple(sorted(drifted, key=lambda c: c.p_value if c.p_value >= 0 else -1.0))
