"""Rows that belong together: the assets of one day, the documents of one query.

Rows of a cluster share what no model can know, so they are no independent evidence. Their losses
are added up, and the cluster then stands where a row would: as one observation in time order.

Shape legend: S = seeds, N = rows, C = clusters.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.evaluation.losses import LossTable


def by_cluster(table: LossTable) -> LossTable:
    """Return the table with one column for each cluster; the table itself when it has none.

    A cluster's number is its sum of losses times C / N, so that the mean over clusters is the mean
    over rows, however unequal clusters are. Clusters stand in the order of their first rows.

    Raises:
        ContractError: A cluster has rows in two folds, which are taken for independent.
    """
    if table.cluster_N is None:
        return table
    keys = pd.MultiIndex.from_arrays([table.fold_N, table.cluster_N])
    code_N, found = pd.factorize(keys)
    fold_C = found.get_level_values(0).to_numpy(np.int64)
    label_C = found.get_level_values(1).to_numpy(np.str_)
    _require_one_fold(fold_C, label_C)
    sums_CS = np.zeros((len(found), len(table.loss_SN)))
    np.add.at(sums_CS, code_N, table.loss_SN.T)
    return replace(
        table,
        fold_N=fold_C,
        label_N=label_C,
        loss_SN=np.ascontiguousarray(sums_CS.T) * (len(found) / table.num_rows),
        cluster_N=None,
    )


def fold_scale(table: LossTable, fold: int) -> float:
    """Return what turns a fold's mean over clusters into its mean over rows; 1 without clusters."""
    clustered = by_cluster(table)
    rows, clusters = int((table.fold_N == fold).sum()), int((clustered.fold_N == fold).sum())
    return (table.num_rows / clustered.num_rows) * (clusters / rows)


def _require_one_fold(fold_C: NDArray[np.int64], label_C: NDArray[np.str_]) -> None:
    names, count = np.unique(label_C, return_counts=True)
    if (count > 1).any():
        name = str(names[count > 1][0])
        folds = ", ".join(map(str, fold_C[label_C == name]))
        raise ContractError(
            f"A cluster must lie in one fold, got {int((count > 1).sum())} in several, first "
            f"{name!r} in folds {folds}.",
            cause="Folds are taken for independent of each other, and such rows are not.",
            fix="Split by cluster, or judge the folds as one.",
        )
