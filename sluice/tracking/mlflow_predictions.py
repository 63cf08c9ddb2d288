"""Fetches the predictions of a model that is registered on an MLflow server.

The predictions are either read from an artifact of the model's run, or computed by the model.
Loading the model can execute any code, because MLflow stores models as pickles. A caller therefore
needs the explicit consent of the user. The model and the client run in a separate process.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sluice.base.errors import ContractError, SettingsError, SourceError, UnknownVersion
from sluice.base.extras import missing_extra_error
from sluice.base.redaction import redact
from sluice.tracking.client_process import ClientFailed, run_client_process

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MODEL_PATTERN = re.compile(r"mlflow:/(?P<name>[^/@]+)/(?P<version>[1-9]\d*)")
_MAX_RETRIES, _REQUEST_TIMEOUT_S = 1, 20
_OUTPUT_FILE = "predictions.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowModel:
    """A version of a registered model of an MLflow server."""

    name: str
    version: str

    @classmethod
    def parse(cls, source: str) -> Self:
        """Parse 'mlflow:/NAME/VERSION'.

        Raises:
            SettingsError: The text has another form.
        """
        match = _MODEL_PATTERN.fullmatch(source)
        if match is None:
            raise SettingsError(
                f"A registered model of MLflow must be named mlflow:/NAME/VERSION, got {source!r}.",
                fix="Give the number of the version. An alias or a stage is not accepted, because "
                "it can move to another version.",
            )
        return cls(name=match["name"], version=match["version"])

    def __str__(self) -> str:
        return f"mlflow:/{self.name}/{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPredictions:
    """Predictions of a registered model in a local file."""

    path: Path
    """CSV or Parquet file."""

    run_id: str
    """Id of the MLflow run that created the model; empty if the model belongs to no run."""


def require_client() -> None:
    """Raise an error unless the client of MLflow is installed.

    Raises:
        SettingsError: The client is not installed; the message names the extra.
    """
    if find_spec("mlflow") is None:
        import_error = ModuleNotFoundError(name="mlflow")
        raise missing_extra_error(import_error, "Importing from MLflow") or import_error


def fetch_predictions(
    model: MlflowModel,
    *,
    uri: str,
    artifact: str | None,
    features: Path | None,
    folder: Path,
    timeout_s: float,
    environ: Mapping[str, str],
) -> FetchedPredictions:
    """Fetch the predictions of a registered model into a folder.

    Args:
        model: The model.
        uri: Tracking URI of MLflow.
        artifact: Path of a CSV or Parquet file among the artifacts of the model's run; None to load
            and run the model.
        features: Parquet file on which the model predicts; required without ``artifact``. The
            predictions then have one row for each row of the file, in the same order.
        folder: Folder for the file.
        timeout_s: Time limit for the requests and the predictions [s].
        environ: Environment variables, with the credentials of MLflow.

    Raises:
        UnknownVersion: The server has no such model or version.
        SourceError: The server cannot be reached, rejects the request, or has no such artifact; or
            the time limit is reached.
        ContractError: The model cannot be loaded, or fails on the features.
    """
    try:
        result = run_client_process(
            "sluice.tracking.mlflow_predictions",
            {
                "uri": uri,
                "name": model.name,
                "version": model.version,
                "artifact": artifact,
                "features": None if features is None else str(features),
                "folder": str(folder),
            },
            timeout_s=timeout_s,
            folder=folder,
            environ={
                **environ,
                "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(_MAX_RETRIES),
                "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_REQUEST_TIMEOUT_S),
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
        )
    except (ClientFailed, OSError, ValueError) as error:
        result = {"problem": "server", "message": str(error)}
    match result.get("problem"):
        case None:
            return FetchedPredictions(path=Path(result["path"]), run_id=result["run_id"])
        case "unknown":
            raise UnknownVersion(
                f"The MLflow server {redact(uri)} has no {model}.",
                cause=_first_line(result["message"]),
                fix="Check name and version in MLflow, or give another --uri.",
            )
        case "artifact":
            raise SourceError(
                f"The run of {model} has no file {artifact!r} among its artifacts.",
                cause=_first_line(result["message"]),
                fix="Log the predictions with mlflow.log_artifact, and give the path in the run.",
            )
        case "model":
            raise ContractError(
                f"{model} could not predict on the features of the pipeline: "
                f"{_first_line(result['message'])}",
                fix="Install the packages of the model and check the columns of its signature, or "
                "log its predictions and import them with --predictions.",
            )
        case _:
            raise SourceError(
                f"Fetching {model} from the MLflow server {redact(uri)} failed: "
                f"{_first_line(result['message'])}",
                fix="Check that the server runs and accepts your credentials, or give another "
                "--uri or a larger --timeout-s.",
            )


def _first_line(message: str) -> str:
    lines = redact(message).strip().splitlines()
    return lines[0][:500] if lines else ""


def _fetch(payload: Mapping[str, Any]) -> dict[str, str]:
    """Fetch the predictions, in the separate process.

    Return 'path' and 'run_id', or after a failure 'problem' (the kind of problem) and 'message'.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    folder = Path(payload["folder"])
    client = MlflowClient(payload["uri"], registry_uri=payload["uri"])
    try:
        version = client.get_model_version(payload["name"], payload["version"])
    except MlflowException as error:
        is_unknown = error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
        return {"problem": "unknown" if is_unknown else "server", "message": str(error)}
    result = {"run_id": version.run_id or ""}
    if payload["artifact"] is not None:
        if version.run_id is None:
            return {"problem": "artifact", "message": "The version belongs to no run."}
        try:
            path = client.download_artifacts(version.run_id, payload["artifact"], str(folder))
        except (MlflowException, OSError) as error:
            is_missing = _is_artifact_missing(client, version.run_id, payload["artifact"])
            return {"problem": "artifact" if is_missing else "server", "message": str(error)}
        return result | {"path": str(path)}
    try:
        return result | {"path": str(_predict(payload, folder))}
    except Exception as error:  # the code of the model may raise anything
        return {"problem": "model", "message": f"{type(error).__name__}: {error}"}


def _is_artifact_missing(client: "MlflowClient", run_id: str, artifact: str) -> bool:
    """Return whether the server lists the artifacts of the run, but not ``artifact``."""
    from mlflow.exceptions import MlflowException

    folder = artifact.rpartition("/")[0] or None
    try:
        return all(file.path != artifact for file in client.list_artifacts(run_id, folder))
    except MlflowException:
        return False


def _predict(payload: Mapping[str, Any], folder: Path) -> Path:
    """Load the model, predict on the features, and write one column for each output."""
    import mlflow
    import mlflow.pyfunc
    import numpy as np
    import pandas as pd

    mlflow.set_tracking_uri(payload["uri"])
    mlflow.set_registry_uri(payload["uri"])
    model = mlflow.pyfunc.load_model(f"models:/{payload['name']}/{payload['version']}")
    features = pd.read_parquet(payload["features"])
    schema = model.metadata.get_input_schema()
    if schema is not None and schema.has_input_names():
        features = features[schema.input_names()]
    predictions = np.asarray(model.predict(features), np.float64)
    predictions_NK = predictions.reshape(len(predictions), -1)
    names = [str(i) for i in range(predictions_NK.shape[1])]
    path = folder / _OUTPUT_FILE
    pd.DataFrame(predictions_NK, columns=names).to_parquet(path)
    return path


if __name__ == "__main__":
    print(json.dumps(_fetch(json.load(sys.stdin))))
