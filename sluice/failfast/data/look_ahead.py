"""POC-8: features of a row do not change when later rows do."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.base.pluralize import counted
from sluice.config.poc_settings import LookAheadSettings, PocSettings
from sluice.failfast.data.feature_values import FeatureValues, LookAhead
from sluice.failfast.data.look_ahead_sample import Block, LookAheadSample, draw_sample
from sluice.failfast.data.row_order import cut_places, later_rows_changed, row_order
from sluice.findings.finding import Finding
from sluice.findings.user_code import users_code
from sluice.workloads.workload import Workload

Compute = Callable[[pd.DataFrame], pd.DataFrame]


def check_look_ahead(
    workload: Workload, raw: pd.DataFrame, frame: pd.DataFrame, settings: PocSettings, *, seed: int
) -> Finding:
    """Ask whether any feature changes when only later rows do (POC-8).

    Where nothing can be compared the outcome is "insufficient". Limits: see ``find_look_ahead``.
    For rows that are declared independent (``horizon_rows = 0``) one changed table is enough: only
    statistics of the whole table can reach a row, and they move in every changed table.

    Args:
        workload: Its ``compute_features`` is asked again, its ``feature_columns`` are compared.
        raw: Raw rows.
        frame: What ``compute_features(raw)`` returned.
        settings: Cuts and tolerance.
        seed: Of the new order of later rows.

    Raises:
        ContractError: The frame has labels that the raw rows do not have.
    """
    columns = tuple(name for name in workload.feature_columns if name in frame.columns)
    independent = workload.horizon_rows == 0
    search = _search(
        workload.compute_features,
        raw,
        frame,
        columns,
        settings.look_ahead,
        seed,
        independent=independent,
    )
    found = search.worst_first
    numbers = {
        "features": len(columns),
        "features_compared": len(search.compared),
        "rows": sum(len(block.raw) for block in search.sample.blocks),
        "comparisons": search.comparisons,
        "seeing_later_rows": len(found),
    }
    if search.comparisons == 0 or not columns:
        return Finding(outcome="insufficient", summary=search.refused, numbers=numbers, fix=_FIX)
    if not found:
        one = " One is enough for independent rows (horizon_rows = 0)." if independent else ""
        return Finding(
            outcome="pass",
            summary=f"None of {len(search.compared)} features moved in "
            f"{counted(search.comparisons, 'table')} whose later rows were changed.{one}"
            f"{search.sample.note}",
            numbers=numbers,
        )
    if _moves_by_itself(
        workload.compute_features,
        search.sample,
        tuple(f.column for f in found),
        settings.look_ahead,
    ):
        return Finding(
            outcome="fail",
            summary=f"Feature '{found[0].column}' is another when compute_features is called "
            "again with the same rows.",
            numbers=numbers,
            kind="look-ahead",
            cause="compute_features draws random numbers without a seed, or keeps state.",
            fix="Make it a function of the raw rows alone; seed every generator inside it.",
        )
    first = found[0]
    others = ", ".join(f"'{f.column}'" for f in found[1:6])
    more = f" Also {others}{' and more' if len(found) > 6 else ''}." if others else ""
    return Finding(
        outcome="fail",
        summary=f"{len(found)} of {len(search.compared)} features look ahead: '{first.column}' at "
        f"row {first.row} changed by {first.change:.3g} standard deviations when only later rows "
        f"changed.{more}{search.sample.note}",
        # A value that became empty has no size, and JSON has no infinity.
        numbers={**numbers, "largest_change": first.change if first.change < np.inf else "empty"},
        kind="look-ahead",
        cause=_RENUMBERED if _is_counted_from_0(frame.index) and len(frame) < len(raw) else "",
    )


def find_look_ahead(
    compute: Compute,
    raw: pd.DataFrame,
    columns: tuple[str, ...],
    *,
    settings: LookAheadSettings,
    seed: int,
    whole: pd.DataFrame | None = None,
) -> tuple[LookAhead, ...]:
    """Return the columns that see later rows, worst first.

    The rows after a cut are put in another order, and some of them left out. Each stays whole, so
    it stays a valid row. Order moves what sees the next rows; fewer rows move every statistic of
    the whole table, which no order changes. The cuts: the shares of ``settings``, one after the
    first row of the features, one before their last, and one after a gap of each of up to three
    raw columns, where filling backwards shows.

    Args:
        compute: From raw rows to the feature frame, same index labels.
        raw: Raw rows in time order, or with a datetime index that gives it. Rows that share a
            label belong to one moment.
        columns: Feature columns; targets look ahead by design and are not asked.
        settings: Cuts and tolerance.
        seed: Of the new order.
        whole: What ``compute(raw)`` returns, when it is known already.

    Raises:
        ContractError: Nothing could be compared, so nothing is known; or labels were renumbered.

    Cost:
        One computation of all features per cut, of 0.1 to 1 times the rows; of a table with more
        than ``max_cells``, of three blocks of its rows, and once more of these unchanged. The
        comparison of 100 columns x 5,000 rows takes milliseconds.

    Assumes:
        A leak reaches the rows just before a cut: one that shows in few rows only needs more
        cuts. A largest value of the whole table is seen as a leak with the probability that some
        cut leaves it out; later rows that equal each other hide everything.
    """
    if whole is None:
        whole = compute(raw.copy(deep=False))
    search = _search(compute, raw, whole, columns, settings, seed)
    if search.comparisons == 0:
        raise ContractError(
            search.refused,
            cause="The features begin too late, or the workload refuses changed tables.",
            fix=_FIX,
        )
    return search.worst_first


_RENUMBERED = (
    "A feature uses rows that are not known yet, or compute_features renumbers the rows it keeps, "
    "so that labels stand for other rows."
)
_FIX = "Give more rows, or let compute_features work on fewer and on rows in another order."


@dataclass
class _Search:
    """What is known so far; one entry of ``worst`` per column that moved."""

    sample: LookAheadSample
    compared: set[str] = field(default_factory=set)
    worst: dict[str, LookAhead] = field(default_factory=dict)
    comparisons: int = 0
    last_refusal: str = ""

    @property
    def worst_first(self) -> tuple[LookAhead, ...]:
        return tuple(sorted(self.worst.values(), key=lambda found: -found.change))

    @property
    def refused(self) -> str:
        told = f" The last table was refused: {self.last_refusal}" if self.last_refusal else ""
        return (
            "A feature of a row before a cut is required to look for leaks; compared were 0 "
            f"tables.{told}"
        )


def _search(
    compute: Compute,
    raw: pd.DataFrame,
    whole: pd.DataFrame,
    columns: tuple[str, ...],
    settings: LookAheadSettings,
    seed: int,
    *,
    independent: bool = False,
) -> _Search:
    _require_labels(whole, raw)
    sample = draw_sample(compute, raw, whole, columns, settings, seed=seed)
    search = _Search(sample)
    rng = np.random.default_rng(seed)
    for block in sample.blocks:
        _search_block(search, compute, block, settings, seed, rng, independent=independent)
    return search


def _search_block(
    search: _Search,
    compute: Compute,
    block: Block,
    settings: LookAheadSettings,
    seed: int,
    rng: np.random.Generator,
    *,
    independent: bool,
) -> None:
    raw, whole = block.raw, block.features
    order = row_order(raw.index)
    cuts = cut_places(raw, whole, order, settings.cut_shares)
    kept_shares = settings.kept_shares
    if independent:
        # Few later rows stay, so that every statistic of the whole table moves.
        cuts, kept_shares = cuts[:1], (min(kept_shares),)
    before: FeatureValues | None = None
    for number, cut in enumerate(cuts):
        own = search.sample.columns_of(number, np.random.default_rng(seed))
        if before is None or own is not search.sample.columns:
            before = FeatureValues(whole, own, settings.tolerance)
        kept_share = kept_shares[number % len(kept_shares)]
        for share in (kept_share, 1.0):
            changed, known = later_rows_changed(
                raw, whole, order, cut=cut, kept_share=share, rng=rng
            )
            try:
                with users_code("compute_features() of the workload"):
                    after = compute(changed)
            except ContractError as error:  # it refuses rows that are fewer or in another order
                search.last_refusal = error.what
                continue
            if before.compare(after, known, search.worst):
                search.comparisons += 1
                search.compared.update(own)
            break


def _moves_by_itself(
    compute: Compute,
    sample: LookAheadSample,
    columns: tuple[str, ...],
    settings: LookAheadSettings,
) -> bool:
    moved: dict[str, LookAhead] = {}
    for block in sample.blocks:
        again = compute(block.raw.copy(deep=False))
        known = block.features.index.unique()
        FeatureValues(block.features, columns, settings.tolerance).compare(again, known, moved)
    return bool(moved)


def _require_labels(whole: pd.DataFrame, raw: pd.DataFrame) -> None:
    strange = ~whole.index.isin(raw.index)
    if strange.any():
        raise ContractError(
            f"Features must keep the index labels of the raw rows; {strange.sum()} are new, "
            f"first {whole.index[strange][0]}.",
            fix="Drop rows in compute_features without renumbering the others.",
        )


def _is_counted_from_0(index: pd.Index) -> bool:
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
