"""Base class of workloads whose features are computed from declared columns of their raw rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.expectations import Expectation, InSet, NotNull, RowCount
from sluice.data.folds import Fold, RowRange, rows_needed, walk_forward
from sluice.data.hash_order import in_hash_order
from sluice.data.schema import Column, ColumnKind, Schema
from sluice.data.validation import validate_schema
from sluice.metrics.regression import regression_metrics
from sluice.workloads.codecs.codec import Codec
from sluice.workloads.codecs.raw_rows import RawRowsCodec
from sluice.workloads.columns import InputColumn, Lag
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

KEY = "key"
"""Name of the index of rows in hash order."""

CLUSTER = "cluster"
"""Auxiliary column with the index label of each row, if several rows have the same index label."""

_MIN_TRAIN_ROWS = 16
_MAX_ELEMENTS = 64
"""Maximum number of rows of a request. The features of one row take about 2 ms."""
_METRICS = ("mae", "rmse", "r2", "spearman")
"""Names of the metrics of ``regression_metrics`` that a regression reports."""


class ColumnsWorkload(Workload):
    """Workload of rows with a target, and with one or more features for each of ``inputs``.

    A subclass implements ``load_rows``, sets ``target_column`` and ``inputs``, and calls
    ``_declare_columns`` at the end of its constructor; a classifier also sets ``task`` and
    ``classes``. Rows with a missing target are omitted.
    """

    inputs: tuple[InputColumn, ...]
    """Columns from which the features are computed."""

    index_kind: ColumnKind | None = "datetime"
    """Type of the index of rows in time order; None accepts every type."""

    repeated_inputs: bool = False
    """Whether independent rows with equal inputs are separate observations, such as passengers of
    the same class, sex and age group. Such rows are distributed over train, validation and test
    rows. Otherwise they count as copies of one row, and are neighbors."""

    def _declare_columns(self, *, index: str | None) -> None:
        """Set the schemas, feature columns and expectations.

        Args:
            index: Name of the index that puts rows in time order; None for independent rows, in the
                order of ``in_key_order``.

        Raises:
            ContractError: The inputs do not define distinct features, or an input needs a time
                order that the rows do not have.
        """
        self._index = index
        is_ordered = index is not None
        self._require_usable_inputs(is_ordered=is_ordered)
        target = self._target
        self.raw_schema = Schema(
            columns=tuple(
                {
                    column.name: column
                    for column in (*(each.raw_column for each in self.inputs), target)
                    if column.name != index
                }.values()
            ),
            index_name=index or KEY,
            index_kind=self.index_kind if is_ordered else "int",
            index_unique=not self.cluster_column,
        )
        features = [column for each in self.inputs for column in each.features]
        self.feature_columns = tuple(column.name for column in features)
        kind: ColumnKind = "int" if self.task == "classification" else "float"
        self.feature_schema = self.raw_schema.model_copy(
            update={
                "columns": (
                    *features,
                    Column(name=self.target_column, kind=kind),
                    *([Column(name=CLUSTER, kind="string")] if self.cluster_column else []),
                )
            }
        )
        self.raw_expectations: tuple[Expectation, ...] = self._raw_expectations()
        self.feature_expectations: tuple[Expectation, ...] = (RowCount(low=self.required_rows),)
        if self.task == "regression":
            self.headline_metric = "mae"

    @property
    def required_rows(self) -> int:
        """Minimum number of rows for all folds."""
        return rows_needed(
            self.settings.folds,
            horizon_rows=self.horizon_rows,
            min_train_rows=_MIN_TRAIN_ROWS + self.settings.seq_len,
        )

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the features of all inputs and the target.

        Rows without a target, or without the earlier value of a ``Lag``, are omitted.

        Raises:
            SchemaError: ``raw`` does not match the raw schema.
            ContractError: A target is not one of ``classes``.
        """
        validate_schema(raw, self.raw_schema, "raw")
        columns: dict[str, Any] = {}
        for column in self.inputs:
            columns |= column.compute(raw)
        is_complete = raw[self.target_column].notna().to_numpy()
        for column in self.inputs:
            if isinstance(column, Lag):
                is_complete = is_complete & ~np.isnan(columns[column.features[0].name])
        columns[self.target_column] = self._targets(raw)
        if self.cluster_column:
            columns[CLUSTER] = raw.index.astype("str")
        frame = pd.DataFrame(columns, index=raw.index).loc[is_complete]
        if self.task == "classification":
            frame = frame.astype({self.target_column: "int64"})
        return frame

    def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:
        """Return walk-forward folds; rows with the same index label are in the same split."""
        if self.cluster_column is None:
            return super().plan_folds(frame)
        starts = np.append(np.flatnonzero(~frame.index.duplicated()), len(frame)).tolist()
        folds = walk_forward(len(starts) - 1, self.settings.folds, horizon_rows=self.horizon_rows)

        def to_row_range(labels: RowRange) -> RowRange:
            return RowRange(start=starts[labels.start], stop=starts[labels.stop])

        return tuple(
            Fold(
                fold_id=fold.fold_id,
                train=to_row_range(fold.train),
                val=to_row_range(fold.val),
                test=to_row_range(fold.test),
            )
            for fold in folds
        )

    def metrics(
        self, output: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> Mapping[str, float]:
        """Return loss, and the metrics of a regression or a classifier; NaN where undefined."""
        metrics = super().metrics(output, examples, frame)
        if self.task == "classification":
            return metrics
        target, forecast = examples.targets.flatten(), output.detach().cpu().flatten()
        values = regression_metrics(target.numpy(), forecast.numpy()).numbers
        return {**metrics, **{name: values[name] for name in _METRICS}}

    def codec(self) -> Codec:
        """Return how rows of the table become inputs: clients send the columns of ``inputs``.

        If rows are independent, a client sends one row for each prediction. In time order, it also
        sends the index and as many earlier rows as the largest ``Lag`` and ``seq_len`` need. If
        earlier targets are inputs, the client sends these, too. A subclass whose
        ``compute_features`` uses more earlier rows overrides this method. Clients send windows of
        features instead if the index has no next value (texts), or if independent rows or rows with
        clusters form windows.
        """
        is_ordered = self._index is not None
        can_continue = self.index_kind in ("datetime", "int", "float")
        lags = [column for column in self.inputs if isinstance(column, Lag)]
        context_rows = max((lag.rows for lag in lags), default=0) + self.settings.seq_len
        is_series = is_ordered and not self.cluster_column
        if (is_ordered and not can_continue) or (context_rows > 1 and not is_series):
            return super().codec()
        placeholder = {self.target_column: str(self.classes[0]) if self.classes else 0.0}
        has_earlier_targets = any(column.name == self.target_column for column in self.inputs)
        return RawRowsCodec(
            self,
            context_rows=context_rows,
            unknown=({} if has_earlier_targets else placeholder) | ({} if is_ordered else {KEY: 0}),
            unknown_newest=placeholder if has_earlier_targets else {},
            as_labels=True,
            max_elements=_MAX_ELEMENTS,
        )

    @property
    def _target(self) -> Column:
        kind: ColumnKind = "string" if self.task == "classification" else "float"
        return Column(name=self.target_column, kind=kind, nullable=True)

    def _require_usable_inputs(self, *, is_ordered: bool) -> None:
        names = [column.name for each in self.inputs for column in each.features]
        repeated_names = sorted({name for name in names if names.count(name) > 1})
        lags = [each.name for each in self.inputs if isinstance(each, Lag)]
        if not names or repeated_names or self.target_column in names:
            problem = (
                f"the features {', '.join(repeated_names)} twice"
                if repeated_names
                else f"the target '{self.target_column}' as a feature"
                if names
                else "no features"
            )
            raise ContractError(
                f"The inputs of {type(self).__name__} must define distinct features, got "
                f"{problem}.",
                fix="Declare every column once in 'inputs', and not the target.",
            )
        if lags and not is_ordered:
            raise ContractError(
                f"Lag('{lags[0]}') requires rows in time order, but the source has no index.",
                fix="Set 'index' of the source to the column with the time, or remove the lag.",
            )

    def _raw_expectations(self) -> tuple[Expectation, ...]:
        required_names = [column.name for column in self.raw_schema.columns if not column.nullable]
        classes = [InSet(column=self.target_column, values=self.classes)] if self.classes else []
        return (
            RowCount(low=self.required_rows),
            *(NotNull(column=name) for name in required_names),
            *classes,
        )

    def in_key_order(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows in the order of a hash of their inputs, with unique keys.

        Rows with equal inputs are neighbors, so that a boundary between train and test rows divides
        at most one group of equal rows. With ``repeated_inputs``, the number of earlier rows with
        equal inputs is part of the hash, so that these rows are distributed over all splits. A row
        keeps its key if rows are appended to the table.
        """
        names = list(dict.fromkeys(each.name for each in self.inputs))
        values = {
            name: column if column.dtype.kind in "fiub" else column.astype("str").fillna("")
            for name, column in rows[names].reset_index(drop=True).items()
        }
        position_column = "row"
        while position_column in names:
            position_column += "_"
        ordered_rows = in_hash_order(
            pd.DataFrame({**values, position_column: np.arange(len(rows))}), names, name=KEY
        )
        repeats = ordered_rows.groupby(level=0).cumcount().to_numpy()
        if self.repeated_inputs:
            numbered_rows = pd.DataFrame(
                {
                    "key": ordered_rows.index,
                    "repeat": repeats,
                    position_column: ordered_rows[position_column].to_numpy(),
                }
            )
            ordered_rows = in_hash_order(numbered_rows, ["key", "repeat"], name=KEY)
            repeats = ordered_rows.groupby(level=0).cumcount().to_numpy()
        keys = pd.Index(ordered_rows.index.to_numpy() + repeats, name=KEY)
        return rows.iloc[ordered_rows[position_column].to_numpy()].set_axis(keys)

    def _targets(self, raw: pd.DataFrame) -> Any:
        target = raw[self.target_column]
        if self.task == "regression":
            return target.to_numpy(np.float64, na_value=np.nan)
        class_numbers = {
            str(label): class_number for class_number, label in enumerate(self.classes)
        }
        classes = target.map(class_numbers)
        is_unknown = (classes.isna() & target.notna()).to_numpy()
        if is_unknown.any():
            row = int(is_unknown.argmax())
            raise ContractError(
                f"The target '{self.target_column}' must be one of {list(class_numbers)}, got "
                f"{target.iloc[row]!r} at row {row} (index label {raw.index[row]}).",
                cause="The source has a new class, or a label is spelled differently.",
                fix="Correct the source, or add the label to 'classes' and train again.",
            )
        return classes.to_numpy(np.float64, na_value=np.nan)
