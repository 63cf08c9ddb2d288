"""A fold run: the training of one network, with one seed, on one fold.

A fold run that was interrupted is resumed, and one that has finished is reused instead of repeated.
The key of a fold run is the digest of everything that determines its result bit for bit. The folder
``runs/<key>`` contains the event log, the checkpoints during training, and finally
``result.json``.
"""

import contextlib
import fcntl
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json, short
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.files import make_folder, storage_error, write_atomic
from sluice.base.seeding import RandomStream, derive_seed, deterministic
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table
from sluice.eventlog.event_log import EventLog
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import discard_checkpoints, load_checkpoint
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.code import code_digest, optimizer_code
from sluice.training.device import device_type, resolve_device
from sluice.training.fold_run_log import epoch_fields, truncate_log
from sluice.training.fold_run_trace import FoldRunTrace, traced_attempt
from sluice.training.loop import predict, train
from sluice.training.members import Member
from sluice.training.prediction import row_losses
from sluice.training.ranks import SINGLE_PROCESS, Ranks
from sluice.training.settings import SETTINGS_WITHOUT_EFFECT, TrainSettings
from sluice.training.termination import Termination, delayed_termination
from sluice.training.train_state import EpochResult, TrainState
from sluice.training.weights import pack_model
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.load import load_workload
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRunSpec:
    """Everything that a process needs to train one fold run, on any machine."""

    workload: str
    """Import path, 'module:Class'."""
    workload_settings: dict[str, Any]
    model: ModelSettings
    training: TrainSettings
    seed: int
    fold: Fold
    table: TableRecord
    """Record of the feature frame."""
    artifacts: Path
    """Folder of the artifact store."""
    runs: Path
    """Folder that contains one folder for each fold run."""
    data_seed: int | None = None
    """Base seed of the row order; ``seed`` if None."""
    num_ranks: int = 1
    """Number of processes that train the model together. It changes the rounding of sums, so it is
    part of the key."""
    sys_path: tuple[str, ...] = ()
    """Folders to add to ``sys.path``, so that the workload can be imported in another process."""

    @property
    def name(self) -> str:
        """Name of the fold run in messages."""
        return f"Seed {self.seed}, fold {self.fold.fold_id}"


