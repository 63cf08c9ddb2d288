"""Workload on a data frame, without a class or file of the user's own.

``workload_of_frame`` stores the frame in the artifact store, so that other processes read the same
rows.
"""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from torch import Tensor, nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.data.folds import FoldSettings, RowRange
from sluice.data.hash_order import in_hash_order
from sluice.data.schema import Column, ColumnKind, Schema
from sluice.data.table import save_table
from sluice.data.validation import validate_schema
from sluice.metrics.classification import classification_metrics
from sluice.workloads.frame_settings import (
    FrameSettings,
    RowOrder,
    Task,
    as_text,
    describe_frame,
    require_columns,
)
from sluice.workloads.workload import Examples, Workload, WorkloadSettings

_KEY = "key"
"""Name of the index of independent rows."""
_TIME = "time"
"""Name of the index of rows in time order."""


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
        order: 'time' if each row is later than the one before, 'hash' if rows are independent. By
            default an index of dates means 'time'.
        horizon_rows: Rows from a row to the end of its target; by default 1 in time order [rows].
        folds: Train, validation and test splits; by default four in time order, and two of
            independent rows.

    Raises:
        ContractError: A column does not exist, has gaps, or can be neither an input nor a target.
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
    settings = describe_frame(
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
    stored = save_table(rows, _store())
    return FrameWorkload(settings.model_copy(update={"table": stored.artifact}))


class FrameWorkload(Workload):
    """Rows of a stored data frame: numbers and one-hot categories as inputs, one target."""

    settings_type: ClassVar[type[WorkloadSettings]] = FrameSettings
    settings: FrameSettings

    def __init__(self, settings: FrameSettings) -> None:
        self.settings = settings
        self.target_column = settings.target
        self.horizon_rows = settings.horizon_rows
        self.loss_unit = "nats" if settings.labels else "target units squared"
        self.headline_metric = "macro_f1" if settings.labels else "loss"
        self.scale_target = not settings.labels
        index: ColumnKind | None = None if settings.time_ordered else "int"
        index_name = _TIME if settings.time_ordered else _KEY
        target: ColumnKind = "string" if settings.labels else "float"
        numbers = tuple(Column(name=name) for name in settings.numbers)
        self.raw_schema = Schema(
            columns=(
                *numbers,
                *(Column(name=name, kind="string") for name in settings.categories),
                Column(name=settings.target, kind=target),
            ),
            index_name=index_name,
            index_kind=index,
        )
        indicators = [
            f"{name}={value}" for name, values in settings.categories.items() for value in values
        ]
        self.feature_columns = (*settings.numbers, *indicators)
        self.feature_schema = Schema(
            columns=(
                *numbers,
                # A rare category may be absent from a split.
                *(Column(name=name, constant=True) for name in indicators),
                Column(name=settings.target, kind="int" if settings.labels else "float"),
            ),
            index_name=index_name,
            index_kind=index,
        )

    def load_rows(self) -> pd.DataFrame:
        """Return the stored rows, in time order or in the order of a hash of their inputs.

        Raises:
            IntegrityError: The stored table is missing or damaged.
        """
        rows = pd.read_parquet(io.BytesIO(_store().get(self.settings.table)))
        if self.settings.time_ordered:
            return rows
        inputs = [*self.settings.numbers, *self.settings.categories]
        position = "position"
        while position in rows.columns:
            position += "_"
        ordered = in_hash_order(rows.assign(**{position: np.arange(len(rows))}), inputs, name=_KEY)
        # Rows with equal inputs have equal keys and are neighbours; labels must be unique.
        repeats = ordered.groupby(level=0).cumcount().to_numpy()
        keys = pd.Index(ordered.index.to_numpy() + repeats, name=_KEY)
        return rows.iloc[ordered[position].to_numpy()].set_axis(keys)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the numbers, one indicator for each category, and the target or its class number.

        Raises:
            SchemaError: ``raw`` does not match the raw schema.
        """
        validate_schema(raw, self.raw_schema, "raw")
        settings = self.settings
        columns = {name: raw[name].to_numpy(np.float64) for name in settings.numbers}
        for name, values in settings.categories.items():
            text = raw[name].to_numpy()
            columns |= {f"{name}={value}": (text == value).astype(np.float64) for value in values}
        frame = pd.DataFrame(columns, index=raw.index)
        target = raw[settings.target]
        if not settings.labels:
            return frame.assign(**{settings.target: target.to_numpy(np.float64)})
        numbers = {label: number for number, label in enumerate(settings.labels)}
        return frame.assign(**{settings.target: target.map(numbers).to_numpy(np.int64)})

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return inputs (N, 1, D) and targets (N, 1), or class numbers (N,)."""
        found = super().examples(frame, rows)
        if not self.settings.labels:
            return found
        return Examples(x=found.x, y=found.targets[:, 0].long(), rows=found.rows)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return the shape of the targets, or one logit for each class."""
        return (len(y), len(self.settings.labels)) if self.settings.labels else tuple(y.shape)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the squared error, or the log loss, of each row (B,)."""
        if not self.settings.labels:
            return super().losses(output, y)
        return nn.functional.cross_entropy(output, y, reduction="none")

    def mistakes(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Return 1 where the most probable class is wrong (B,); None for a regression."""
        return (output.argmax(dim=1) != y).float() if self.settings.labels else None

    def metrics(
        self, output: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> Mapping[str, float]:
        """Return the loss, and the metrics of a classifier; undefined metrics are NaN."""
        found = super().metrics(output, examples, frame)
        if not self.settings.labels:
            return found
        # In double precision fewer probabilities are rounded to 0.
        probability = output.detach().double().softmax(dim=1).numpy()
        return {**found, **classification_metrics(examples.targets.numpy(), probability).numbers}


def _store() -> ArtifactStore:
    return ArtifactStore(Home.from_environment(os.environ, cwd=Path.cwd()).artifacts)
