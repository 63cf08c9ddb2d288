"""Check that the features of a partition depend only on the rows of its declared context."""

import pandas as pd

from sluice.base.errors import ContractError
from sluice.config.poc_settings import LookAheadSettings
from sluice.failfast.data.feature_values import ColumnChange, FeatureValues
from sluice.workloads.partitions import PeriodPartitions
from sluice.workloads.workload import Workload


def check_partition_context(
    workload: Workload, name: str, features: pd.DataFrame, wide_features: pd.DataFrame
) -> None:
    """Require that the features of a partition are the same if they are computed from more rows.

    Args:
        workload: Workload that declares ``feature_partitions``.
        name: Name of the partition.
        features: Features of the partition.
        wide_features: Features of the same rows, computed with a larger context.

    Raises:
        ContractError: A value differs by more than rounding, or one of the two frames lacks a row.
    """
    context = (
        f"its own rows, {workload.feature_partitions.look_back_rows} earlier and "
        f"{workload.horizon_rows} later rows (look_back_rows, horizon_rows)"
        if isinstance(workload.feature_partitions, PeriodPartitions)
        else "the rows with its partition key"
    )
    cause = (
        "A window or an exponential mean uses earlier rows, or a feature uses a statistic of all "
        "rows."
    )
    fix = "Declare a larger context, compute the feature from fewer rows, or remove the partitions."
    if not features.index.equals(wide_features.index):
        change = (
            f"{len(wide_features):,} feature rows instead of {len(features):,}"
            if len(wide_features) != len(features)
            else "feature rows with other labels"
        )
        raise ContractError(
            f"The features of partition '{name}' must depend only on {context}. Computed from more "
            f"rows, the partition has {change}.",
            cause=cause,
            fix=fix,
        )
    largest_changes: dict[str, ColumnChange] = {}
    if len(features):
        values = FeatureValues(features, tuple(features.columns), LookAheadSettings().tolerance)
        values.compare(wide_features, features.index, largest_changes)
    if largest_changes:
        largest_change = max(largest_changes.values(), key=lambda column: column.change)
        raise ContractError(
            f"The features of partition '{name}' must depend only on {context}. Computed from more "
            f"rows, '{largest_change.column}' at row {largest_change.row} changes by "
            f"{largest_change.change:.3g} standard deviations.",
            cause=cause,
            fix=fix,
        )
