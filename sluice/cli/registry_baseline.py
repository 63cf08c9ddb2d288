"""Imports the predictions of an MLflow model as the baseline of a pipeline."""

import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.base.errors import SettingsError
from sluice.base.receipts import Receipt
from sluice.base.redaction import redact
from sluice.cli.registry_access import artifact_store, open_ledger

if TYPE_CHECKING:
    import pandas as pd

    from sluice.config.pipeline import PipelineSettings
    from sluice.tracking.mlflow_predictions import MlflowModel

MLFLOW = "mlflow:"


def import_baseline(
    source: str,
    *,
    pipeline: str | None,
    predictions: str | None,
    uri: str | None,
    trust: Sequence[str],
    timeout_s: float,
    actor: str,
    key: Path | None,
) -> Receipt:
    """Import the predictions of a registered model, after checking that they cover all test rows.

    Args:
        source: 'mlflow:/NAME/VERSION'.
        pipeline: Name or file of the pipeline that gets the predictions as its baseline.
        predictions: Path of the file with the predictions, among the artifacts of the model's run;
            None to run the model.
        uri: Tracking URI; None for the URI in the pipeline's settings.
        trust: Models that the user trusts, as 'mlflow:/NAME/VERSION'. The model is run only if
            ``trust`` contains ``source``.
        timeout_s: Time limit for requests and predictions [s].
        actor: Person who imports the predictions, for the history.
        key: File of the key that signs the change; None for no signature.

    Raises:
        SettingsError: An option is missing, or both or neither of ``predictions`` and trust in the
            model are given.
        UnknownVersion, SourceError: The server has no such model, or cannot be reached.
        ContractError: The predictions do not suit the pipeline.
    """
    from sluice.tracking.mlflow_predictions import MlflowModel, require_client

    model = MlflowModel.parse(source)
    if pipeline is None:
        raise SettingsError(
            f"An import of {source} requires --pipeline, which is missing.",
            cause="The predictions become the baseline of this pipeline.",
            fix="Give the name of the pipeline, or the path of its YAML file.",
        )
    is_trusted = source in trust
    if (predictions is None) != is_trusted:
        raise SettingsError(
            f"{source} needs either --predictions, or --trust {source}, got "
            f"{'both' if is_trusted else 'neither'}.",
            cause="Loading a model of MLflow can execute any code that is stored in the model. A "
            "file of predictions is only read.",
            fix="Give --predictions with the path of a CSV or Parquet file among the artifacts of "
            f"the model's run. If you trust everybody who could write the model: --trust {source}",
        )
    settings = _pipeline_settings(pipeline)
    mlflow_settings = settings.tracking.mlflow
    address = uri or (mlflow_settings.uri if mlflow_settings else None)
    if address is None:
        raise SettingsError(
            "The address of the MLflow server is required and missing.",
            fix="Give --uri, or set MLFLOW_TRACKING_URI or tracking.mlflow.uri in the pipeline.",
        )
    require_client()
    with open_ledger(key, create=True) as ledger:
        receipt = _import_predictions(
            model,
            settings,
            address,
            predictions=predictions,
            timeout_s=timeout_s,
            evidence={
                "uri": redact(address),
                "from": predictions or "the model itself, which was run",
                "trusted": is_trusted,
                "actor": actor,
            },
        )
        ledger.record_receipt(receipt, actor=actor)
    return receipt


def _import_predictions(
    model: "MlflowModel",
    settings: "PipelineSettings",
    uri: str,
    *,
    predictions: str | None,
    timeout_s: float,
    evidence: dict[str, str | bool],
) -> Receipt:
    from sluice.config.resolved import resolve
    from sluice.evaluation import imported_baseline
    from sluice.evaluation.suites.version_scoring import SourceRows
    from sluice.tracking.mlflow_predictions import fetch_predictions

    workload = resolve(settings).workload
    rows = SourceRows.load(workload)
    description = f"The predictions of {model}"
    with tempfile.TemporaryDirectory(prefix="sluice-mlflow-") as folder_name:
        folder, features = Path(folder_name), None
        if predictions is None:
            features = folder / "features.parquet"
            rows.frame[list(workload.feature_columns)].to_parquet(features)
        fetched_predictions = fetch_predictions(
            model,
            uri=uri,
            artifact=predictions,
            features=features,
            folder=folder,
            timeout_s=timeout_s,
            environ=os.environ,
        )
        table = _read_table(fetched_predictions.path)
    if predictions is None:
        table = imported_baseline.label_predictions(table, rows.frame, what=description)
    table = imported_baseline.normalize_predictions(table, rows.frame.index, what=description)
    imported_baseline.outputs_by_fold(table, workload, rows.frame, rows.folds, what=description)
    return imported_baseline.store_predictions(
        table,
        artifact_store(),
        pipeline=settings.name,
        source=str(model),
        evidence={**evidence, "run_id": fetched_predictions.run_id},
        at=datetime.now(UTC),
    )


def _read_table(path: Path) -> "pd.DataFrame":
    from sluice.data.schema import Schema
    from sluice.data.source_settings import CsvSource, ParquetSource
    from sluice.data.sources import load_rows

    source = CsvSource if path.suffix == ".csv" else ParquetSource
    return load_rows(source(uri=str(path), index=None), schema=Schema(columns=()))


def _pipeline_settings(pipeline: str) -> "PipelineSettings":
    from sluice.config.pipeline import defs_folder, find_pipeline

    return find_pipeline(pipeline, defs_folder())
