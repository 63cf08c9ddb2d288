"""Predictions of an existing model as the baseline, which candidates must beat.

An import checks the predictions, stores them under their digest, and records a receipt. The
evaluation reads only the stored numbers. It does not load the model, which could execute code.
"""

import io
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, GateBlocked
from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.data.folds import Fold
from sluice.data.table_bytes import read_table_bytes
from sluice.evaluation.outputs import examples_of
from sluice.evaluation.simple_rules import Baseline, BaselineSettings, choose_baseline
from sluice.evaluation.unseen_members import row_labels
from sluice.registry.readonly import ReadonlyLedger
from sluice.workloads.workload import Workload

GATE = "baseline"
"""Value of ``Receipt.gate`` in the receipts of imported predictions."""

ROW_COLUMN = "row"
"""Name of the column of index labels in a table of predictions."""


def label_predictions(predictions: pd.DataFrame, frame: pd.DataFrame, *, what: str) -> pd.DataFrame:
    """Return the predictions for all rows of the frame, with a column of their index labels.

    Raises:
        ContractError: The number of rows differs.
    """
    if len(predictions) != len(frame):
        raise ContractError(
            f"{what} must predict every row of the features, {len(frame)} rows, got "
            f"{len(predictions)} predictions.",
            fix="Return one prediction for each row, in the same order.",
        )
    return predictions.assign(**{ROW_COLUMN: row_labels(frame.index)})


def normalize_predictions(table: pd.DataFrame, index: pd.Index, *, what: str) -> pd.DataFrame:
    """Return a table with the labels as text, and the outputs as the columns '0', '1' and so on.

    Args:
        table: Column ``row`` with labels of the index, and one column for each output.
        index: Index of the feature frame, which determines the form of the labels.
        what: Name of the table for messages.

    Raises:
        ContractError: There is no column ``row``, a label occurs twice or is not a date, or an
            output is not a finite number.
    """
    outputs = table.drop(columns=ROW_COLUMN, errors="ignore")
    if ROW_COLUMN not in table.columns or outputs.shape[1] == 0:
        raise ContractError(
            f"{what} must have the column '{ROW_COLUMN}' and a column for each output, got the "
            f"columns {', '.join(map(str, table.columns)) or 'none'}.",
            fix=f"Write the index of the features to the column '{ROW_COLUMN}'.",
        )
    labels = pd.Index(_to_row_labels(table[ROW_COLUMN], index, what=what))
    if not labels.is_unique:
        repeated = labels[labels.duplicated()]
        raise ContractError(
            f"{what} must have one prediction for each row, got "
            f"{pluralize(len(repeated), 'duplicate')}; the first repeated row is {repeated[0]}.",
            fix="Remove the duplicates.",
        )
    nonnumeric_columns = [
        str(name) for name in outputs.columns if outputs[name].dtype.kind not in "iuf"
    ]
    if nonnumeric_columns:
        raise ContractError(
            f"{what} must be numbers, but these columns are not: {', '.join(nonnumeric_columns)}.",
            fix=f"Remove these columns, or name the column of the labels '{ROW_COLUMN}'.",
        )
    values = outputs.to_numpy(np.float64)
    nonfinite_rows = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(nonfinite_rows):
        raise ContractError(
            f"{what} must be finite, but {len(nonfinite_rows)} of {len(values)} rows are not; the "
            f"first is row {labels[nonfinite_rows[0]]}.",
            fix="Predict every row.",
        )
    columns = {str(i): values[:, i] for i in range(values.shape[1])}
    return pd.DataFrame({ROW_COLUMN: labels.to_numpy(object), **columns})


def outputs_by_fold(
    table: pd.DataFrame,
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    *,
    what: str,
) -> dict[int, Tensor]:
    """Return the predictions for the test examples of each fold, with the shape of the output.

    Args:
        table: Result of ``normalize_predictions``.
        workload: Workload with the examples.
        frame: Feature frame.
        folds: Folds whose test rows are compared.
        what: Name of the table for messages.

    Raises:
        ContractError: A test row has no prediction, or the number of outputs is wrong.
    """
    labels, predicted_labels = row_labels(frame.index), pd.Index(table[ROW_COLUMN])
    values = table.drop(columns=ROW_COLUMN).to_numpy(np.float64)
    outputs = {}
    for fold, examples in examples_of(workload, frame, folds):
        test_labels = labels[examples.rows]
        positions = predicted_labels.get_indexer(pd.Index(test_labels))
        missing_positions = np.flatnonzero(positions < 0)
        if len(missing_positions):
            raise ContractError(
                f"{what} must have a prediction for each of the {len(test_labels)} test rows of "
                f"fold {fold.fold_id}, but {len(missing_positions)} are missing; the first is row "
                f"{test_labels[missing_positions[0]]}. {_describe_rows(predicted_labels)}",
                cause="The rows of the source are newer than the predictions, or their index "
                "labels have another format.",
                fix="Predict on the current rows of the source, and import the predictions again.",
            )
        y = examples.targets
        shape = tuple(workload.output_shape(y))
        num_outputs = math.prod(shape[1:])
        if num_outputs != values.shape[1]:
            raise ContractError(
                f"{what} must have {pluralize(num_outputs, 'output')} for each row, like a "
                f"network of this workload, got {values.shape[1]}.",
                fix="Write one column for each output; for a classifier one log-probability for "
                "each class.",
            )
        dtype = y.dtype if y.is_floating_point() else torch.float32
        outputs[fold.fold_id] = torch.from_numpy(values[positions]).to(dtype).reshape(shape)
    return outputs


