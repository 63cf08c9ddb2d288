"""Check that the fitted state of a workload depends only on the train rows."""

import contextlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.data.folds import Fold
from sluice.failfast.data.row_order import change_later_rows, time_order
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import EvidenceValue
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.fitted_state import digest_state, fit_state, has_fitted_state
from sluice.workloads.load import build_workload
from sluice.workloads.workload import Workload

_KEPT_SHARE = 0.5
"""Share of the rows after the train rows that the check keeps, in another order. It drops the
remaining rows, so that statistics of the whole table change."""


def check_fitted_state(
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    *,
    seed: int,
) -> CheckOutcome | None:
    """Change all rows after the train rows, call ``fit`` again, and compare the states.

    The second call uses a new workload object. Its ``load_rows`` returns the changed rows, and its
    ``compute_features`` was called with the changed rows. So ``fit`` returns another state if it
    loads rows, or if it uses a table that another method stored in the object.

    Args:
        workload: The workload.
        raw: Raw rows.
        frame: Result of ``compute_features(raw)``.
        folds: Planned folds; the first one is checked.
        seed: Seed of the new order of the changed rows.

    Returns:
        The outcome; None for a workload without ``fit``, or without a fold.

    Raises:
        ContractError: ``fit`` raised, or does not return arrays.

    Assumes:
        ``fit`` reads the source of the rows only with ``load_rows``.

    Cost:
        Three calls of ``fit``, and one of ``compute_features``.
    """
    if not has_fitted_state(workload) or not folds:
        return None
    train = folds[0].train
    train_frame = frame.iloc[train.start : train.stop]
    name = f"{type(workload).__name__}.fit()"
    with wrap_user_errors("fit of the workload"):
        state = fit_state(workload, train_frame)
        repeated_state = fit_state(workload, train_frame)
    numbers: dict[str, EvidenceValue] = {"state": digest_state(state), "arrays": len(state)}
    if digest_state(repeated_state) != digest_state(state):
        return CheckOutcome(
            outcome="fail",
            summary=f"{name} returns different arrays when it is called twice for the same train "
            f"rows: {_differing_names(state, repeated_state)}.",
            numbers=numbers,
            fault="split dependence",
            cause="fit() draws random numbers without a seed, or keeps state between calls.",
            fix="Compute the arrays from train_frame alone, and seed every generator in fit().",
        )
    changed_workload = _workload_of_changed_rows(workload, raw, frame, train.stop, seed=seed)
    with wrap_user_errors("fit of the workload, after rows outside of train_frame were changed"):
        changed_state = fit_state(changed_workload, train_frame)
    if digest_state(changed_state) != digest_state(state):
        return CheckOutcome(
            outcome="fail",
            summary=f"Fold 0: {name} returns different arrays when only rows after the train rows "
            f"change: {_differing_names(state, changed_state)}.",
            numbers=numbers,
            fault="split dependence",
            cause="fit() reads other rows than its argument, for example with load_rows() or from "
            "a table that another method stored in the workload.",
            fix="Compute the state from train_frame alone.",
        )
    return CheckOutcome(
        outcome="pass",
        summary=f"{name} returned the same state {short(digest_state(state))} when the rows after "
        "the train rows were changed.",
        numbers=numbers,
    )


def _workload_of_changed_rows(
    workload: Workload, raw: pd.DataFrame, frame: pd.DataFrame, stop: int, *, seed: int
) -> Workload:
    """Return a new workload object whose rows after the train rows are changed.

    Args:
        workload: The workload.
        raw: Raw rows.
        frame: Feature frame.
        stop: Position after the last train row in the frame.
        seed: Seed of the new order of the rows.
    """
    order = time_order(raw.index)
    train_positions = np.flatnonzero(raw.index[order].isin(frame.index[:stop]))
    table, _ = change_later_rows(
        raw,
        frame,
        order,
        cut=int(train_positions.max()) + 1,
        kept_share=_KEPT_SHARE,
        rng=np.random.default_rng(seed),
    )
    cls = type(workload)
    changed_workload = build_workload(
        cls, workload.settings, path=f"{cls.__module__}:{cls.__qualname__}"
    )
    changed_workload.load_rows = table.copy  # type: ignore[method-assign]
    # compute_features may reject a table with fewer rows, or with rows in another order.
    with contextlib.suppress(ContractError), wrap_user_errors("compute_features of the workload"):
        changed_workload.compute_features(table.copy())
    return changed_workload


def _differing_names(one: dict[str, Tensor], two: dict[str, Tensor]) -> str:
    names = [
        name
        for name in sorted(one.keys() | two.keys())
        if name not in one
        or name not in two
        or digest_state({name: one[name]}) != digest_state({name: two[name]})
    ]
    return ", ".join(f"'{name}'" for name in names[:5])
