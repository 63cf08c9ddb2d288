"""No look-ahead: features of a row do not change when later rows do (POC-8)."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from pydantic import Field

from sluice.errors import ContractError
from sluice.failfast.settings import LookAheadSettings
from sluice.settings import Record


class LookAhead(Record):
    """What one column saw of the future."""

    column: str
    row: str = Field(description="Index label of the first row that changed.")
    change: float = Field(description="Largest change, in the column's standard deviations.")


def find_look_ahead(
    compute: Callable[[pd.DataFrame], pd.DataFrame],
    raw: pd.DataFrame,
    columns: tuple[str, ...],
    *,
    settings: LookAheadSettings,
    seed: int,
) -> tuple[LookAhead, ...]:
    """Return the columns that see later rows, worst first.

    The rows after a cut are put in another order (each row stays whole, so it stays a valid row),
    and then cut off. Order catches a shift by one; the cut catches statistics of the whole table,
    which no order changes.

    Args:
        compute: From raw rows to the feature frame, same index labels.
        raw: Raw rows in time order.
        columns: Feature columns; targets look ahead by design and are not asked.
        settings: Cuts and tolerance.
        seed: Of the new order.

    Raises:
        ContractError: Nothing could be compared, so nothing is known; or labels were renumbered.

    Cost:
        Two computations of all features per cut.

    Assumes:
        A leak reaches the rows just before a cut. One that shows in few rows only needs more cuts.
    """
    whole = compute(raw)
    strangers = whole.index.difference(raw.index)
    if len(strangers):
        raise ContractError(
            f"Features must keep the index labels of the raw rows; {len(strangers)} are new, "
            f"first {strangers[0]}.",
            fix="Drop rows in compute_features without renumbering the others.",
        )
    scale = whole.loc[:, list(columns)].astype(float).std().replace(0.0, 1.0)
    worst: dict[str, LookAhead] = {}
    compared = {"order": 0, "cut": 0}
    for share in settings.cut_shares:
        cut = int(len(raw) * share)
        order = np.random.default_rng(seed).permutation(np.arange(cut, len(raw)))
        shuffled = raw.iloc[np.concatenate([np.arange(cut), order])].set_axis(raw.index)
        known = whole.index[whole.index < raw.index[cut]]
        for way, other in (("order", shuffled), ("cut", raw.iloc[:cut])):
            try:
                features = compute(other)
            except ContractError:  # the cut table may be too short for the workload
                continue
            compared[way] += _compare(
                whole, features, known, columns, scale, settings.tolerance, worst
            )
    if not all(compared.values()):
        raise ContractError(
            f"Rows before a cut are required to look for leaks; compared were {compared['order']} "
            f"with later rows in another order and {compared['cut']} without later rows.",
            cause="The features begin too late, or the workload refuses shorter tables.",
            fix="Give more rows, or let compute_features work on fewer.",
        )
    return tuple(sorted(worst.values(), key=lambda found: -found.change))


def _compare(
    whole: pd.DataFrame,
    other: pd.DataFrame,
    known: pd.Index,
    columns: tuple[str, ...],
    scale: "pd.Series[float]",
    tolerance: float,
    worst: dict[str, LookAhead],
) -> int:
    """Note the columns that changed; return how many rows were compared."""
    rows = known.intersection(other.index)
    for column in columns:
        before, after = (f.loc[rows, column].astype(float) for f in (whole, other))
        change = ((before - after) / scale[column]).abs()
        # A value that became NaN changed as well.
        changed = ~(change <= tolerance) & ~(before.isna() & after.isna())
        if changed.any():
            found = LookAhead(
                column=column,
                row=str(changed.index[changed.to_numpy()][0]),
                change=float(change[changed].fillna(np.inf).max()),
            )
            if column not in worst or found.change > worst[column].change:
                worst[column] = found
    return len(rows)