def store_predictions(
    table: pd.DataFrame,
    store: ArtifactStore,
    *,
    pipeline: str,
    source: str,
    evidence: Mapping[str, Any],
    at: datetime,
) -> Receipt:
    """Store imported predictions, and return the receipt for the ledger.

    Args:
        table: Result of ``normalize_predictions``.
        store: Artifact store.
        pipeline: Pipeline that may use the predictions.
        source: Name of the model, such as 'mlflow:/demand/3'.
        evidence: Origin of the predictions, name of the user who imported them, and whether this
            user trusted the code of the model.
        at: Time of the import.
    """
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return Receipt(
        gate=GATE,
        outcome="pass",
        passed=True,
        subject={
            "pipeline": pipeline,
            "baseline": source,
            "predictions": store.put(buffer.getvalue()),
        },
        evidence={**evidence, "rows": len(table), "outputs": table.shape[1] - 1},
        reason=f"{len(table)} predictions of {source} were imported.",
        decided_at=at,
    )


def load_baseline(
    ledger: ReadonlyLedger,
    pipeline: str,
    source: str,
    store: ArtifactStore,
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
) -> Baseline:
    """Return the newest imported predictions of a model as a baseline.

    Raises:
        GateBlocked: The predictions were not imported for this pipeline.
        IntegrityError: The stored predictions are missing or damaged.
        ContractError: See ``outputs_by_fold``.
    """
    receipt = ledger.find_receipt(GATE, {"pipeline": pipeline, "baseline": source})
    if receipt is None:
        raise GateBlocked(
            f"{pipeline}: baseline.predictions is {source}, whose predictions were not imported "
            f"into the registry {ledger.url}.",
            fix=f"Run: sluice registry import {source} --pipeline {pipeline} --predictions PATH",
        )
    what = f"The predictions of {source}"
    kinds = {ROW_COLUMN: "O", **{str(i): "f" for i in range(int(receipt.evidence["outputs"]))}}
    table = read_table_bytes(store.get(receipt.subject["predictions"]), what=what, kinds=kinds)
    outputs = outputs_by_fold(table, workload, frame, folds, what=what)
    return Baseline(name=source, outputs=outputs, losses={})


def find_baseline(
    ledger: ReadonlyLedger,
    pipeline: str,
    settings: BaselineSettings,
    store: ArtifactStore,
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
) -> Baseline:
    """Return the baseline with which a candidate is compared while no version is in production.

    Raises:
        GateBlocked, IntegrityError, ContractError: See ``load_baseline`` and ``choose_baseline``.
    """
    if settings.predictions is None:
        return choose_baseline(workload, frame, folds, settings)
    return load_baseline(ledger, pipeline, settings.predictions, store, workload, frame, folds)


def _describe_rows(labels: pd.Index) -> str:
    if not len(labels):
        return "There are no predictions."
    return f"There are predictions for {len(labels)} rows, from {labels[0]} to {labels[-1]}."


def _to_row_labels(column: pd.Series, index: pd.Index, *, what: str) -> Any:
    """Return the labels of a column in the format of ``row_labels(index)``."""
    if not isinstance(index, pd.DatetimeIndex):
        return row_labels(pd.Index(column))
    try:
        times = pd.DatetimeIndex(pd.to_datetime(column, format="ISO8601", utc=index.tz is not None))
    except (ValueError, TypeError, OverflowError) as error:
        raise ContractError(
            f"{what} must have dates in the column '{ROW_COLUMN}', because the index of the "
            f"features contains dates: {error}.",
            fix="Write the index of the features in ISO 8601, such as 2026-03-14T09:00:00.",
        ) from error
    return row_labels(times if index.tz is None else times.tz_convert(index.tz))
