"""Drift report of one window, with a result for each column."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.drift.binning import Kind
from sluice.drift.columns import StatisticName

DriftVerdict = Literal["DRIFT", "STABLE", "INCONCLUSIVE"]
"""Verdict on a window or a column. INCONCLUSIVE means that drift could not be tested."""
ColumnFinding = Literal[
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

DATA_FAULTS: frozenset[ColumnFinding] = frozenset(
    {"missing_column", "all_missing", "changed_kind", "missing_values"}
)
"""Findings that indicate faulty data. Models must not be trained on such rows."""


class StatisticResult(Record):
    """One distance of a window from the reference."""

    name: StatisticName | Literal["mmd"]
    distance: float
    threshold: float = Field(
        description="Distance that a window of this size exceeds with probability alpha if there "
        "is no drift."
    )
    p_value: float = Field(
        description="Probability of a distance that is at least as large if there is no drift."
    )


_ORDER = ("missing", "wasserstein", "ks", "chi_square", "psi", "mmd")
"""Order of preference among statistics with equal p-values: missing values first, because they
indicate faulty data, then the statistics that are easiest to interpret."""


def statistic_with_smallest_p(statistics: Sequence[StatisticResult]) -> StatisticResult:
    """Return the statistic with the smallest p-value; if equal, the first in ``_ORDER``."""
    return min(statistics, key=lambda s: (s.p_value, _ORDER.index(s.name)))


class ColumnResult(Record):
    """Drift result of one column."""

    column: str
    kind: Kind
    verdict: DriftVerdict
    finding: ColumnFinding
    reason: str
    statistics: tuple[StatisticResult, ...] = Field(
        description="Distances of the window from the reference; empty if not compared."
    )
    p_value: float = Field(
        description="P-value of the column, from the smallest p-value of its statistics; NaN if "
        "not compared."
    )
    adjusted_p: float = Field(
        description="P-value adjusted by Benjamini-Hochberg over all tests of the window."
    )
    effect: float = Field(
        description="Effect size. Numeric column: Wasserstein distance [standard deviations of the "
        "reference]; categorical column: Cohen's w. NaN if not compared or if the reference is "
        "constant."
    )
    missing_rate: float = Field(
        description="Share of missing values in the window; NaN if the column is missing."
    )
    reference_missing_rate: float = Field(description="Share of missing values in the reference.")
    new_categories: dict[str, int] = Field(
        description="Number of rows of each category that is not in the reference; only the most "
        "frequent new categories."
    )
    block_length: int = Field(
        description="Number of consecutive rows that are treated as dependent [rows]."
    )
    needed_rows: int = Field(
        description="Minimum size of a window to test this column for drift [rows]."
    )
    share: tuple[float, ...] = Field(
        description="Share of non-missing values in each bin or category; empty if not compared."
    )


class JointResult(Record):
    """Result of the joint test of all columns."""

    verdict: DriftVerdict
    reason: str
    statistic: StatisticResult | None = Field(
        description="Squared maximum mean discrepancy of all columns; None if not compared."
    )
    adjusted_p: float
    block_length: int
    needed_rows: int


class DriftReport(Record):
    """Comparison of a window with its reference, including all statistics."""

    verdict: DriftVerdict
    reason: str
    remedy: str
    window: str = Field(description="Identifier of the window, such as its digest.")
    num_rows: int = Field(description="Size of the window [rows].")
    reference_rows: int
    alpha: float
    columns: tuple[ColumnResult, ...]
    joint: JointResult | None = Field(
        description="Joint test of all columns; None for a single column."
    )
    extra_columns: tuple[str, ...] = Field(
        description="Columns without a reference, which are not tested."
    )

    left_out: str = Field(
        "",
        description="Sentence on the columns that drift.max_columns excludes; empty if none.",
    )

    @property
    def passed(self) -> bool:
        """Whether all columns were tested, also jointly, and no drift was found."""
        return self.verdict == "STABLE"

    @property
    def drifted_columns(self) -> tuple[ColumnResult, ...]:
        """Drifted columns by ascending p-value."""
        drifted = [column for column in self.columns if column.verdict == "DRIFT"]
        # Columns without a test (such as a missing column) come first.
        return tuple(sorted(drifted, key=lambda c: c.p_value if c.p_value >= 0 else -1.0))