FoldRunEventKind = Literal["started", "epoch", "finished", "reused", "failed", "lost", "replaces"]
"""'failed': the fold run raised an error, which ends the whole training; 'lost': the process or
machine of the fold run was lost, and the fold run resumes from its last checkpoint; 'replaces': the
fold run replaces an unfinished one with other settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRunEvent:
    """A progress event of a fold run."""

    kind: FoldRunEventKind
    seed: int
    fold_id: int
    epochs_done: int
    max_epochs: int
    steps_done: int = 0
    """Finished steps of the epoch after ``epochs_done``, for kind 'started'."""
    result: EpochResult | None = None
    """Result of the epoch, for kind 'epoch'."""
    damaged_checkpoints: int = 0
    """Number of damaged checkpoints that were skipped on resuming, for kind 'started'."""
    history: tuple[EpochResult, ...] = ()
    """Results of the ``epochs_done`` epochs before a resumed fold run, for kind 'started'."""
    member: Member | None = None
    """Result of the fold run, for the kinds 'finished' and 'reused'."""
    reason: str = ""
    """For kind 'failed', the error; for kind 'lost', how the worker was lost; for kind 'replaces',
    the settings that differ."""


OnFoldRunEvent = Callable[[FoldRunEvent], None]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def train_fold_run(
    spec: FoldRunSpec,
    on_event: OnFoldRunEvent,
    *,
    clock: Clock = utc_now,
    timer: Callable[[], float] = time.perf_counter,
    ranks: Ranks = SINGLE_PROCESS,
) -> Member:
    """Train one fold run, or return its member if it is already finished.

    An interrupted fold run resumes from its last checkpoint, which may be within an epoch, and ends
    with the same bits as an uninterrupted one. On SIGTERM a fold run of one process finishes its
    step, writes a checkpoint and ends; several ranks end at once. A second process that requests
    the same fold run waits for the first.

    Args:
        spec: The fold run.
        on_event: Called with every event, on the first rank.
        clock: Time of the log's events, with a time zone.
        timer: Monotonic time [s] for the checkpoint interval.
        ranks: The ``spec.num_ranks`` processes that train the model together. Each of them calls
            this function and gets the member. All ranks read the artifacts; only the first rank
            reads and writes in ``runs``.

    Raises:
        TrainingFailed: A loss or gradient is not finite, or another rank was lost.
        ContractError: The workload, its rows or its settings break their contract, or the number of
            ranks differs from ``spec.num_ranks``.
        SettingsError: The device is not available.
        StorageError: A file cannot be read or written; earlier checkpoints are kept.
    """
    _require_ranks(spec, ranks)
    resolve_device(spec.training.device)  # raises before any work if the device is unavailable
    workload = open_workload(spec)
    subject = _subject(spec, workload)
    folder = _folder(spec, subject)
    if not ranks.is_first:
        on_event = _ignore_event
    with _exclusive_lock(folder) if ranks.is_first else contextlib.nullcontext():
        member = ranks.broadcast_from_first(lambda: _read_result(spec, subject))
        if member is not None:
            if ranks.is_first:
                discard_checkpoints(folder)
            on_event(fold_run_event(spec, "reused", member.epochs_run, member=member))
            return member
        with RandomStream(derive_seed(spec.seed, "unit")).active(), deterministic():
            fitted = _fit(spec, workload, subject, folder, on_event, clock, timer, ranks)
        member = ranks.broadcast_from_first(lambda: fitted)
    assert member is not None
    on_event(fold_run_event(spec, "finished", member.epochs_run, member=member))
    return member


def find_finished_member(spec: FoldRunSpec) -> Member | None:
    """Return the member of a fold run that has finished with intact weights, or None."""
    subject = fold_run_subject(spec)
    member = _read_result(spec, subject)
    if member is not None:
        # The process that trained the member may have been killed before it removed its
        # checkpoints.
        discard_checkpoints(_folder(spec, subject))
    return member


def fold_run_subject(spec: FoldRunSpec) -> dict[str, Any]:
    """Return everything that determines the result of a fold run bit for bit, by name.

    The digest of the returned dictionary is the key of the fold run, and names its folder.
    """
    return _subject(spec, open_workload(spec))


def fold_run_folder(spec: FoldRunSpec) -> Path:
    """Return the folder of the fold run's checkpoints and log."""
    return _folder(spec, fold_run_subject(spec))


def open_workload(spec: FoldRunSpec) -> Workload:
    """Import and build the workload of ``spec``.

    Raises:
        SettingsError: The workload cannot be imported, is not a workload, or has an invalid
            setting.
    """
    sys.path.extend(folder for folder in spec.sys_path if folder not in sys.path)
    return load_workload(spec.workload, spec.workload_settings, where=spec.workload)


def _require_ranks(spec: FoldRunSpec, ranks: Ranks) -> None:
    if spec.num_ranks != ranks.shard.world_size:
        raise ContractError(
            f"{spec.name} must be trained by {spec.num_ranks} processes together, got "
            f"{ranks.shard.world_size}.",
            cause="The fold run was not started with the number of processes that "
            "ranks_per_training sets.",
            fix="Start it with train_fold_run_on_ranks, or set ranks_per_training to "
            f"{ranks.shard.world_size}.",
        )


def _ignore_event(_: FoldRunEvent) -> None:
    pass


