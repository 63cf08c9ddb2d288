"""Aggregates clustered rows, such as the assets of one day or the documents of one query.

Rows of a cluster share unpredictable noise, so they are not independent observations. Their losses
are summed, so that each cluster is one observation. Clusters are in time order.

Shape legend: S = seeds, N = rows, C = clusters.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.evaluation.losses import LossTable


def aggregate_clusters(table: LossTable) -> LossTable:
    """Return the table with one column per cluster, or the unchanged table without clusters.

    The loss of a cluster is the sum of the losses of its rows, times C / N. The mean over clusters
    therefore equals the mean over rows even for unequal clusters. Clusters are in the order of
    their first rows.

    Raises:
        ContractError: A cluster has rows in several folds. Folds are assumed to be independent.
    """
    if table.cluster_N is None:
        return table
    fold_cluster_pairs = pd.MultiIndex.from_arrays([table.fold_N, table.cluster_N])
    cluster_index_N, clusters = pd.factorize(fold_cluster_pairs)
    fold_C = clusters.get_level_values(0).to_numpy(np.int64)
    label_C = clusters.get_level_values(1).to_numpy(np.str_)
    _require_one_fold(fold_C, label_C)
    sums_CS = np.zeros((len(clusters), len(table.loss_SN)))
    np.add.at(sums_CS, cluster_index_N, table.loss_SN.T)
    return replace(
        table,
        fold_N=fold_C,
        label_N=label_C,
        loss_SN=np.ascontiguousarray(sums_CS.T) * (len(clusters) / table.num_rows),
        cluster_N=None,
    )


def fold_scale(table: LossTable, fold: int) -> float:
    """Return the factor that converts a fold's mean over clusters to its mean over rows."""
    clustered = aggregate_clusters(table)
    num_fold_rows = int((table.fold_N == fold).sum())
    num_fold_clusters = int((clustered.fold_N == fold).sum())
    return (table.num_rows / clustered.num_rows) * (num_fold_clusters / num_fold_rows)


def _require_one_fold(fold_C: NDArray[np.int64], label_C: NDArray[np.str_]) -> None:
    names, counts = np.unique(label_C, return_counts=True)
    if (counts > 1).any():
        name = str(names[counts > 1][0])
        folds = ", ".join(map(str, fold_C[label_C == name]))
        raise ContractError(
            f"A cluster must be in one fold, got {pluralize(int((counts > 1).sum()), 'cluster')} "
            f"in several folds, first {name!r} in folds {folds}.",
            cause="Folds are assumed to be independent, but the rows of a cluster are dependent.",
            fix="Split the folds by cluster, or use a single fold.",
        )
