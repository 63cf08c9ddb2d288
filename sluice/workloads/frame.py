"""Workload on a data frame, for users who write no workload class and have no data file.

``workload_of_frame`` stores the frame in the artifact store, so that other processes read the same
rows.
"""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.data.folds import FoldSettings
from sluice.data.table import save_table
from sluice.workloads.columns import Category, Number
from sluice.workloads.columns_workload import ColumnsWorkload
from sluice.workloads.frame_settings import (
    FrameSettings,
    RowOrder,
    Task,
    as_text,
    infer_settings,
    require_columns,
)
from sluice.workloads.workload import WorkloadSettings

_TIME = "time"
"""Name of the index of the stored table. When rows without a time order are loaded, they get the
index of the hash order instead."""


def workload_of_frame(
    frame: pd.DataFrame,
    target: str,
    *,
    features: Sequence[str] | None = None,
    task: Task = "auto",
    order: RowOrder = "auto",
    horizon_rows: int | None = None,
    folds: FoldSettings | None = None,
) -> "FrameWorkload":
    """Return a workload that predicts one column of a data frame from the others.

    The rows are stored in SLUICE_HOME, where the processes of the POC gate and of a training read
    them.

    Args:
        frame: The rows. Numeric columns are used as they are; a text column becomes one input for
            each of its values.
        target: Column to predict.
        features: Input columns; all others by default.
        task: 'regression' or 'classification'. By default texts, booleans and up to 20 distinct
            integers are classes.
        order: 'time' if each row is later than the row before, 'hash' if rows are independent. By
            default an index of dates means 'time'.
        horizon_rows: Forecast horizon: number of rows until the target of a row is known [rows]. By
            default 1 if the rows are in time order, otherwise 0.
        folds: Train, validation and test splits. By default four if the rows are in time order, and
            two if they are independent.

    Raises:
        ContractError: A column does not exist, or can be neither an input nor a target. A missing
            number, or a missing value of the target, is refused; a missing text is a category.
        StorageError: The rows cannot be stored.
    """
    rows = frame.rename(columns=str)
    require_columns(rows, [target, *(features or ())])
    if features is not None:
        rows = rows[list(dict.fromkeys([*features, target]))]
    if isinstance(frame.index, pd.DatetimeIndex) and order != "hash":
        rows = rows.rename_axis(_TIME).sort_index(kind="stable")
    else:
        rows = rows.reset_index(drop=True).rename_axis(_TIME)
    settings = infer_settings(
        rows,
        table="",
        target=target,
        features=features,
        task=task,
        order=order,
        horizon_rows=horizon_rows,
        folds=folds,
    )
    for name in settings.numbers:
        rows[name] = rows[name].astype("float64")
    for name in settings.categories:
        rows[name] = as_text(rows[name])
    if settings.labels:
        rows[target] = as_text(rows[target])
    record = save_table(rows, _artifact_store())
    return FrameWorkload(settings.model_copy(update={"table": record.artifact}))


class FrameWorkload(ColumnsWorkload):
    """Workload of a stored data frame: numbers and one-hot categories as inputs, one target."""

    settings_type: ClassVar[type[WorkloadSettings]] = FrameSettings
    settings: FrameSettings
    index_kind = None
    default_architecture = "mlp"

    def __init__(self, settings: FrameSettings) -> None:
        self.settings = settings
        self.target_column = settings.target
        self.inputs = (
            *(Number(name) for name in settings.numbers),
            *(Category(name, values) for name, values in settings.categories.items()),
        )
        if settings.labels:
            self.task = "classification"
            self.classes = settings.labels
        self.horizon_rows = settings.horizon_rows
        self.repeated_inputs = settings.repeated_inputs
        self._declare_columns(index=_TIME if settings.time_ordered else None)

    def load_rows(self) -> pd.DataFrame:
        """Return the stored rows, in time order or in the order of a hash of their inputs.

        Raises:
            IntegrityError: The stored table is missing or damaged.
        """
        rows = pd.read_parquet(io.BytesIO(_artifact_store().get(self.settings.table)))
        return rows if self.settings.time_ordered else self.in_key_order(rows)


def _artifact_store() -> ArtifactStore:
    return ArtifactStore(Home.from_environment(os.environ, cwd=Path.cwd()).artifacts)
