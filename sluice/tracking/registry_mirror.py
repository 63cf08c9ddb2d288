"""Mirrors the registry's history to Weights & Biases and MLflow, as consumers of the outbox.

Each entry that adds a version or moves production becomes one run of Weights & Biases. The id of
the run is a digest of its content, so that an entry that is delivered twice is mirrored only once.
After a failure, the entry stays pending and is mirrored in the next call of ``mirror_history``. The
ledger records for each server which entries were delivered.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SluiceError
from sluice.base.receipts import Receipt
from sluice.eventlog.event_log import read_events
from sluice.registry.ledger import Ledger
from sluice.registry.migrations import MIRROR_CONSUMER
from sluice.registry.outbox import Delivery, Publication
from sluice.registry.records import HistoryEntry, HistoryEvent, Version
from sluice.tracking.client_process import ClientFailed
from sluice.tracking.mlflow_mirror import MlflowChange, mirror_to_mlflow
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.tracked_run import Scalar, Split, TrackedRun, fold_run_task
from sluice.tracking.wandb_fold_runs import training_group
from sluice.tracking.wandb_mirror import mirror

_LOSS_FIELDS: tuple[tuple[Split, str], ...] = (("train", "train_loss"), ("val", "val_loss"))
"""Split and field of the event log for each mirrored loss curve."""

_ACTIONS_WITHOUT_WANDB_RUN = ("accept", "trust", "stage", "unstage", "approve")
"""Actions that change neither the results of a version nor the version in production."""
_ACTIONS_WITHOUT_MLFLOW_CHANGE = ("accept", "trust", "approve")
"""Actions that change neither a version nor an alias of the registered model."""
_STAGES = {"stage": "staging", "promote": "production", "rollback": "production"}
"""State of a version after an action; 'dev' after other actions."""

MLFLOW_CONSUMER = "mlflow"
"""Name of the MLflow mirror as a consumer of the outbox."""

Send = Callable[[Version, HistoryEntry], Delivery]
"""Function that mirrors a history entry and its version to one server."""


def mirror_history(
    ledger: Ledger,
    model: str,
    settings: TrackingSettings,
    *,
    store: ArtifactStore,
    folder: Path,
    environ: Mapping[str, str],
) -> tuple[Publication, ...]:
    """Mirror all pending entries of a model's history, to each configured tracking server.

    Args:
        ledger: Ledger with the history, which records what was mirrored.
        model: Name of the model.
        settings: Destinations, and time limits for mirroring one entry.
        store: Store of the event logs.
        folder: See ``mirror``.
        environ: See ``mirror``.

    Returns:
        For each server, the number of delivered entries and of pending entries, with the reasons.
        A failure of a server does not raise an error.

    Cost:
        About 2 s per entry and server.
    """

    def to_wandb(version: Version, entry: HistoryEntry) -> Delivery:
        run = _tracked_run(version, entry, ledger, store)
        result = mirror(run, settings, folder=folder, environ=environ)
        return Delivery(ok=result.ok, reason=result.reason)

    def to_mlflow(version: Version, entry: HistoryEntry) -> Delivery:
        assert settings.mlflow is not None
        try:
            reason = mirror_to_mlflow(
                _mlflow_change(version, entry, ledger),
                (*_loss_curves(version, store), *_test_metrics(version), *_system_scalars(version)),
                settings.mlflow,
                model=model,
                folder=folder,
                environ=environ,
            )
        except (ClientFailed, OSError) as error:
            return Delivery(ok=False, reason=f"Not mirrored to MLflow: {error}")
        return Delivery(ok=True, reason=reason)

    def publish(consumer: str, skipped_actions: Collection[str], send: Send) -> Publication:
        def deliver(event: HistoryEvent) -> Delivery:
            entry = event.entry
            if entry.action in skipped_actions:
                return Delivery(
                    ok=True,
                    reason=f"Not mirrored: '{entry.action}' changes nothing on this server.",
                )
            try:
                return send(ledger.version(model, entry.to_version), entry)
            except SluiceError as error:
                return Delivery(ok=False, reason=f"Not mirrored: {error}")

        return ledger.publish(model, consumer, deliver)

    publications = [publish(MIRROR_CONSUMER, _ACTIONS_WITHOUT_WANDB_RUN, to_wandb)]
    if settings.mlflow is not None:
        publications.append(publish(MLFLOW_CONSUMER, _ACTIONS_WITHOUT_MLFLOW_CHANGE, to_mlflow))
    return tuple(publications)


def _promotion_receipt(version: Version, ledger: Ledger) -> Receipt | None:
    """Return the newest receipt of the promotion gate for a version; None if it has no receipt."""
    receipts = [link.receipt for link in ledger.receipts(version.model, version.number)]
    return next((r for r in reversed(receipts) if r.gate == "promotion"), None)


def _mlflow_change(version: Version, entry: HistoryEntry, ledger: Ledger) -> MlflowChange:
    linked_receipts = ledger.receipts(version.model, version.number)
    receipt = _promotion_receipt(version, ledger)
    return MlflowChange(
        version=version.number,
        candidate=version.candidate,
        action=entry.action,
        from_version=entry.from_version,
        stage=_STAGES.get(entry.action, "dev"),
        verdict=receipt.outcome if receipt else "",
        registered_ms=int(version.registered_at.timestamp() * 1000),
        config=version.lineage.resolved_config,
        lineage=version.lineage.model_dump(mode="json"),
        receipts=[link.receipt.model_dump(mode="json") for link in linked_receipts],
    )


def _tracked_run(
    version: Version, entry: HistoryEntry, ledger: Ledger, store: ArtifactStore
) -> TrackedRun:
    """Return the run for a history entry; only the entry of a new version has scalars.

    The run of a new version is tagged with the verdict, even if the version was not promoted. Its
    notes are the reason of the verdict.
    """
    changes_production = entry.revision is not None
    lineage = version.lineage
    architecture = str(lineage.resolved_config.get("model", {}).get("architecture", ""))
    name = f"{version.model}-{version.number}"
    receipt = None if changes_production else _promotion_receipt(version, ledger)
    verdict = receipt.outcome if receipt else ""
    group = training_group(
        version.model, data=lineage.data, config=lineage.config, code=lineage.code
    )
    return TrackedRun(
        name=f"{name}-{entry.action}-{entry.revision}" if changes_production else name,
        pipeline=version.model,
        candidate=version.candidate,
        config=lineage.resolved_config,
        manifest=lineage.model_dump(mode="json"),
        scalars=()
        if changes_production
        else (*_loss_curves(version, store), *_test_metrics(version), *_system_scalars(version)),
        tags=(entry.action,)
        if changes_production
        else tuple(filter(None, (architecture, verdict and f"verdict:{verdict}"))),
        aliases=("production",) if changes_production else (),
        notes=f"{verdict}: {receipt.reason}" if receipt else "",
        labels={"training_group": group, **({"verdict": verdict} if verdict else {})},
    )


def _loss_curves(version: Version, store: ArtifactStore) -> list[Scalar]:
    """Return the losses of every epoch of every fold run, from the version's event log."""
    digest = version.lineage.artifacts.get("event log")
    # An imported log is untrusted, so it is never parsed.
    if digest is None or version.is_imported:
        return []
    store.get(digest)  # only to verify the content; read_events requires a path
    return [
        Scalar(
            split=split,
            task=fold_run_task(int(event["seed"]), int(event["fold_id"])),
            metric="loss",
            value=float(event[loss_field]),
            epoch=int(event["epoch"]),
        )
        for event in read_events(store.path(digest)).events
        if event["event"] == "epoch_complete"
        for split, loss_field in _LOSS_FIELDS
    ]


def _test_metrics(version: Version) -> list[Scalar]:
    return [
        Scalar(split="test", metric=name, value=value)
        for name, value in version.lineage.metrics.items()
    ]


def _system_scalars(version: Version) -> list[Scalar]:
    environment = version.lineage.environment
    resources = {
        "training_seconds": version.lineage.training_seconds,
        "cpu_cores": environment.cpu_count,
        "accelerators": environment.device_count,
    }
    return [Scalar(split="system", metric=name, value=value) for name, value in resources.items()]
