"""Mirrors the registry's history to Weights & Biases, as a consumer of the outbox.

Each entry of the history becomes one run of Weights & Biases. The id of the run is a digest of its
content, so that an entry that is delivered twice is mirrored only once. After a failure the entry
stays pending and is tried again the next time; nothing else is affected.
"""

from collections.abc import Mapping
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SluiceError
from sluice.eventlog.event_log import read_events
from sluice.registry.ledger import Ledger
from sluice.registry.migrations import MIRROR_CONSUMER
from sluice.registry.outbox import Delivery, Publication
from sluice.registry.records import HistoryEntry, HistoryEvent, Version
from sluice.tracking.tracked_run import Scalar, Split, TrackedRun, fold_run_task
from sluice.tracking.wandb_mirror import TrackingSettings, mirror

LOSSES: tuple[tuple[Split, str], ...] = (("train", "train_loss"), ("val", "val_loss"))
"""Split and field of the event log for each mirrored loss curve."""


_NOT_MIRRORED = ("accept", "trust", "stage", "unstage")
"""Actions that change neither the results of a version nor the version in production."""


def mirror_history(
    ledger: Ledger,
    model: str,
    settings: TrackingSettings,
    *,
    store: ArtifactStore,
    folder: Path,
    environ: Mapping[str, str],
) -> Publication:
    """Mirror all pending entries of a model's history.

    Args:
        ledger: Ledger with the history, which records what was mirrored.
        model: Name of the model.
        settings: Destination, and time limit for mirroring one entry.
        store: Store of the event logs.
        folder: See ``mirror``.
        environ: See ``mirror``.

    Returns:
        Number of delivered and pending entries, with the reasons. A failure of wandb does not
        raise.

    Cost:
        About 2 s per entry in offline mode.
    """

    def deliver(event: HistoryEvent) -> Delivery:
        entry = event.entry
        if entry.action in _NOT_MIRRORED:
            return Delivery(ok=True, reason=f"Not mirrored: {entry.action} has no results.")
        try:
            run = _tracked_run(ledger.version(model, entry.to_version), entry, store)
        except SluiceError as error:
            return Delivery(ok=False, reason=f"Not mirrored to Weights & Biases: {error}")
        result = mirror(run, settings, folder=folder, environ=environ)
        return Delivery(ok=result.ok, reason=result.reason)

    return ledger.publish(model, MIRROR_CONSUMER, deliver)


def _tracked_run(version: Version, entry: HistoryEntry, store: ArtifactStore) -> TrackedRun:
    """Return the run for a history entry; only the entry of a new version has scalars."""
    is_move = entry.revision is not None  # the entry changes the version in production
    lineage = version.lineage
    architecture = str(lineage.resolved_config.get("model", {}).get("architecture", ""))
    name = f"{version.model}-{version.number}"
    return TrackedRun(
        name=f"{name}-{entry.action}-{entry.revision}" if is_move else name,
        pipeline=version.model,
        candidate=version.candidate,
        config=lineage.resolved_config,
        manifest=lineage.model_dump(mode="json"),
        scalars=()
        if is_move
        else (*_loss_curves(version, store), *_test_metrics(version), *_system_scalars(version)),
        tags=(entry.action,) if is_move else (architecture,) if architecture else (),
        aliases=("production",) if is_move else (),
    )


def _loss_curves(version: Version, store: ArtifactStore) -> list[Scalar]:
    """Return the losses of every epoch of every fold run, from the version's event log."""
    digest = version.lineage.artifacts.get("event log")
    if (
        digest is None or version.is_imported
    ):  # An imported log is untrusted, so it is never parsed.
        return []
    store.get(digest)  # only verifies the content; read_events requires a path
    return [
        Scalar(
            split=split,
            task=fold_run_task(int(line["seed"]), int(line["fold_id"])),
            metric="loss",
            value=float(line[column]),
            epoch=int(line["epoch"]),
        )
        for line in read_events(store.path(digest)).events
        if line["event"] == "epoch_complete"
        for split, column in LOSSES
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
