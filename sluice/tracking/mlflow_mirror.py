"""Mirrors the registry's history to the model registry of an MLflow server.

Every version, promoted or not, becomes a run of the experiment with its config, metrics, loss
curves, lineage and receipts, and a version of the registered model whose source is that run. A
promotion or rollback moves the alias ``production``; a candidate that may be promoted has the alias
``staging``. The tags ``sluice.version``, ``sluice.candidate``, ``sluice.verdict`` and
``sluice.stage`` have the values of the ledger. MLflow counts versions by itself, so its version
numbers may differ from the version numbers of the ledger.

MLflow only displays the ledger's decisions: a change of an alias on the server promotes nothing.

The client of MLflow runs in a separate process, because it retries failed requests for minutes.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.base.errors import StorageError
from sluice.base.files import make_folder
from sluice.base.redaction import redact_data
from sluice.base.settings import Record
from sluice.tracking.client_process import ClientFailed, run_client_process
from sluice.tracking.settings import MlflowSettings
from sluice.tracking.tracked_run import Scalar

PRODUCTION, STAGING = "production", "staging"
"""Aliases of the registered model."""

_MAX_PARAMS, _MAX_METRICS = 100, 1000
"""Maximum numbers of parameters and of metrics that the server accepts in one request."""
_MAX_PARAM_CHARS = 6000
"""Maximum length of a parameter's value that the server accepts; longer values are cut."""
_MAX_RETRIES, _REQUEST_TIMEOUT_S = 2, 20


class MlflowChange(Record):
    """One history entry in the form in which it is mirrored."""

    version: int
    candidate: str
    action: str
    """Action of the entry, such as 'register', 'promote' or 'rollback'."""
    from_version: int | None
    """Version in production before a promotion or rollback; None if no version was."""
    stage: str
    """State of the version after the entry: 'dev', 'staging' or 'production'."""
    verdict: str
    """Outcome of the newest promotion receipt; empty if the version has no such receipt."""
    registered_ms: int
    """Time of registration [ms since 1970]."""
    config: dict[str, Any]
    lineage: dict[str, Any]
    receipts: list[dict[str, Any]]


def mirror_to_mlflow(
    change: MlflowChange,
    scalars: Sequence[Scalar],
    settings: MlflowSettings,
    *,
    model: str,
    folder: Path,
    environ: Mapping[str, str],
) -> str:
    """Mirror one history entry. If an entry is mirrored again, nothing changes.

    Args:
        change: The history entry with its version.
        scalars: Metrics and loss curves of the version.
        settings: Server and time limit.
        model: Name of the model in the ledger.
        folder: Working folder of the client.
        environ: Environment variables, with the credentials of MLflow.

    Returns:
        What was mirrored, in one sentence.

    Raises:
        ClientFailed: The server or the client failed, or the time limit was exceeded.
        OSError: The client cannot be started.
    """
    if find_spec("mlflow") is None:
        raise ClientFailed("the package mlflow is not installed. Install Sluice with [mlflow].")
    payload = {
        **redact_data(change.model_dump(mode="json")),
        "scalars": [[s.name, s.epoch or 0, s.value] for s in scalars],
        "uri": settings.uri,
        "experiment": settings.experiment or model,
        "registered_model": settings.registered_model or model,
    }
    try:
        make_folder(folder)
    except (OSError, StorageError) as error:
        raise ClientFailed(str(error)) from error
    mlflow_version = run_client_process(
        "sluice.tracking.mlflow_mirror",
        payload,
        timeout_s=settings.timeout_s,
        folder=folder,
        environ={
            **environ,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(_MAX_RETRIES),
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_REQUEST_TIMEOUT_S),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
    )
    return (
        f"Mirrored to MLflow ({settings.uri}): {change.action} of version {change.version}, which "
        f"is version {mlflow_version} of {payload['registered_model']} there."
    )


