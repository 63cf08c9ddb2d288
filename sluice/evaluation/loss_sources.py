"""Builds a table of losses from a file, a data frame or an array.

Shape legend: S = seeds, N = test rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.digests import digest_frame
from sluice.base.errors import ContractError
from sluice.evaluation.losses import LossTable, digest_of_rows, read_losses

LossSource = LossTable | pd.DataFrame | Path | str | NDArray[Any] | Sequence[Any]
"""Table, data frame in the long format, file of losses, or array of losses (S, N) or (N,)."""


def losses_of(
    source: Any,
    *,
    what: str,
    fold_N: Sequence[int] | NDArray[np.int64] | None = None,
    cluster_N: Sequence[Any] | NDArray[Any] | None = None,
) -> LossTable:
    """Return the losses of one model.

    The subject of the table is the digest of its content, so a file and a data frame with the same
    losses are the same model. A ``LossTable`` is returned unchanged.

    Args:
        source: See ``LossSource``. An array (S, N) has one line of losses per seed; an array (N,)
            belongs to a rule without seeds. The test rows of an array are in time order.
        what: Role of the losses for messages, such as 'candidate'.
        fold_N: Fold of each row of an array; one fold by default.
        cluster_N: Cluster of each row of an array, such as the day of several assets.

    Raises:
        SourceError: A file is missing, empty, or of another format.
        ContractError: The losses do not fulfil the contract of ``LossTable``, or folds or clusters
            are passed as arguments with a file or a data frame.
    """
    if isinstance(source, LossTable):
        return source
    is_table = isinstance(source, str | Path | pd.DataFrame)
    if is_table and not (fold_N is None and cluster_N is None):
        raise ContractError(
            f"The folds and clusters of the {what} must be columns of its table, but were passed "
            "as arguments.",
            fix="Add the columns 'fold' and 'cluster' to the table, and leave the arguments out.",
        )
    if isinstance(source, str | Path):
        table = read_losses(Path(source), subject="")
        name = str(source)
    elif isinstance(source, pd.DataFrame):
        table, name = LossTable.from_frame(source, subject=""), what
    else:
        table, name = _from_array(source, what, fold_N, cluster_N), what
    return replace(table, subject=digest_frame(table.to_frame()), source=name)


def _from_array(
    source: Any,
    what: str,
    fold_N: Sequence[int] | NDArray[np.int64] | None,
    cluster_N: Sequence[Any] | NDArray[Any] | None,
) -> LossTable:
    try:
        loss = np.asarray(source, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"The losses of the {what} must be numbers of shape (seeds, rows) or (rows,), got "
            f"{type(source).__name__}: {error}.",
            fix="Pass an array, a data frame, or the path of a Parquet or CSV file.",
        ) from error
    if loss.ndim not in (1, 2) or loss.size == 0:
        raise ContractError(
            f"The losses of the {what} must have shape (seeds, rows) or (rows,), got {loss.shape}.",
            fix="Pass one loss per test row and, for several seeds, one line of losses per seed.",
        )
    num_rows = loss.shape[-1]
    fold = np.zeros(num_rows, np.int64) if fold_N is None else np.asarray(fold_N, np.int64)
    label = np.arange(num_rows).astype(np.str_)
    return LossTable(
        subject="",
        window=digest_of_rows(fold, label),
        seeds=tuple(range(len(loss))) if loss.ndim == 2 else (),
        fold_N=fold,
        label_N=label,
        loss_SN=np.atleast_2d(loss),
        cluster_N=None if cluster_N is None else np.asarray(cluster_N).astype(np.str_),
    )