def _subject(spec: FoldRunSpec, workload: Workload) -> dict[str, Any]:
    """Return what ``fold_run_subject`` returns, for a workload that is already open."""
    return {
        "data": spec.table.digest,
        "workload": spec.workload,
        "workload_settings": workload.settings.model_dump(mode="json"),
        "model": spec.model.model_dump(mode="json"),
        "training": spec.training.model_dump(
            mode="json", exclude={*SETTINGS_WITHOUT_EFFECT, "device"}
        ),
        # The resolved device type: a CPU and a GPU do not give the same bits.
        "device": device_type(spec.training.device),
        "code": code_digest(workload, spec.model),
        **optimizer_code(spec.training),
        "torch": torch.__version__,
        "seed": spec.seed,
        "data_seed": spec.data_seed,
        "ranks": spec.num_ranks,
        "fold": spec.fold.model_dump(mode="json"),
    }


def _folder(spec: FoldRunSpec, subject: dict[str, Any]) -> Path:
    return spec.runs / short(digest_json(subject))


def _fit(
    spec: FoldRunSpec,
    workload: Workload,
    subject: dict[str, Any],
    folder: Path,
    on_event: OnFoldRunEvent,
    clock: Clock,
    timer: Callable[[], float],
    ranks: Ranks,
) -> Member | None:
    """Train the network and return its member, or None on a rank other than the first."""
    store = ArtifactStore(spec.artifacts)
    frame = load_table(spec.table, store)
    fold = spec.fold
    workload = fit_workload(workload, frame, fold)
    rows = {
        "train": workload.examples(frame, fold.train),
        "val": workload.examples(frame, fold.val),
        "test": workload.examples(frame, fold.test),
    }
    model = prepare_model(workload, spec.model, rows["train"], seed=spec.seed)
    restored = ranks.broadcast_from_first(lambda: load_checkpoint(folder, subject=subject))
    epochs = functools.partial(_iter_epochs, spec, workload, model, rows, restored.state, ranks)
    if not ranks.is_first:
        for _ in epochs(on_state=None):
            pass
        return None
    history = restored.state.history if restored.state else ()
    log_path = folder / "events.ndjson"
    truncate_log(
        log_path,
        spec.seed,
        fold.fold_id,
        rows,
        history,
        is_resumed=restored.state is not None,
        clock=clock,
    )
    on_event(
        fold_run_event(
            spec,
            "started",
            len(history),
            steps=_steps_within(restored.state),
            num_damaged=len(restored.damaged_paths),
            history=history,
        )
    )

    checkpoints = CheckpointWriter(
        folder, subject=subject, every_epochs=spec.training.checkpoint_every_epochs, clock=timer
    )
    # With several ranks, SIGTERM is not delayed, because they would not stop at the same step.
    delay = (
        delayed_termination()
        if ranks.shard.world_size == 1
        else contextlib.nullcontext(Termination())
    )
    with EventLog(log_path, clock=clock) as log:

        def on_state(state: TrainState) -> None:
            nonlocal history
            if state.progress is None:
                history = state.history
                # The log is written first, so that a checkpoint never contains an epoch that is
                # missing in the log.
                log.write("epoch_complete", **epoch_fields(spec.seed, fold.fold_id, history[-1]))
            is_within_epoch = state.progress is not None
            checkpoints.write_if_due(state, force=is_within_epoch or termination.is_requested)
            termination.end_if_requested()

        def is_due() -> bool:
            return termination.is_requested or checkpoints.is_due()

        with (
            traced_attempt(folder, is_enabled=spec.training.trace) as trace,
            delay as termination,
        ):
            for result in epochs(on_state=on_state, is_due=is_due):
                on_event(fold_run_event(spec, "epoch", result.epoch, result=result))

        best = history[workload.select_epoch({r.epoch: r.val_loss for r in history}) - 1]
        metrics = _test_metrics(workload, model, rows["test"], frame)
        log.write(
            "fold_complete",
            fold_id=fold.fold_id,
            seed=spec.seed,
            best_epoch=best.epoch,
            epochs_run=len(history),
            **{f"test_{name}": value for name, value in metrics.items()},
        )
    member = Member(
        seed=spec.seed,
        fold_id=fold.fold_id,
        weights=store.put(pack_model(model)),
        event_log=store.put(log_path.read_bytes()),
        best_epoch=best.epoch,
        epochs_run=len(history),
        train_loss=best.train_loss,
        val_loss=best.val_loss,
        test_metrics=metrics,
        trained_through=str(frame.index[max(fold.train.stop, fold.val.stop) - 1]),
        seconds=sum(result.seconds for result in history),
        **_trace_results(trace, store),
    )
    content = {"key": digest_json(subject), "member": member.model_dump(mode="json")}
    write_atomic(folder / "result.json", json.dumps(content, indent=2).encode())
    discard_checkpoints(folder)
    trace.print_messages()
    return member