def _mirror(payload: Mapping[str, Any]) -> str:
    """Write one change to the server; return MLflow's version. Called in the separate process."""
    from mlflow import MlflowClient

    client = MlflowClient(payload["uri"])
    model = payload["registered_model"]
    run = _find_or_create_run(client, payload)
    mlflow_version = _find_or_create_mlflow_version(client, model, run)
    for name in ("version", "candidate", "verdict", "stage"):
        client.set_model_version_tag(model, mlflow_version, f"sluice.{name}", str(payload[name]))
    if payload["action"] in ("promote", "rollback"):
        _move_alias(client, model, PRODUCTION, mlflow_version)
        previous_version = _find_mlflow_version(client, model, payload["from_version"])
        if previous_version not in (None, mlflow_version):
            client.set_model_version_tag(model, previous_version, "sluice.stage", "archived")
    if payload["stage"] == STAGING:
        _move_alias(client, model, STAGING, mlflow_version)
    elif client.get_registered_model(model).aliases.get(STAGING) == mlflow_version:
        client.delete_registered_model_alias(model, STAGING)
    return mlflow_version


def _find_or_create_run(client: Any, payload: Mapping[str, Any]) -> Any:
    """Return the finished run of the version; an interrupted run is completed."""
    experiment = client.get_experiment_by_name(payload["experiment"])
    experiment_id = (
        client.create_experiment(payload["experiment"])
        if experiment is None
        else experiment.experiment_id
    )
    tags = {"sluice.version": str(payload["version"]), "sluice.candidate": payload["candidate"]}
    filter_string = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs([experiment_id], filter_string, max_results=1)
    registered_ms = payload["registered_ms"]
    run = (
        runs[0]
        if runs
        else client.create_run(
            experiment_id,
            start_time=registered_ms,
            tags=tags,
            run_name=f"{payload['registered_model']}-{payload['version']}",
        )
    )
    if run.info.status == "FINISHED":
        return run
    _log_run(client, run.info.run_id, payload)
    client.set_terminated(run.info.run_id, end_time=registered_ms)
    return run


def _log_run(client: Any, run_id: str, payload: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric, Param

    # All metrics get the time of the registration. If an interrupted run is logged again, the
    # server then stores each metric only once.
    registered_ms = payload["registered_ms"]
    params = [Param(name, text[:_MAX_PARAM_CHARS]) for name, text in _flatten(payload["config"])]
    metrics = [
        Metric(name, value, registered_ms, epoch) for name, epoch, value in payload["scalars"]
    ]
    for start in range(0, len(params), _MAX_PARAMS):
        client.log_batch(run_id, params=params[start : start + _MAX_PARAMS])
    for start in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + _MAX_METRICS])
    client.log_dict(run_id, payload["lineage"], "lineage.json")
    client.log_dict(run_id, {"receipts": payload["receipts"]}, "receipts.json")


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _find_or_create_mlflow_version(client: Any, model: str, run: Any) -> str:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(model)
    versions = client.search_model_versions(f"name = '{model}' and run_id = '{run.info.run_id}'")
    version = (
        versions[0]
        if versions
        else client.create_model_version(model, run.info.artifact_uri, run_id=run.info.run_id)
    )
    return str(version.version)


def _find_mlflow_version(client: Any, model: str, version: int | None) -> str | None:
    """Return MLflow's version for a version of the ledger, or None if it was not mirrored."""
    filter_string = f"name = '{model}' and tags.`sluice.version` = '{version}'"
    versions = client.search_model_versions(filter_string)
    return str(versions[0].version) if versions else None


def _move_alias(client: Any, model: str, alias: str, mlflow_version: str) -> None:
    if client.get_registered_model(model).aliases.get(alias) != mlflow_version:
        client.set_registered_model_alias(model, alias, mlflow_version)


if __name__ == "__main__":
    print(json.dumps(_mirror(json.load(sys.stdin))))
