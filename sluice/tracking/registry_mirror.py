"""Tell Weights & Biases what happens in the registry: a consumer of its history (TRK-1).

Each line of history makes one run, named by its content: a line that is told twice is mirrored
once. A mirror that fails stops nothing; the line waits for the next time.
"""

from collections.abc import Mapping
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SluiceError
from sluice.eventlog.event_log import read_events
from sluice.registry.ledger import Ledger
from sluice.registry.migrations import MIRROR
from sluice.registry.outbox import Delivery, Publication
from sluice.registry.records import Event, HistoryEntry, Version
from sluice.tracking.tracked_run import Scalar, Split, TrackedRun, unit_task
from sluice.tracking.wandb_mirror import TrackingSettings, mirror

LOSSES: tuple[tuple[Split, str], ...] = (("train", "train_loss"), ("val", "val_loss"))


_NOT_MIRRORED = ("accept", "trust", "stage", "unstage")
"""Actions that change neither a version's results nor what is in production."""


def mirror_history(
    ledger: Ledger,
    model: str,
    settings: TrackingSettings,
    *,
    store: ArtifactStore,
    folder: Path,
    environ: Mapping[str, str],
) -> Publication:
    """Mirror every line of a model's history that was not mirrored yet.

    Args:
        ledger: Holds the history, and notes what was mirrored.
        model: Its name.
        settings: Where to, and the time limit of one line.
        store: Holds the event logs.
        folder: See ``mirror``.
        environ: See ``mirror``.

    Returns:
        How many lines were told and how many wait, with the reason; wandb's failures are no
        errors.

    Cost:
        About 2 s a line, offline.
    """

    def deliver(event: Event) -> Delivery:
        entry = event.entry
        if entry.action in _NOT_MIRRORED:
            return Delivery(ok=True, reason=f"Not mirrored: {entry.action} is the registry's own.")
        try:
            run = _run(ledger.version(model, entry.to_version), entry, store)
        except SluiceError as error:
            return Delivery(ok=False, reason=f"Not mirrored to Weights & Biases: {error}")
        done = mirror(run, settings, folder=folder, environ=environ)
        return Delivery(ok=done.ok, reason=done.reason)

    return ledger.publish(model, MIRROR, deliver)


def _run(version: Version, entry: HistoryEntry, store: ArtifactStore) -> TrackedRun:
    is_move = entry.revision is not None
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
        else (*_curves(version, store), *_results(version), *_system(version)),
        tags=(entry.action,) if is_move else (architecture,) if architecture else (),
        aliases=("production",) if is_move else (),
    )


def _curves(version: Version, store: ArtifactStore) -> list[Scalar]:
    digest = version.lineage.artifacts.get("event log")
    if digest is None or version.is_imported:  # a stranger's log is kept, and parsed by nobody
        return []
    store.get(digest)  # its bytes are checked here; the reader takes a path
    return [
        Scalar(
            split=split,
            task=unit_task(int(line["seed"]), int(line["fold_id"])),
            metric="loss",
            value=float(line[column]),
            epoch=int(line["epoch"]),
        )
        for line in read_events(store.path(digest)).events
        if line["event"] == "epoch_complete"
        for split, column in LOSSES
    ]


def _results(version: Version) -> list[Scalar]:
    return [
        Scalar(split="test", metric=name, value=value)
        for name, value in version.lineage.metrics.items()
    ]


def _system(version: Version) -> list[Scalar]:
    environment = version.lineage.environment
    resources = {
        "training_seconds": version.lineage.training_seconds,
        "cpu_cores": environment.cpu_count,
        "accelerators": environment.device_count,
    }
    return [Scalar(split="system", metric=name, value=value) for name, value in resources.items()]
