"""Look-ahead check: the features of a row must not change when only later rows change."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.config.poc_settings import LookAheadSettings, PocSettings
from sluice.failfast.data.feature_values import ColumnChange, FeatureValues
from sluice.failfast.data.look_ahead_sample import LookAheadSample, RowBlock, draw_sample
from sluice.failfast.data.row_order import change_later_rows, cut_positions, time_order
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.workload import Workload

Compute = Callable[[pd.DataFrame], pd.DataFrame]
"""Function from raw rows to the feature frame."""


def check_look_ahead(
    workload: Workload, raw: pd.DataFrame, frame: pd.DataFrame, settings: PocSettings, *, seed: int
) -> CheckOutcome:
    """Check whether any feature changes when only later rows change.

    A workload without feature columns passes: ``examples`` reads its inputs, such as files. If
    nothing can be compared, the outcome is "insufficient". A leak that affects only few rows may be
    missed, as ``find_look_ahead`` explains. For rows declared independent (``horizon_rows = 0``),
    one changed table per block of rows is sufficient: only statistics of the whole table can leak
    into a row, and every changed table changes these statistics.

    Args:
        workload: Computes the features again; its ``feature_columns`` are compared.
        raw: Raw rows.
        frame: Result of ``compute_features(raw)``.
        settings: Cuts and tolerance.
        seed: Seed of the new order of later rows.

    Raises:
        ContractError: The frame has index labels that the raw rows do not have.
    """
    if not workload.feature_columns:
        return CheckOutcome(
            outcome="pass",
            summary="No feature column is declared: examples() reads the inputs of every row.",
            numbers={"features": 0},
        )
    columns = tuple(name for name in workload.feature_columns if name in frame.columns)
    if not columns:
        return CheckOutcome(
            outcome="insufficient",
            summary="compute_features() returned none of the declared feature columns.",
            numbers={"features": 0},
            fix="Return the columns in feature_columns, or declare the returned columns.",
        )
    has_independent_rows = workload.horizon_rows == 0
    search = _search(
        workload.compute_features,
        raw,
        frame,
        columns,
        settings.look_ahead,
        seed,
        has_independent_rows=has_independent_rows,
    )
    changes = search.sorted_changes
    numbers = {
        "features": len(columns),
        "features_compared": len(search.compared_columns),
        "rows": sum(len(block.raw) for block in search.sample.blocks),
        "comparisons": search.num_comparisons,
        "seeing_later_rows": len(changes),
    }
    if search.num_comparisons == 0:
        return CheckOutcome(
            outcome="insufficient",
            summary=search.not_compared_message,
            numbers=numbers,
            fix=_NOT_COMPARED_FIX,
        )
    if not changes:
        note = ""
        if has_independent_rows:
            tables = "One table" if len(search.sample.blocks) == 1 else "One table per block"
            note = f" {tables} is sufficient for independent rows (horizon_rows = 0)."
        return CheckOutcome(
            outcome="pass",
            summary=f"None of {pluralize(len(search.compared_columns), 'feature')} changed in "
            f"{pluralize(search.num_comparisons, 'table')} whose later rows were changed.{note}"
            f"{search.sample.note}",
            numbers=numbers,
        )
    if _is_nondeterministic(
        workload.compute_features,
        search.sample,
        tuple(change.column for change in changes),
        settings.look_ahead,
    ):
        return CheckOutcome(
            outcome="fail",
            summary=f"Feature '{changes[0].column}' differs when compute_features is called again "
            "with the same rows.",
            numbers=numbers,
            fault="look-ahead",
            cause="compute_features draws random numbers without a seed, or keeps state between "
            "calls.",
            fix="Compute the features from the raw rows alone, and seed every generator in "
            "compute_features.",
        )
    first = changes[0]
    other_names = ", ".join(f"'{change.column}'" for change in changes[1:6])
    more = f" Also {other_names}{' and more' if len(changes) > 6 else ''}." if other_names else ""
    return CheckOutcome(
        outcome="fail",
        summary=f"{len(changes):,} of {len(search.compared_columns):,} features look ahead: "
        f"'{first.column}' at row {first.row} changed by {first.change:.3g} standard deviations "
        f"when only later rows changed.{more}{search.sample.note}",
        # The change is infinite if a value became missing, and JSON has no infinity.
        numbers={**numbers, "largest_change": first.change if first.change < np.inf else "empty"},
        fault="look-ahead",
        cause=_RENUMBERED_INDEX_CAUSE
        if _is_default_index(frame.index) and len(frame) < len(raw)
        else "",
    )


def find_look_ahead(
    compute: Compute,
    raw: pd.DataFrame,
    columns: tuple[str, ...],
    *,
    settings: LookAheadSettings,
    seed: int,
    features: pd.DataFrame | None = None,
) -> tuple[ColumnChange, ...]:
    """Return the columns that depend on later rows, largest change first.

    The rows after a cut are reordered, and some of them are dropped. The values within a row do not
    change, so every row remains valid. Reordering changes features that use the next rows. Dropping
    rows changes statistics of the whole table, which do not depend on the order of the rows.

    The cuts are at the shares of ``settings``, after the first row of the features, before their
    last row, and after a missing value in each of up to three raw columns. The last kind of cut
    detects a backward fill.

    Args:
        compute: Function from raw rows to the feature frame, with the same index labels.
        raw: Raw rows in time order, or with a datetime index that defines it. Rows that share a
            label have the same time.
        columns: Feature columns, without targets, which use later rows by design.
        settings: Cuts and tolerance.
        seed: Seed of the new order.
        features: Result of ``compute(raw)``; if None, it is computed.

    Raises:
        ContractError: Nothing could be compared, or the features have index labels that the raw
            rows do not have.

    Cost:
        One computation of all features per cut, or two if ``compute`` rejects a table with fewer
        rows. For a table with more than ``max_cells``, only the features of three blocks of rows
        are computed, once for the unchanged blocks and once per cut.
        The comparison of 100 columns x 5,000 rows takes milliseconds.

    Assumes:
        A leak affects the rows just before a cut: a leak that affects only few rows needs more
        cuts. A feature that uses the maximum of the whole table is detected only if some cut drops
        the row with the maximum. If all later rows are equal, no leak is detected.
    """
    if features is None:
        features = compute(raw.copy(deep=False))
    search = _search(compute, raw, features, columns, settings, seed)
    if search.num_comparisons == 0:
        raise ContractError(
            search.not_compared_message,
            cause="The features start too late in the table, or compute_features rejects changed "
            "tables.",
            fix=_NOT_COMPARED_FIX,
        )
    return search.sorted_changes


_RENUMBERED_INDEX_CAUSE = (
    "A feature uses later rows, or compute_features drops rows and resets the index, so that "
    "labels refer to other rows."
)
_NOT_COMPARED_FIX = "Provide more rows, or let compute_features accept fewer and reordered rows."


@dataclass
class _Search:
    """State of the search for columns that depend on later rows.

    ``largest_changes`` contains the largest change of each column that changed.
    """

    sample: LookAheadSample
    compared_columns: set[str] = field(default_factory=set)
    largest_changes: dict[str, ColumnChange] = field(default_factory=dict)
    num_comparisons: int = 0
    last_error: str = ""

    @property
    def sorted_changes(self) -> tuple[ColumnChange, ...]:
        return tuple(sorted(self.largest_changes.values(), key=lambda column: -column.change))

    @property
    def not_compared_message(self) -> str:
        """Message that no table could be compared."""
        error = f" The last table was rejected: {self.last_error}" if self.last_error else ""
        return (
            "The look-ahead check compares the features of rows before a cut, but no row could be "
            f"compared in any changed table.{error}"
        )


def _search(
    compute: Compute,
    raw: pd.DataFrame,
    features: pd.DataFrame,
    columns: tuple[str, ...],
    settings: LookAheadSettings,
    seed: int,
    *,
    has_independent_rows: bool = False,
) -> _Search:
    _require_labels(features, raw)
    sample = draw_sample(compute, raw, features, columns, settings, seed=seed)
    search = _Search(sample)
    rng = np.random.default_rng(seed)
    for block in sample.blocks:
        _search_block(
            search, compute, block, settings, seed, rng, has_independent_rows=has_independent_rows
        )
    return search


def _search_block(
    search: _Search,
    compute: Compute,
    block: RowBlock,
    settings: LookAheadSettings,
    seed: int,
    rng: np.random.Generator,
    *,
    has_independent_rows: bool,
) -> None:
    raw, features = block.raw, block.features
    order = time_order(raw.index)
    cuts = cut_positions(raw, features, order, settings.cut_shares)
    kept_shares = settings.kept_shares
    if has_independent_rows:
        # The smallest share of later rows is kept, so that statistics of the table change most.
        cuts, kept_shares = cuts[:1], (min(kept_shares),)
    original_values: FeatureValues | None = None
    for table_index, cut in enumerate(cuts):
        columns = search.sample.columns_of(table_index, np.random.default_rng(seed))
        if original_values is None or columns is not search.sample.columns:
            original_values = FeatureValues(features, columns, settings.tolerance)
        kept_share = kept_shares[table_index % len(kept_shares)]
        # The second share is used only if compute_features rejects a table with fewer rows.
        for share in (kept_share, 1.0):
            changed_rows, unchanged_labels = change_later_rows(
                raw, features, order, cut=cut, kept_share=share, rng=rng
            )
            try:
                with wrap_user_errors("compute_features() of the workload"):
                    changed_features = compute(changed_rows)
            except ContractError as error:  # compute_features rejects fewer or reordered rows
                search.last_error = error.what
                continue
            if original_values.compare(changed_features, unchanged_labels, search.largest_changes):
                search.num_comparisons += 1
                search.compared_columns.update(columns)
            break


def _is_nondeterministic(
    compute: Compute,
    sample: LookAheadSample,
    columns: tuple[str, ...],
    settings: LookAheadSettings,
) -> bool:
    changes: dict[str, ColumnChange] = {}
    for block in sample.blocks:
        repeated_features = compute(block.raw.copy(deep=False))
        labels = block.features.index.unique()
        FeatureValues(block.features, columns, settings.tolerance).compare(
            repeated_features, labels, changes
        )
    return bool(changes)


def _require_labels(features: pd.DataFrame, raw: pd.DataFrame) -> None:
    is_unknown = ~features.index.isin(raw.index)
    if is_unknown.any():
        raise ContractError(
            f"Features must keep the index labels of the raw rows; {is_unknown.sum():,} are new, "
            f"first {features.index[is_unknown][0]}.",
            fix="Drop rows in compute_features without resetting the index of the remaining rows.",
        )


def _is_default_index(index: pd.Index) -> bool:
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
