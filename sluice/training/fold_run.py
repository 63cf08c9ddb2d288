"""A fold run: the training of one network, with one seed, on one fold.

An interrupted fold run is resumed, and a finished fold run is reused instead of repeated. Its key
is the digest of everything that determines its result bit for bit. The folder
``runs/<key>`` contains the event log, the checkpoints during training, and finally
``result.json``.
"""

import contextlib
import fcntl
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.files import make_folder, storage_error, write_atomic
from sluice.base.seeding import RandomStream, derive_seed, deterministic
from sluice.data.table import load_table
from sluice.eventlog.event_log import EventLog
from sluice.models.scaled import Scaled
from sluice.training.checkpoint import discard_checkpoints, load_checkpoint
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.device import resolve_device
from sluice.training.fold_run_events import (
    OnFoldRunEvent,
    fold_run_event,
    ignore_event,
)
from sluice.training.fold_run_log import epoch_fields, truncate_log
from sluice.training.fold_run_spec import (
    FoldRunSpec,
    fold_run_folder,
    fold_run_subject,
    open_workload,
)
from sluice.training.fold_run_trace import FoldRunTrace, traced_attempt
from sluice.training.loop import predict, train
from sluice.training.members import Member
from sluice.training.prediction import row_losses
from sluice.training.ranks import SINGLE_PROCESS, Ranks
from sluice.training.termination import Termination, delayed_termination
from sluice.training.train_state import EpochResult, TrainState
from sluice.training.weights import pack_model
from sluice.workloads.examples import Examples
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

Clock = Callable[[], datetime]


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

    An interrupted fold run resumes from its last checkpoint, which may be within an epoch. It ends
    with the same bits as an uninterrupted fold run. On SIGTERM, a fold run of one process finishes
    its step, writes a checkpoint and ends. Several ranks end immediately. A second process that
    requests the same fold run waits for the first process.

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
        OutOfMemory: A step or the validation exceeds the memory.
    """
    _require_ranks(spec, ranks)
    resolve_device(spec.training.device)  # raises before any work if the device is unavailable
    workload = open_workload(spec)
    subject = fold_run_subject(spec, workload)
    folder = fold_run_folder(spec, subject)
    if not ranks.is_first:
        on_event = ignore_event
    with _exclusive_lock(folder) if ranks.is_first else contextlib.nullcontext():
        member = ranks.broadcast_from_first(lambda: _read_result(spec, subject))
        if member is not None:
            if ranks.is_first:
                discard_checkpoints(folder)
            on_event(fold_run_event(spec, "reused", member.epochs_run, member=member))
            return member
        # "unit" is the seed label of fold runs. Another label would change the bits of networks.
        with RandomStream(derive_seed(spec.seed, "unit")).active(), deterministic():
            trained_member = _fit(spec, workload, subject, folder, on_event, clock, timer, ranks)
        member = ranks.broadcast_from_first(lambda: trained_member)
    assert member is not None
    on_event(fold_run_event(spec, "finished", member.epochs_run, member=member))
    return member


def find_finished_member(spec: FoldRunSpec) -> Member | None:
    """Return the member of a finished fold run, and remove its checkpoints.

    None if the fold run has not finished, or its weights or log are missing or damaged.
    """
    subject = fold_run_subject(spec)
    member = _read_result(spec, subject)
    if member is not None:
        # The process that trained the member may have been killed before it removed its
        # checkpoints.
        discard_checkpoints(fold_run_folder(spec, subject))
    return member


def _require_ranks(spec: FoldRunSpec, ranks: Ranks) -> None:
    if spec.num_ranks != ranks.shard.world_size:
        raise ContractError(
            f"{spec.name} must be trained by {spec.num_ranks} processes together, got "
            f"{ranks.shard.world_size}.",
            cause="The fold run was not started with the number of processes that "
            "ranks_per_training sets.",
            fix="Start the fold run with train_fold_run_on_ranks, or set ranks_per_training to "
            f"{ranks.shard.world_size}.",
        )


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
    loaded_checkpoint = ranks.broadcast_from_first(lambda: load_checkpoint(folder, subject=subject))
    iter_epochs = functools.partial(
        _iter_epochs, spec, workload, model, rows, loaded_checkpoint.state, ranks
    )
    if not ranks.is_first:
        for _ in iter_epochs(on_state=None):
            pass
        return None
    history = loaded_checkpoint.state.history if loaded_checkpoint.state else ()
    log_path = folder / "events.ndjson"
    truncate_log(
        log_path,
        spec.seed,
        fold.fold_id,
        rows,
        history,
        is_resumed=loaded_checkpoint.state is not None,
        clock=clock,
    )
    on_event(
        fold_run_event(
            spec,
            "started",
            len(history),
            steps=_count_steps_in_epoch(loaded_checkpoint.state),
            num_damaged=len(loaded_checkpoint.damaged_paths),
            history=history,
        )
    )

    checkpoints = CheckpointWriter(
        folder, subject=subject, every_epochs=spec.training.checkpoint_every_epochs, clock=timer
    )
    # With several ranks, SIGTERM is not delayed: the ranks would not stop at the same step.
    termination_delay = (
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
            termination_delay as termination,
        ):
            for result in iter_epochs(on_state=on_state, is_due=is_due):
                on_event(fold_run_event(spec, "epoch", result.epoch, result=result))

        best_result = history[workload.select_epoch({r.epoch: r.val_loss for r in history}) - 1]
        metrics = _test_metrics(workload, model, rows["test"], frame)
        log.write(
            "fold_complete",
            fold_id=fold.fold_id,
            seed=spec.seed,
            best_epoch=best_result.epoch,
            epochs_run=len(history),
            **{f"test_{name}": value for name, value in metrics.items()},
        )
    member = Member(
        seed=spec.seed,
        fold_id=fold.fold_id,
        weights=store.put(pack_model(model)),
        event_log=store.put(log_path.read_bytes()),
        best_epoch=best_result.epoch,
        epochs_run=len(history),
        train_loss=best_result.train_loss,
        val_loss=best_result.val_loss,
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


def _count_steps_in_epoch(state: TrainState | None) -> int:
    """Return the number of finished steps of an unfinished epoch; 0 between two epochs."""
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
    """Return the member of a finished fold run; None if the fold run must be trained."""
    try:
        result = json.loads((fold_run_folder(spec, subject) / "result.json").read_bytes())
        if result["key"] != digest_json(subject):
            return None
        member = Member.model_validate(result["member"])
        store = ArtifactStore(spec.artifacts)
        store.get(member.weights)
        store.get(member.event_log)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IntegrityError):
        # The result or an artifact is damaged, or the result is from another version of Sluice.
        # Training again gives the same bits.
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
