"""Finds features and targets that have the same value in every train row."""

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sluice.config.poc_settings import PocSettings
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.workload import Workload

_MAX_RELATIVE_RANGE = 1e-12
"""Maximum range of the values of a constant column, relative to the largest absolute value. Such
small differences are rounding errors; the scaling of inputs ignores them, too."""

_NUM_FLAG_VALUES = 2
"""Number of distinct values that a flag column has in the whole table."""

_MAX_CONSTANT_SHARE = 0.5
"""Maximum share of constant features in a wide table for which the finding is only a warning."""


def find_constant_features(
    workload: Workload, frame: pd.DataFrame, train_rows: pd.DataFrame, settings: PocSettings
) -> CheckOutcome | None:
    """Return a finding for features that are constant in the train rows, or None.

    The finding is a failure, or a warning if constant values are plausible:

    - in a wide table, if at most half of the features are constant;
    - in a narrow table, if every constant feature is a flag (two values in the whole table).

    Columns declared with ``Column(constant=True)`` are not checked.

    Args:
        workload: Declares features and schema.
        frame: The feature frame.
        train_rows: Train rows of the frame.
        settings: ``wide_table_columns``.
    """
    declared_names = {column.name for column in workload.feature_schema.columns if column.constant}
    features = [name for name in workload.feature_columns if name in frame.columns]
    constant_features = [
        n for n in features if n not in declared_names and _is_constant(train_rows[n])
    ]
    if not constant_features:
        return None
    is_wide = len(features) >= settings.wide_table_columns
    non_flags = [
        name
        for name in constant_features
        if not (frame[name].nunique() == _NUM_FLAG_VALUES and not _is_constant(frame[name]))
    ]
    is_plausible = (
        len(constant_features) <= _MAX_CONSTANT_SHARE * len(features) if is_wide else not non_flags
    )
    ordered_names = sorted(constant_features, key=lambda name: name not in non_flags)
    value = train_rows[ordered_names[0]].iloc[0] if len(train_rows) else "nothing"
    return CheckOutcome(
        outcome="warn" if is_plausible else "fail",
        summary=f"{len(constant_features):,} of {len(features):,} features are constant in all "
        f"{len(train_rows):,} train rows of fold 0: {_format_names(ordered_names)}; "
        f"'{ordered_names[0]}' is {value}.",
        numbers={"features": len(features), "constant_features": len(constant_features)},
        fault="constant column",
    )


def find_constant_target(workload: Workload, y: Tensor) -> CheckOutcome | None:
    """Return a finding when all train targets are equal, or None.

    The finding is only a warning if ``expects_signal`` is False. A workload whose loss ignores the
    target, such as the residual of a differential equation, may declare a constant dummy target.

    Args:
        workload: Declares whether a signal is expected.
        y: Targets of the train examples (N, ...).
    """
    rows = y.reshape(len(y), -1)
    if len(rows) < 2 or not bool((rows == rows[:1]).all()):
        return None
    value = ", ".join(f"{number:g}" for number in rows[0, :5].tolist())
    return CheckOutcome(
        outcome="fail" if workload.expects_signal else "warn",
        summary=f"All {len(rows):,} train targets of fold 0 ('{workload.target_column}') are "
        f"{value}.",
        numbers={"train_examples": len(rows), "distinct_targets": 1},
        fault="constant target",
    )


def _is_constant(series: "pd.Series[Any]") -> bool:
    if series.dtype.kind not in "fiu":
        return int(series.map(str).nunique()) <= 1
    values = series.to_numpy(np.float64, na_value=np.nan)
    values = values[~np.isnan(values)]
    if values.size == 0:
        return True
    low, high = float(values.min()), float(values.max())
    return high - low <= _MAX_RELATIVE_RANGE * max(abs(low), abs(high))


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{name}'" for name in names[:5]) + more