def _steps_within(state: TrainState | None) -> int:
    return 0 if state is None or state.progress is None else state.progress.steps


def _trace_results(trace: FoldRunTrace, store: ArtifactStore) -> dict[str, Any]:
    diagnoses = trace.diagnoses()
    return {"diagnoses": diagnoses, "replay": trace.store_replay(diagnoses, store)}


def _iter_epochs(
    spec: FoldRunSpec,
    workload: Workload,
    model: Scaled,
    rows: Mapping[str, Examples],
    resume: TrainState | None,
    ranks: Ranks,
    *,
    on_state: Callable[[TrainState], None] | None,
    is_due: Callable[[], bool] | None = None,
) -> Iterator[EpochResult]:
    return train(
        model,
        workload.loss,
        workload.losses,
        rows["train"],
        rows["val"],
        spec.training,
        seed=spec.seed,
        data_seed=spec.data_seed,
        select=workload.select_epoch,
        loss_weight=workload.loss_weight,
        groups=workload.parameter_groups(model.network),
        augment=workload.augmentation,
        resume=resume,
        on_state=on_state,
        is_due=is_due,
        ranks=ranks,
    )


def _test_metrics(
    workload: Workload, model: Scaled, test: Examples, frame: pd.DataFrame
) -> dict[str, float]:
    with torch.inference_mode():
        if workload.keep_outputs:
            metrics = workload.metrics(predict(model, test.x), test, frame)
        else:
            losses = row_losses(model, workload.losses, test)
            metrics = workload.metrics_from_losses(losses, test, frame)
    return {name: float(value) for name, value in metrics.items()}


def _read_result(spec: FoldRunSpec, subject: dict[str, Any]) -> Member | None:
    """Return the member of a finished fold run, or None if the fold run must be trained."""
    try:
        result = json.loads((_folder(spec, subject) / "result.json").read_bytes())
        if result["key"] != digest_json(subject):
            return None
        member = Member.model_validate(result["member"])
        store = ArtifactStore(spec.artifacts)
        store.get(member.weights)
        store.get(member.event_log)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IntegrityError):
        # The result is damaged or from another version. Training again gives the same bits.
        return None
    return member


@contextlib.contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the fold run; the operating system releases it when the process ends."""
    try:
        make_folder(folder)
        lock = (folder / "lock").open("ab")
    except OSError as error:
        raise storage_error(folder, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fold_run_event(
    spec: FoldRunSpec,
    kind: FoldRunEventKind,
    epochs_done: int,
    *,
    steps: int = 0,
    result: EpochResult | None = None,
    num_damaged: int = 0,
    history: tuple[EpochResult, ...] = (),
    member: Member | None = None,
    reason: str = "",
) -> FoldRunEvent:
    """Return a progress event of the fold run ``spec``."""
    return FoldRunEvent(
        kind=kind,
        seed=spec.seed,
        fold_id=spec.fold.fold_id,
        epochs_done=epochs_done,
        max_epochs=spec.training.max_epochs,
        steps_done=steps,
        result=result,
        damaged_checkpoints=num_damaged,
        history=history,
        member=member,
        reason=reason,
    )
